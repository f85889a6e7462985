"""Statistics over seeds: spreads, differences seed by seed, and whether a difference is more than chance."""

import math
import statistics
from collections.abc import Sequence

from ggt_lab.experiments.verdicts import Verdict
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import Standing, measure
from ggt_lab.runs.student import half_interval

FEWEST = 5
"""With fewer seeds nothing is decided."""

__all__ = ["FEWEST", "gaps", "is_negative", "lacks_seeds", "runs_of", "stdev", "why_open"]


def runs_of(records: Sequence[Record], standing: Standing) -> list[Record]:
    """The runs of an optimizer at its best learning rate, in the order of seeds."""
    chosen = [r for r in records if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
    return sorted(chosen, key=lambda record: int(record["seed"]))


def gaps(records: Sequence[Record], by: str, one: Standing, other: Standing) -> list[float]:
    """The measure of ``one`` minus the measure of ``other``, seed by seed: negative where ``one`` did better."""
    pairs = zip(runs_of(records, one), runs_of(records, other), strict=True)
    return [measure(first, by) - measure(second, by) for first, second in pairs]


def stdev(values: Sequence[float]) -> float:
    """The standard deviation: 0 for a single value, infinite if a value is not finite because a seed diverged."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return statistics.stdev(values) if len(values) > 1 else 0.0


def why_open(holds: bool | None, n: int) -> str:
    """The reason why a verdict is undecided, to be put behind its figure, if it is the small number of seeds.

    Example:
        >>> why_open(None, 3), why_open(None, 5), why_open(True, 3)
        ('; undecided: 3 seeds, and 5 are the fewest that decide', '', '')
    """
    if holds is not None or n >= FEWEST:
        return ""
    return f"; undecided: {n} seed{'s' if n != 1 else ''}, and {FEWEST} are the fewest that decide"


def lacks_seeds(verdict: Verdict) -> bool:
    """Whether a verdict is undecided for the reason of `why_open`."""
    why = why_open(verdict.holds, verdict.n)
    return bool(why) and verdict.ours.endswith(why)


def is_negative(values: Sequence[float]) -> bool | None:
    """Whether the mean is below zero (True) or above (False), by Student's test at 95 %.

    None means that the values do not decide. Fewer than five values never decide, nor do values that are not finite.

    Example:
        >>> is_negative([-1.0, -1.1, -0.9, -1.0, -1.2]), is_negative([-1.0, -1.1])
        (True, None)
    """
    if len(values) < FEWEST or not all(map(math.isfinite, values)):
        return None
    mean = statistics.fmean(values)
    return mean < 0 if abs(mean) > half_interval(stdev(values), len(values)) else None
