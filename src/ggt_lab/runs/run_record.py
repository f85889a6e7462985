"""The record of a run with a curve: its shape, and what is wrong with one that has another shape."""

from collections.abc import Mapping
from typing import Any

from ggt_lab.data.json_files import (
    AT_LEAST_1,
    BOOL_OR_NONE,
    NUMBER,
    NUMBERS,
    OBJECT,
    OBJECTS,
    POSITIVE,
    TEXT,
    WHOLE,
    Kind,
    flaw,
    given,
    one_of,
    optional,
)

__all__ = ["run_flaw"]

_SHAPE = {
    "problem": TEXT,
    "optimizer": TEXT,
    "lr": POSITIVE,
    "seed": WHOLE,
    "metric": TEXT,
    "status": one_of("done", "diverged"),
    "curve": OBJECTS,
    "steps": optional(AT_LEAST_1),
    "epochs": optional(AT_LEAST_1),
    "device": optional(TEXT),
    "schedule": optional(TEXT),
    "larger_is_better": BOOL_OR_NONE,
    "environment": optional(OBJECT),
}
_PAIRS = Kind(
    lambda value: isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value),
    "a list of pairs",
)
_LONG = {"settings": _PAIRS, "setup": given(OBJECT), "early": optional(OBJECTS), "spectrum": optional(OBJECT)}
_SPECTRUM = {"file": TEXT, "steps": NUMBERS, "conditions": NUMBERS, "isotropic": NUMBER}
_KEYS_OF_RUNS = ('{"device"', '["long"')  # how the keys of races and of long runs begin


def run_flaw(record: Mapping[str, Any]) -> str | None:
    """Why a record cannot be used as a run with a curve; None if it can, or if it is no such record.

    Example:
        >>> run_flaw({"curve": [], "problem": "p", "optimizer": "SGD", "lr": 1, "metric": "loss", "status": "done"})
        'it has a curve, and no seed'
        >>> run_flaw({"key": "another kind of record"})
    """
    if "curve" not in record:
        return "it is a run, and has no curve" if str(record.get("key")).startswith(_KEYS_OF_RUNS) else None
    found = flaw(record, _SHAPE)
    if found is not None:
        return found.replace("it has no", "it has a curve, and no", 1)
    if str(record.get("key")).startswith('["long"'):
        found = flaw(record, _LONG)
        if found is None and record.get("spectrum"):
            found = flaw(record["spectrum"], _SPECTRUM)
        if found is not None:
            return found
    if record["status"] == "done" and not record["curve"]:
        return "it is done, but its curve is empty"
    needed = ("step", "seconds", record["metric"])
    for point in record["curve"]:
        if not all(NUMBER.test(point.get(key)) for key in needed) or not all(map(NUMBER.test, point.values())):
            return f"not every point of its curve has finite numbers {', '.join(needed)} and nothing but numbers"
    return None
