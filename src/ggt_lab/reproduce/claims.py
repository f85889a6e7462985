"""Kinds of claims about long runs: each is judged by the curves of all seeds, epoch by epoch.

Runs are grouped by what the optimizer is called (its *entrant*). Means are over seeds; a diverged seed makes a mean
infinite, so that it is never left out. An entrant that was not run leaves a claim undecided, and is named.

More kinds: `ggt_lab.reproduce.courses` (how runs compare along the way) and `ggt_lab.reproduce.seconds`.
"""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggt_lab.reproduce.compare import stdev
from ggt_lab.results import Record
from ggt_lab.verdict import Verdict

__all__ = [
    "AtMost",
    "Claim",
    "Compared",
    "Finding",
    "GapAtEnd",
    "LowestAlong",
    "absent",
    "ends",
    "epochs_in_words",
    "in_words",
    "mean_curve",
    "mean_curves",
    "nothing_run",
    "standard_error",
]

Runs = Mapping[str, Sequence[Record]]
"""The full runs of each entrant; one that was not run is not there."""


@dataclass(frozen=True)
class Finding:
    """What runs say about a claim: the part of its `Verdict` that comes from them."""

    statement: str
    ours: str
    n: int
    holds: bool | None
    spread: str | None = None


class Claim(ABC):
    """Something that full runs show or do not. Its kinds are dataclasses that have these two among their fields."""

    claim: str
    paper: str

    @abstractmethod
    def judge(self, runs: Runs) -> Finding:
        """What these runs say."""

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """The same, with what is claimed and what makes these runs again."""
        return Verdict(claim=self.claim, paper=self.paper, command=command, **vars(self.judge(runs)))


def nothing_run(statement: str, missing: Sequence[str]) -> Finding:
    """What can be said without the runs of these."""
    return Finding(statement, f"not run: {', '.join(missing)}", n=0, holds=None)


def mean_curves(runs: Runs, names: Sequence[str], key: str) -> dict[str, dict[int, float]]:
    """The mean curve of each, all as long as the longest: whoever diverged is infinite from there on."""
    last = max(point["epoch"] for name in names for record in runs[name] for point in record["curve"])
    return {name: mean_curve(runs[name], key, last=last) for name in names}


def mean_curve(records: Sequence[Record], key: str, *, last: int | None = None) -> dict[int, float]:
    """Mean over seeds of a number, by epoch up to ``last``; infinite from where a seed diverged.

    Epochs without it are left out.
    """
    if last is None:
        last = max(point["epoch"] for record in records for point in record["curve"])
    curve = {}
    for epoch in range(last + 1):
        values = [_at(record, epoch, key) for record in records]
        if not any(math.isnan(value) for value in values):
            curve[epoch] = statistics.fmean(values)
    return curve


def ends(records: Sequence[Record], key: str) -> list[float]:
    """A number at the end of each seed's run; infinite for one that diverged."""
    return [float(r["curve"][-1][key]) if r["status"] == "done" else math.inf for r in records]


def _at(record: Record, epoch: int, key: str) -> float:
    point = next((point for point in record["curve"] if point["epoch"] == epoch), None)
    if point is None:
        return math.inf if record["status"] != "done" else math.nan
    return float(point.get(key, math.nan))


def absent(runs: Runs, *names: str) -> list[str]:
    """Those that were not run."""
    return [name for name in names if not runs.get(name)]


