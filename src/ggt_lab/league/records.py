"""The records of a league as they are read: a line that cannot be used is left out, and a warning names it."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from ggt_lab.data.json_files import (
    AT_LEAST_1,
    COUNT,
    NUMBER,
    OBJECT,
    OBJECTS,
    POSITIVE,
    TEXT,
    Kind,
    flaw,
    one_of,
    optional,
    read_lines,
    there,
)
from ggt_lab.runs.results import Record

__all__ = ["read_runs", "read_times"]

_AGES = 1e9
"""Seconds: no run takes thirty years."""
_POINTS = Kind(
    lambda value: OBJECTS.test(value) and all("step" in p and all(map(NUMBER.test, p.values())) for p in value),
    "a list of points, each with its step and nothing but finite numbers",
)
_RUN = {
    "key": TEXT,
    "task": TEXT,
    "entrant": TEXT,
    "device": TEXT,
    "status": one_of("done", "diverged"),
    "skipped": COUNT,
    "steps": AT_LEAST_1,
    "points": _POINTS,
    "cost_s": Kind(lambda value: NUMBER.test(value) and 0 <= value <= _AGES, "a number of seconds"),
    "environment": optional(OBJECT),
}
_SECONDS = Kind(
    lambda value: isinstance(value, dict) and all(map(POSITIVE.test, value.values())),
    "a positive number of seconds for each entrant",
)
_TIMES = {"key": TEXT, "task": TEXT, "step_seconds": _SECONDS}


def read_runs(path: Path, lacking: Callable[[Record], str]) -> dict[str, Record]:
    """The finished runs of a file, by key.

    Args:
        path: the file.
        lacking: the numbers that a run should have and does not have, in words; empty if it has all of them.
    """

    def wrong(record: Record) -> str | None:
        found = flaw(record, _RUN)
        if found is None and record["status"] == "done":
            end = record["points"][-1]["step"] if record["points"] else None
            if end != record["steps"]:
                return f"it is done, and its last point is at step {end} of {record['steps']}"
        if found is None and (numbers := lacking(record)):
            return f"not every point of it has {numbers}"
        return found

    return {record["key"]: record for record in _read(path, wrong)}


def read_times(path: Path) -> dict[str, Record]:
    """The records of step times of a file, by key."""
    return {record["key"]: record for record in _read(path, lambda record: flaw(record, _TIMES))}


def _read(path: Path, wrong: Callable[[Record], str | None]) -> Iterator[Record]:
    """The records of a file, each key once: the first line that can be used counts.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a regular file.
    """
    try:
        lines = list(read_lines(path)) if there(path) else []
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    seen = set()
    for number, record, damage in lines:
        found = damage if record is None else wrong(record)
        if found:
            warnings.warn(f"{path}:{number} is left out: {found}", stacklevel=2)
        elif record is not None and record["key"] not in seen:
            seen.add(record["key"])
            yield record
