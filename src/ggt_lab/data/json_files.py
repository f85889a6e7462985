"""JSON files that a kill, a disk or a person may have damaged: every flaw is said in words, with its place.

All files of results are read here. `read_object` reads a file that holds one object, `read_lines` a file with an object
in each line. Both refuse what would fail later: NaN, numbers beyond float64, text that is not UTF-8, deep nesting, and
paths that are no regular files. `flaw` compares an object with its shape.
"""

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "AT_LEAST_1",
    "BOOL_OR_NONE",
    "COUNT",
    "LIST",
    "NUMBER",
    "NUMBERS",
    "OBJECT",
    "OBJECTS",
    "POSITIVE",
    "TEXT",
    "WHOLE",
    "Kind",
    "Line",
    "flaw",
    "given",
    "one_of",
    "optional",
    "read_lines",
    "read_list",
    "read_object",
    "regular_bytes",
    "there",
]

_DEEPEST = 64
_LONGEST_SHOWN = 60


class Kind(NamedTuple):
    """What a value should be: a test, and the words for it."""

    test: Callable[[Any], bool]
    words: str


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TEXT = Kind(lambda value: isinstance(value, str), "a text")
NUMBER = Kind(_is_number, "a finite number")
POSITIVE = Kind(lambda value: _is_number(value) and value > 0, "a positive number")
WHOLE = Kind(_is_whole, "a whole number")
COUNT = Kind(lambda value: _is_whole(value) and value >= 0, "a whole number that is not negative")
AT_LEAST_1 = Kind(lambda value: _is_whole(value) and value >= 1, "a whole number of at least 1")
LIST = Kind(lambda value: isinstance(value, list), "a list")
OBJECT = Kind(lambda value: isinstance(value, dict), "an object")
OBJECTS = Kind(lambda value: LIST.test(value) and all(isinstance(each, dict) for each in value), "a list of objects")
NUMBERS = Kind(lambda value: LIST.test(value) and all(map(_is_number, value)), "a list of finite numbers")
BOOL_OR_NONE = Kind(lambda value: value is None or isinstance(value, bool), "true, false or null")


def one_of(*allowed: str) -> Kind:
    """One of these texts."""
    return Kind(lambda value: isinstance(value, str) and value in allowed, f"one of {', '.join(allowed)}")


def optional(kind: Kind) -> Kind:
    """The kind, or null; a key of such a kind may also be missing."""
    return Kind(lambda value: value is None or kind.test(value), f"{kind.words}, or null")


class _Given(Kind):
    """A kind of which the key may be missing."""


def given(kind: Kind) -> Kind:
    """The kind, where the key is there; it may be missing."""
    return _Given(*kind)


def flaw(content: Mapping[str, Any], shape: Mapping[str, Kind]) -> str | None:
    """How an object differs from a shape; None if it does not. Keys beyond the shape are allowed.

    Example:
        >>> shape = {"lr": POSITIVE, "steps": optional(COUNT)}
        >>> flaw({"lr": 0.1, "more": 1}, shape)
        >>> flaw({"lr": "big"}, shape), flaw({}, shape)
        ("its lr is 'big', and should be a positive number", 'it has no lr')
    """
    missing = [
        key
        for key, kind in shape.items()
        if key not in content and not isinstance(kind, _Given) and not kind.test(None)
    ]
    if missing:
        return f"it has no {', '.join(missing)}"
    for key, kind in shape.items():
        if key in content and not kind.test(content[key]):
            return f"its {key} is {_shown(content[key])}, and should be {kind.words}"
    return None


def _shown(value: object) -> str:
    words = repr(value)
    return words if len(words) <= _LONGEST_SHOWN else f"{words[:_LONGEST_SHOWN]}…"


def there(path: Path) -> bool:
    """Whether something has this name, be it a link that leads nowhere."""
    return os.path.lexists(path)


def regular_bytes(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is a folder, a pipe or a device, which could be read for ever.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError("it is a folder, not a file" if stat.S_ISDIR(mode) else "it is not a regular file")
    try:
        return path.read_bytes()
    except OSError as error:  # an error of a disk comes without the name
        raise OSError(error.errno, error.strerror, str(path)) from None


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: the file holds something else; the message says what, and where.
        OSError: the file cannot be read.
    """
    content = _parse(regular_bytes(path))
    if not isinstance(content, dict):
        raise ValueError(f"it should hold one JSON object, and holds {_shown(content)}")
    return content


def read_list(path: Path) -> list[dict[str, Any]]:
    """The objects of the list in a JSON file.

    Raises:
        ValueError: the file holds something else.
        OSError: the file cannot be read.
    """
    content = _parse(regular_bytes(path))
    if not OBJECTS.test(content):
        raise ValueError(f"it should hold a JSON list of objects, and holds {_shown(content)}")
    return list(content)


class Line(NamedTuple):
    """A line of a file with an object in each line."""

    number: int
    """Lines count from 1."""
    content: dict[str, Any] | None
    """The object; None if the line holds none."""
    flaw: str
    """What is wrong with the line."""


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that holds a JSON object in each line. Empty lines are left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a regular file.
    """
    for number, line in enumerate(regular_bytes(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            content = _parse(line)
        except ValueError as error:
            yield Line(number, None, str(error))
            continue
        if isinstance(content, dict):
            yield Line(number, content, "")
        else:
            yield Line(number, None, f"it should hold one JSON object, and holds {_shown(content)}")


def _parse(raw: bytes) -> Any:  # noqa: ANN401 - any JSON
    try:
        text = raw.decode("utf-8-sig")  # an editor may have put a byte-order mark in front
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start + 1})") from None
    try:
        content = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    _check_depth(content)
    if "\\ud" in text.lower():  # half of a pair of escapes has no UTF-8 and could be neither printed nor written
        content = json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
    return content


def _refuse(word: str) -> Any:  # noqa: ANN401
    raise ValueError(f"it holds {word}, which is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {_shown(digits)} is too large")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > 300:  # about 1e308 is the largest float
        raise ValueError(f"the number {_shown(digits)} is too large")
    return int(digits)


def _check_depth(content: Any) -> None:  # noqa: ANN401
    level = [content]
    for _ in range(_DEEPEST):
        level = [
            each
            for value in level
            if isinstance(value, dict | list)
            for each in (value.values() if isinstance(value, dict) else value)
            if isinstance(each, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")