def standard_error(own: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the difference of two means: infinite of single values, 0 if a value is not finite, which decides alone."""
    if not all(map(math.isfinite, [*own, *theirs])):
        return 0.0
    if min(len(own), len(theirs)) < 2:
        return math.inf
    return math.hypot(stdev(own) / math.sqrt(len(own)), stdev(theirs) / math.sqrt(len(theirs)))


def _plus_minus(error: float) -> str:
    return f"± {error:.4f}" if math.isfinite(error) else "± unknown"


@dataclass(frozen=True)
class LowestAlong(Claim):
    """``who`` is below each of ``others`` at every epoch from ``first`` on."""

    claim: str
    who: str
    others: tuple[str, ...]
    key: str
    paper: str
    first: int = 1

    def judge(self, runs: Runs) -> Finding:
        """Count the epochs at which it is, against each."""
        than = f"{in_words(self.key)} than {', '.join(self.others)}"
        statement = f"{self.who} has a lower {than} at every epoch from {self.first} on"
        present = [other for other in self.others if not absent(runs, other)]
        if absent(runs, self.who) or not present:
            return nothing_run(statement, absent(runs, self.who, *self.others))
        curves = mean_curves(runs, [self.who, *present], self.key)
        own = curves[self.who]
        epochs = [epoch for epoch in own if epoch >= self.first]
        parts: list[str] = []
        holds: bool | None = None if absent(runs, *self.others) else True
        for other in present:
            losing = [epoch for epoch in epochs if not own[epoch] < curves[other].get(epoch, math.inf)]
            holds = False if losing else holds
            where = f", not at {epochs_in_words(losing)}" if losing else ""
            parts.append(f"{other}: {len(epochs) - len(losing)} of {len(epochs)} epochs{where}")
        parts += [f"{other}: not run" for other in absent(runs, *self.others)]
        return Finding(
            statement=statement,
            ours=f"below {'; '.join(parts)}",
            n=len(runs[self.who]),
            holds=holds,
        )


@dataclass(frozen=True)
class GapAtEnd(Claim):
    """``key`` of ``who`` ends below that of ``other`` by at least ``gap`` (negative: above by no more than that)."""

    claim: str
    who: str
    other: str
    key: str
    gap: float
    paper: str

    def judge(self, runs: Runs) -> Finding:
        """Compare means over seeds. If that they differ by so much may be chance, it is not decided."""
        sense = f"at least {self.gap:g} below" if self.gap >= 0 else f"at most {-self.gap:g} above"
        statement = f"{in_words(self.key)} at the end: {self.who} {sense} {self.other}"
        if missing := absent(runs, self.who, self.other):
            return nothing_run(statement, missing)
        own, theirs = (ends(runs[name], self.key) for name in (self.who, self.other))
        difference, error = statistics.fmean(theirs) - statistics.fmean(own), 2 * standard_error(own, theirs)
        in_doubt = difference - error < self.gap <= difference
        return Finding(
            statement=statement,
            ours=f"{statistics.fmean(own):.4g} against {statistics.fmean(theirs):.4g}: {difference:+.4f} below",
            spread=f"{_plus_minus(error)} (two standard errors)",
            n=len(own),
            holds=None if in_doubt else difference >= self.gap,
        )


@dataclass(frozen=True)
class AtMost(Claim):
    """``key`` of ``who`` is at most ``value`` at some epoch (mean over seeds)."""

    claim: str
    who: str
    key: str
    value: float
    paper: str

    def judge(self, runs: Runs) -> Finding:
        """Look for the best epoch."""
        words = f"{self.who} reaches a {in_words(self.key)} of {self.value:g}"
        if absent(runs, self.who):
            return nothing_run(words, [self.who])
        curve = mean_curve(runs[self.who], self.key)
        epoch = min(curve, key=lambda e: curve[e])
        return Finding(
            statement=f"{words} within {max(curve)} epochs",
            ours=f"{curve[epoch]:.4g} at epoch {epoch}, {curve[max(curve)]:.4g} at the end",
            spread=f"± {stdev(ends(runs[self.who], self.key)):.4f} over seeds at the end",
            n=len(runs[self.who]),
            holds=curve[epoch] <= self.value,
        )


@dataclass(frozen=True)
class Compared(Claim):
    """``who`` ends below each of ``others``, as the paper does not say; no claim of its depends on it."""

    claim: str
    who: str
    others: tuple[str, ...]
    key: str
    paper: str = "not compared"

    def judge(self, runs: Runs) -> Finding:
        """Every end, with its difference; one that may be chance leaves it undecided."""
        statement = f"beyond the paper: {self.who} ends with a lower {in_words(self.key)} than {', '.join(self.others)}"
        present = [other for other in self.others if not absent(runs, other)]
        if absent(runs, self.who) or not present:
            return nothing_run(statement, absent(runs, self.who, *self.others))
        own = ends(runs[self.who], self.key)
        mean = statistics.fmean(own)
        parts: list[str] = []
        holds: bool | None = None if absent(runs, *self.others) else True
        for other in present:
            theirs = ends(runs[other], self.key)
            end = statistics.fmean(theirs)
            difference, error = end - mean, 2 * standard_error(own, theirs)
            if not difference > 0:  # nor if both diverged
                holds = False
            elif difference <= error and holds:
                holds = None
            words = f"{end:.4g} ({difference:+.4f} {_plus_minus(error)})" if math.isfinite(end) else "diverged"
            parts.append(f"{other} {words}")
        parts += [f"{other} not run" for other in absent(runs, *self.others)]
        return Finding(
            statement=statement,
            ours=f"{self.who} {mean:.4g}; {'; '.join(parts)}",
            spread=f"± {stdev(own):.4f} over seeds",
            n=len(own),
            holds=holds,
        )


def in_words(key: str) -> str:
    """The name of a number as people write it."""
    return key.replace("_", " ")


def epochs_in_words(epochs: Sequence[int]) -> str:
    """Ranges of epochs.

    Example:
        >>> epochs_in_words([3, 5, 6, 7])
        '3, 5–7'
    """
    words: list[str] = []
    start = previous = epochs[0]
    for epoch in [*epochs[1:], None]:
        if epoch is not None and epoch == previous + 1:
            previous = epoch
            continue
        words.append(f"{start}" if start == previous else f"{start}–{previous}")
        if epoch is not None:
            start = previous = epoch
    return ", ".join(words)
