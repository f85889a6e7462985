"""Kinds of claims about long runs: each is judged by the curves of all seeds, epoch by epoch.

Runs are grouped by what the optimizer is called (its *entrant*). Means are over seeds; a diverged seed makes a mean
infinite, so that it is never left out.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ggt_lab.reproduce.compare import stdev
from ggt_lab.results import Record
from ggt_lab.verdict import Verdict

__all__ = ["AtMost", "Claim", "GapAtEnd", "LowestAlong", "ends", "mean_curve"]

Runs = Mapping[str, Sequence[Record]]
"""The full runs of each entrant."""


class Claim(Protocol):
    """Something that full runs show or do not."""

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """Judge it."""
        ...


def mean_curve(records: Sequence[Record], key: str) -> dict[int, float]:
    """Mean over seeds of a number, by epoch; infinite from where a seed diverged. Epochs without it are left out."""
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
        own = mean_curve(runs[self.who], self.key)
        epochs = [epoch for epoch in own if epoch >= self.first]
        parts, holds = [], True
        for other in self.others:
            theirs = mean_curve(runs[other], self.key)
            losing = [epoch for epoch in epochs if not own[epoch] < theirs[epoch]]
            holds = holds and not losing
            where = f", not at {_ranges(losing)}" if losing else ""
            parts.append(f"{other}: {len(epochs) - len(losing)} of {len(epochs)} epochs{where}")
        words = self.key.replace("_", " ")
        return Verdict(
            claim=self.claim,
            statement=f"{self.who} has the lowest {words} at every epoch from {self.first} on",
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
        own, theirs = (ends(runs[name], self.key) for name in (self.who, self.other))
        difference = statistics.fmean(theirs) - statistics.fmean(own)
        finite = all(map(math.isfinite, own + theirs))
        error = math.hypot(stdev(own) / math.sqrt(len(own)), stdev(theirs) / math.sqrt(len(theirs))) if finite else 0.0
        sense = f"at least {self.gap:g} below" if self.gap >= 0 else f"at most {-self.gap:g} above"
        return Verdict(
            claim=self.claim,
            statement=f"{self.key.replace('_', ' ')} at the end: {self.who} {sense} {self.other}",
            paper=self.paper,
            ours=f"{statistics.fmean(own):.4g} against {statistics.fmean(theirs):.4g}: {difference:+.4f} below",
            spread=f"± {2 * error:.4f} (two standard errors)",
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
        curve = mean_curve(runs[self.who], self.key)
        epoch = min(curve, key=lambda e: curve[e])
        return Verdict(
            claim=self.claim,
            statement=f"{self.who} reaches a {self.key.replace('_', ' ')} of {self.value:g} within {max(curve)} epochs",
            paper=self.paper,
            ours=f"{curve[epoch]:.4g} at epoch {epoch}, {curve[max(curve)]:.4g} at the end",
            spread=f"± {stdev(ends(runs[self.who], self.key)):.4f} over seeds at the end",
            n=len(runs[self.who]),
            holds=curve[epoch] <= self.value,
            command=command,
        )


def _ranges(epochs: Sequence[int]) -> str:
    """3, 5-7."""
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
