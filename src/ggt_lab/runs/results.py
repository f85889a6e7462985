"""Results as JSON lines: each record is appended whole or not at all, and read back after any crash."""

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ggt_lab.data.json_files import read_lines, there
from ggt_lab.runs.run_record import run_flaw

__all__ = ["Record", "Results", "Task"]

Record = dict[str, Any]
"""What a task found, in types that JSON has."""


class Task(Protocol):
    """A piece of work; equal keys give equal results."""

    @property
    def key(self) -> str:
        """The task in words that do not change from one session to the next."""
        ...


class Results:
    """A JSONL file of finished tasks, one line each.

    Args:
        path: the file; the first `append` makes it and its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Record) -> None:
        """Add one record. It is on disk when this returns."""
        line = json.dumps(record, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a kill cut the last line off: it must not swallow this one
                    file.write(b"\n")
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[Record]:
        """All records that can be used, each key once; a damaged line is left out with a warning."""
        return self.read(lambda words: warnings.warn(words, stacklevel=3))

    def read(self, complain: Callable[[str], None]) -> Iterator[Record]:
        """All records that can be used, each key once.

        Args:
            complain: called for each line that is left out, with its place and what is wrong with it.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not a regular file.
        """
        if not there(self.path):
            return
        try:
            lines = list(read_lines(self.path))
        except ValueError as error:
            raise ValueError(f"{self.path} cannot be read: {error}") from None
        seen = set()
        for number, record, damage in lines:
            if record is None:
                complain(f"{self.path}:{number} is damaged and left out: {damage}")
                continue
            found = run_flaw(record)
            if found is not None:
                complain(f"{self.path}:{number} is left out: {found}")
                continue
            named = _with_todays_names(record)
            key = named.get("key")
            if isinstance(key, str):  # two commands at once in one folder may both run a task
                if key in seen:
                    continue
                seen.add(key)
            yield named

    def finished(self) -> set[str]:
        """The keys of the records in the file."""
        return {record["key"] for record in self if isinstance(record.get("key"), str)}

    def of(self, tasks: Iterable[Task]) -> list[Record]:
        """The records of these tasks, in the order of the tasks; other records of the file are left out."""
        by_key = {record["key"]: record for record in self if isinstance(record.get("key"), str)}
        return [by_key[task.key] for task in tasks if task.key in by_key]


# The name GGT at the beginning of a spec, also of a spec inside a key, which is JSON.
_GGT = re.compile(r'(^|")GGT(?=[("\\]|$)')


def _with_todays_names(record: Record) -> Record:
    """The record, with today's name of the paper's optimizer: in version 0.1 it was GGT, now it is PaperGGT."""
    environment = record.get("environment")
    if not isinstance(environment, dict) or not str(environment.get("torch_ggt")).startswith("0.1."):
        return record
    texts = {name: record[name] for name in ("key", "optimizer") if isinstance(record.get(name), str)}
    return {**record, **{name: _GGT.sub(r"\1PaperGGT", text) for name, text in texts.items()}}
