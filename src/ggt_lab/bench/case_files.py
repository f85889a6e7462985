"""Files of measured cases: one JSON object per case, read back from folders of records."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ggt_lab.bench.cases import KINDS
from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.data.json_files import AT_LEAST_1, OBJECT, POSITIVE, TEXT, Kind, flaw, given, one_of, optional, read_object
from ggt_lab.runs.results import Record

__all__ = ["TOGETHER", "case_flaw", "existing_folders", "read_cases", "write_together"]

TOGETHER = "cases"
"""The key of the records in a file that holds several cases."""


def write_together(records: Sequence[Record], file: Path) -> None:
    """Write several cases into one file, which `read_cases` reads as it reads a file for each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps({TOGETHER: list(records)}, indent=1) + "\n")


def read_cases(folders: Iterable[Path]) -> list[Record]:
    """The measured cases below these folders, in the order of file names; of two files on one case the later counts.

    A file that is no case is left out. So is a damaged file, and a warning names it.
    """
    return list({each["case"]: each for each in _cases(folders)}.values())


def _cases(folders: Iterable[Path]) -> Iterator[Record]:
    for folder in folders:
        for file in sorted(folder.rglob("*.json")):
            try:
                found = read_object(file)
            except (OSError, ValueError) as error:
                if not _holds_a_list(error):
                    warnings.warn(f"{file} is left out: {error}", stacklevel=3)
                continue
            together = found.get(TOGETHER)
            for each in together if isinstance(together, list) else [found]:
                if not isinstance(each, dict) or "case" not in each or "kind" not in each:
                    continue
                wrong = case_flaw(each)
                if wrong is None:
                    yield each
                else:
                    warnings.warn(f"{file} is left out: {wrong}", stacklevel=3)


def _holds_a_list(error: Exception) -> bool:
    """Whether a file is sound JSON, only no object: such a file is no case, and nothing is wrong with it."""
    return "should hold one JSON object" in str(error)


def _is_timing(value: object) -> bool:
    names = ("median_ms", "mean_ms", "low_ms", "high_ms", "calls")
    return isinstance(value, dict) and all(POSITIVE.test(value.get(name)) for name in names)


_CASE = {
    "case": TEXT,
    "kind": one_of(*KINDS),
    "status": TEXT,
    "options": OBJECT,
    "device": TEXT,
    "copy_bandwidth": given(POSITIVE),
    "environment": given(OBJECT),
    "error": given(TEXT),
}
_NAMED_NUMBERS = Kind(
    lambda value: isinstance(value, dict) and all(map(POSITIVE.test, value.values())), "an object of positive numbers"
)
_TIMES = Kind(
    lambda value: isinstance(value, dict) and all(map(_is_timing, value.values())), "an object of times of steps"
)
_TIMING = Kind(_is_timing, "the times of a step")
_MAYBE_TIMING = Kind(lambda value: not isinstance(value, dict) or _is_timing(value), "the times of a step, or words")
_PROFILE = Kind(
    lambda value: not isinstance(value, dict) or _NAMED_NUMBERS.test(value.get("us", {})), "a profile, or words"
)
_MEMBER = {"replaces": TEXT, "ms": POSITIVE, "replaced_ms": POSITIVE, "ratio": POSITIVE}
_MEMBERS = Kind(
    lambda value: (
        isinstance(value, dict)
        and all(isinstance(each, dict) and flaw(each, _MEMBER) is None for each in value.values())
    ),
    "an object of members, each with its times",
)
_STEP = {
    "d": AT_LEAST_1,
    "r": optional(AT_LEAST_1),
    "dtype": optional(TEXT),
    "scope": TEXT,
    "floor_ms": optional(POSITIVE),
    "eager": _TIMING,
    "launches": _PROFILE,
    "graph": _MAYBE_TIMING,
    "captured": _MAYBE_TIMING,
}
_RESULTS: Mapping[str, Mapping[str, Kind]] = {
    "steps": {**_STEP, "r": AT_LEAST_1, "dtype": TEXT, "floor_ms": POSITIVE},
    "scopes": _STEP,
    "baselines": _STEP,
    "paper": {"d": AT_LEAST_1, "r": AT_LEAST_1, "times": _TIMES},
    "training": {"model": TEXT, "mode": TEXT, "times": _TIMES, "over_SGD": _NAMED_NUMBERS},
    "members": {"model": TEXT, "r": AT_LEAST_1, "dtype": TEXT, "members": _MEMBERS},
    "root": {"r": AT_LEAST_1, "batch": AT_LEAST_1},
    "kernels": {"d": AT_LEAST_1, "r": AT_LEAST_1, "dtype": TEXT, "floor_of_one_pass_ms": POSITIVE},
    "host": {"d": AT_LEAST_1, "r": AT_LEAST_1, "dtype": TEXT, "floor_ms": POSITIVE, "times": _TIMES},
    "cpu": {"times": optional(_TIMES)},
}
_COMPARED_WITH = {"training": "SGD", "paper": "GGT float32"}


def case_flaw(record: Mapping[str, Any]) -> str | None:
    """Why the record of a case cannot be used; None if it can.

    Example:
        >>> case_flaw({"case": "step_d5", "kind": "steps", "status": "done", "options": {}, "device": "cpu"})
        'it is done, and has no result'
    """
    found = flaw(record, _CASE)
    if found is not None or record["status"] != "done":
        return found
    result = record.get("result")
    if not isinstance(result, dict):
        return "it is done, and has no result"
    found = flaw(result, _RESULTS[record["kind"]]) or _flaw_of_kind(record["kind"], result)
    if found is not None:
        return f"of its result: {found}"
    if record["kind"] not in ("steps", "scopes", "baselines"):
        return None
    found = flaw(record["options"], {"optimizer": TEXT})
    if found is not None:
        return f"of its options: {found}"
    return flaw(record, {"copy_bandwidth": POSITIVE}) if record["device"] == "cuda" else None


def _flaw_of_kind(kind: str, result: Mapping[str, Any]) -> str | None:
    """What no table of keys can say."""
    times = result.get("times") or {}
    if kind in _COMPARED_WITH and _COMPARED_WITH[kind] not in times:
        return f"its times have no {_COMPARED_WITH[kind]}"
    untimed = [name for name in result.get("over_SGD", ()) if kind == "training" and name not in times]
    if untimed:
        return f"its times have no {', '.join(untimed)}"
    if kind == "cpu" and "W v" in times:
        return flaw(result, {"d": AT_LEAST_1, "r": AT_LEAST_1, "dtype": TEXT}) or flaw(times, {"WT c": _TIMING})
    if kind == "cpu" and "members" in result:
        return flaw(result, _RESULTS["members"])
    best = [value for key, value in result.items() if kind == "kernels" and key.startswith("best ")]
    if not all(isinstance(each, dict) and POSITIVE.test(each.get("ms")) for each in best):
        return "not every best variant has a time"
    return None


def existing_folders(folders: Sequence[Path]) -> Sequence[Path]:
    """The folders themselves.

    Raises:
        ValueError: one of them does not exist.
    """
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ValueError(f"no such folder of records: {', '.join(missing)}")
    return folders
