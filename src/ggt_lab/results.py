"""Results as JSON lines: appended as a whole or not at all, and read back whatever a crash left behind."""

import json
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

import torch_ggt

__all__ = ["Results", "command_line", "environment", "json_objects", "read_cases"]

Record = dict[str, Any]


def json_objects(folders: Iterable[Path]) -> Iterator[Record]:
    """The objects in the JSON files below these folders, by name of the file; files that are not whole are left out."""
    for folder in folders:
        for file in sorted(folder.rglob("*.json")):
            try:
                found = json.loads(file.read_text())
            except ValueError:
                continue  # a kill came between
            if isinstance(found, dict):
                yield found


def read_cases(folders: Iterable[Path]) -> list[Record]:
    """The cases of benchmarks below these folders, by file name; of a case measured twice the one read last."""
    return list({each["case"]: each for each in json_objects(folders) if "case" in each and "kind" in each}.values())


def environment() -> Record:
    """Where a result was made: versions, machine, and the exact command."""
    return {
        "torch_ggt": torch_ggt.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": command_line(),
    }


def command_line() -> str:
    """What was typed, so that it can be pasted."""
    module = getattr(sys.modules["__main__"], "__spec__", None)  # of ``python -m``; a script has none
    if module is None:
        program = [Path(sys.argv[0]).name]
    elif module.name == "ggt_lab.cli":
        program = ["ggt"]
    else:
        program = ["python", "-m", module.name.removesuffix(".__main__")]
    return shlex.join([*program, *sys.argv[1:]])


class Results:
    """A JSONL file of finished runs, one line each.

    Args:
        path: the file; it and its folder are made at the first `append`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Record) -> None:
        """Add one run, on disk when this returns."""
        line = json.dumps(record, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line that a kill cut off must not swallow this one
                    file.write(b"\n")
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[Record]:
        """All whole records, each key once; a damaged line is left out with a warning."""
        if not self.path.exists():
            return
        seen = set()
        for number, line in enumerate(self.path.read_bytes().splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError:
                warnings.warn(f"{self.path}:{number} is damaged (cut off by a kill?) and left out", stacklevel=2)
                continue
            if not isinstance(record, dict):
                continue
            key = record.get("key")
            if isinstance(key, str):  # two races at once in one folder run what both were missing
                if key in seen:
                    continue
                seen.add(key)
            yield record

    def finished(self) -> set[str]:
        """The keys of the runs that are there."""
        return {record["key"] for record in self if isinstance(record.get("key"), str)}
