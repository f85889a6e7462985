"""Comparisons seed by seed, which several experiments make."""

import math
import statistics
from collections.abc import Sequence

from ggt_lab.race import Standing, measure
from ggt_lab.results import Record

__all__ = ["gaps", "is_negative", "runs_of", "stdev"]


def runs_of(records: Sequence[Record], standing: Standing) -> list[Record]:
    """The runs of an optimizer at its best learning rate, by seed."""
    chosen = [r for r in records if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
    return sorted(chosen, key=lambda record: int(record["seed"]))


def gaps(records: Sequence[Record], by: str, one: Standing, other: Standing) -> list[float]:
    """By seed, the measure of ``one`` minus that of ``other``: negative where ``one`` did better."""
    pairs = zip(runs_of(records, one), runs_of(records, other), strict=True)
    return [measure(first, by) - measure(second, by) for first, second in pairs]


def stdev(values: Sequence[float]) -> float:
    """The standard deviation; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def is_negative(values: Sequence[float]) -> bool | None:
    """Whether the mean is below zero by two standard errors (True) or above (False); None: these values do not decide.

    Example:
        >>> is_negative([-1.0, -1.1, -0.9]), is_negative([1.0, 1.1]), is_negative([-1.0, 1.0])
        (True, False, None)
    """
    mean, error = statistics.fmean(values), stdev(values) / math.sqrt(len(values))
    return mean < 0 if abs(mean) > 2 * error else None
