"""Kinds of claims about long runs: each is judged by the curves of all seeds, epoch by epoch.

Runs are grouped by what the optimizer is called (its *entrant*). Means are over seeds; a diverged seed makes a mean
infinite, so that it is never left out. An entrant that was not run leaves a claim undecided, and is named.

More kinds: `ggt_lab.reproduce.courses` (how runs compare along the way) and `ggt_lab.reproduce.seconds`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ggt_lab.reproduce.compare import stdev
from ggt_lab.results import Record
from ggt_lab.verdict import Verdict

__all__ = [
    "AtMost",
    "Claim",
    "Compared",
    "GapAtEnd",
    "LowestAlong",
    "absent",
    "ends",
    "epochs_in_words",
    "mean_curve",
    "mean_curves",
    "not_run",
    "standard_error",
]

Runs = Mapping[str, Sequence[Record]]
"""The full runs of each entrant; one that was not run is not there."""


class Claim(Protocol):
    """Something that full runs show or do not."""

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """Judge it."""
        ...


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


def not_run(claim: str, statement: str, paper: str, reason: str, command: str) -> Verdict:
    """A claim that nothing was run for: n is 0."""
    return Verdict(claim, statement, paper, ours=reason, spread=None, n=0, holds=None, command=command)


def standard_error(own: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the difference of two means; 0 if a value is not finite."""
    if not all(map(math.isfinite, [*own, *theirs])):
        return 0.0
    return math.hypot(stdev(own) / math.sqrt(len(own)), stdev(theirs) / math.sqrt(len(theirs)))


@dataclass(frozen=True)
class LowestAlong:
    """``who`` is below each of ``others`` at every epoch from ``first`` on."""

    claim: str
    who: str
    others: tuple[str, ...]
    key: str
    paper: str
    first: int = 1

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """Count the epochs at which it is, against each."""
        statement = f"{self.who} has the lowest {_words(self.key)} at every epoch from {self.first} on"
        present = [other for other in self.others if not absent(runs, other)]
        if absent(runs, self.who) or not present:
            missing = absent(runs, self.who, *self.others)
            return not_run(self.claim, statement, self.paper, f"not run: {', '.join(missing)}", command)
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
        return Verdict(
            claim=self.claim,
            statement=statement,
            paper=self.paper,
            ours=f"below {'; '.join(parts)}",
            spread=None,
            n=len(runs[self.who]),
            holds=holds,
            command=command,
        )


@dataclass(frozen=True)
class GapAtEnd:
    """``key`` of ``who`` ends below that of ``other`` by at least ``gap`` (negative: above by no more than that)."""

    claim: str
    who: str
    other: str
    key: str
    gap: float
    paper: str

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """Compare means over seeds."""
        sense = f"at least {self.gap:g} below" if self.gap >= 0 else f"at most {-self.gap:g} above"
        statement = f"{_words(self.key)} at the end: {self.who} {sense} {self.other}"
        if missing := absent(runs, self.who, self.other):
            return not_run(self.claim, statement, self.paper, f"not run: {', '.join(missing)}", command)
        own, theirs = (ends(runs[name], self.key) for name in (self.who, self.other))
        difference = statistics.fmean(theirs) - statistics.fmean(own)
        return Verdict(
            claim=self.claim,
            statement=statement,
            paper=self.paper,
            ours=f"{statistics.fmean(own):.4g} against {statistics.fmean(theirs):.4g}: {difference:+.4f} below",
            spread=f"± {2 * standard_error(own, theirs):.4f} (two standard errors)",
            n=len(own),
            holds=difference >= self.gap,
            command=command,
        )


@dataclass(frozen=True)
class AtMost:
    """``key`` of ``who`` is at most ``value`` at some epoch (mean over seeds)."""

    claim: str
    who: str
    key: str
    value: float
    paper: str

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """Look for the best epoch."""
        words = f"{self.who} reaches a {_words(self.key)} of {self.value:g}"
        if absent(runs, self.who):
            return not_run(self.claim, words, self.paper, f"not run: {self.who}", command)
        curve = mean_curve(runs[self.who], self.key)
        epoch = min(curve, key=lambda e: curve[e])
        return Verdict(
            claim=self.claim,
            statement=f"{words} within {max(curve)} epochs",
            paper=self.paper,
            ours=f"{curve[epoch]:.4g} at epoch {epoch}, {curve[max(curve)]:.4g} at the end",
            spread=f"± {stdev(ends(runs[self.who], self.key)):.4f} over seeds at the end",
            n=len(runs[self.who]),
            holds=curve[epoch] <= self.value,
            command=command,
        )


@dataclass(frozen=True)
class Compared:
    """``who`` ends lowest beside optimizers that the paper does not know; no claim of the paper depends on it."""

    claim: str
    who: str
    others: tuple[str, ...]
    key: str

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """Every end, with its difference."""
        statement = f"beyond the paper: {self.who} ends with a lower {_words(self.key)} than {', '.join(self.others)}"
        present = [other for other in self.others if not absent(runs, other)]
        if absent(runs, self.who) or not present:
            missing = ", ".join(absent(runs, self.who, *self.others))
            return not_run(self.claim, statement, "not compared", f"not run: {missing}", command)
        own = ends(runs[self.who], self.key)
        mean = statistics.fmean(own)
        parts, holds = [], True
        for other in present:
            theirs = ends(runs[other], self.key)
            difference = statistics.fmean(theirs) - mean
            holds = holds and difference > 0
            parts.append(
                f"{other} {statistics.fmean(theirs):.4g} ({difference:+.4f} ± {2 * standard_error(own, theirs):.4f})"
            )
        parts += [f"{other} not run" for other in absent(runs, *self.others)]
        return Verdict(
            claim=self.claim,
            statement=statement,
            paper="not compared",
            ours=f"{self.who} {mean:.4g}; {'; '.join(parts)}",
            spread=f"± {stdev(own):.4f} over seeds",
            n=len(own),
            holds=None if holds and absent(runs, *self.others) else holds,
            command=command,
        )


def _words(key: str) -> str:
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
