"""Numbers with units, as people write them: 5.3M parameters, 141 GB, 4.26 TB/s, 20 us."""

import math
import re

__all__ = ["parse_bytes", "parse_count", "parse_seconds", "readable_bytes", "readable_seconds"]

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_BYTES = {
    **{"": 1.0, "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    **{"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def parse_count(text: str, what: str = "parameters") -> int:
    """A whole number from 1 on.

    Example:
        >>> parse_count("5.3M"), parse_count("7B"), parse_count("7e9"), parse_count("300")
        (5300000, 7000000000, 7000000000, 300)
    """
    value = _parse(text, what, _COUNTS, 'a number such as 300, "5.3M", "7B" or 7e9')
    if value < 1 or not math.isclose(value, round(value), rel_tol=1e-12):
        raise ValueError(f"{what} must be a whole number from 1 on, got {text!r}")
    return round(value)


def parse_bytes(text: str, what: str, *, per_second: bool = False) -> float:
    """Bytes, or bytes per second. The suffix /s may be left out.

    Example:
        >>> parse_bytes("141 GB", "memory"), parse_bytes("4.26TB/s", "bandwidth", per_second=True)
        (141000000000.0, 4260000000000.0)
    """
    example = '"4.26TB/s"' if per_second else '"80GB" or "80GiB"'
    plain = text.strip().removesuffix("/s") if per_second else text
    value = _parse(plain, what, _BYTES, f"a number of bytes such as {example}", given=text)
    if value <= 0:
        raise ValueError(f"{what} must be positive, got {text!r}")
    return value


def parse_seconds(text: str, what: str) -> float:
    """Seconds.

    Example:
        >>> parse_seconds("2.5 ms", "latency")
        0.0025
    """
    return _parse(text, what, _SECONDS, 'a time with its unit, such as "20us"')


def _parse(text: str, what: str, units: dict[str, float], example: str, given: str | None = None) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{what} must be {example}, got {text if given is None else given!r}; units are {known}")
    value = float(match[1]) * units[match[2]]
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite, got {text!r}")
    return value


def readable_bytes(count: float) -> str:
    """Three digits and a unit.

    Example:
        >>> readable_bytes(2.12e9)
        '2.12 GB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def readable_seconds(seconds: float) -> str:
    """Three digits and a unit.

    Example:
        >>> readable_seconds(0.00145), readable_seconds(2.5e-5), readable_seconds(0)
        ('1.45 ms', '25 us', '0 us')
    """
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"
