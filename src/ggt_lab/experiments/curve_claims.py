"""Claims about all epochs of long runs: who is lowest, who leads at first, who is alike, who gains from a decay."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggt_lab.experiments.claim import (
    AgainstOthers,
    Claim,
    Contest,
    Finding,
    Runs,
    absent,
    in_words,
    listed,
    mean_curves,
    nothing_run,
)

__all__ = ["AlikeAlong", "EarlyLead", "FastestAfterDecays", "LowestAlong", "epochs_in_words"]

Curve = Mapping[int, float]


@dataclass(frozen=True)
class LowestAlong(AgainstOthers):
    """``who`` is below each of ``others`` at every epoch from ``first`` on."""

    first: int = 1

    def statement(self) -> str:
        """What is claimed."""
        return f"{self.who} has a lower {in_words(self.key)} than {listed(self.others)} from epoch {self.first} on"

    def introduction(self, runs: Runs) -> str:
        """The words before all comparisons."""
        del runs
        return "lower "

    def compare(self, runs: Runs, present: Sequence[str]) -> dict[str, tuple[str, bool | None]]:
        """Count the epochs at which ``who`` is below each of the others."""
        curves = mean_curves(runs, [self.who, *present], self.key)
        own = curves[self.who]
        epochs = [epoch for epoch in own if epoch >= self.first]
        found: dict[str, tuple[str, bool | None]] = {}
        for other in present:
            losing = [epoch for epoch in epochs if not own[epoch] < curves[other].get(epoch, math.inf)]
            where = f" (not at {epochs_in_words(losing)})" if losing else ""
            won = len(epochs) - len(losing)
            found[other] = (f"than {other} at {won} of {len(epochs)} epochs{where}", not losing)
        return found


class _OfCurves(Claim):
    """A claim about the mean curves of several entrants, all of which must have been run."""

    key: str

    def judge(self, runs: Runs) -> Finding:
        """Judge the curves."""
        statement, names = self.statement(), self.entrants()
        if missing := absent(runs, *names):
            return nothing_run(statement, missing)
        ours, holds = self.look_at(mean_curves(runs, names, self.key))
        return Finding(statement, ours, n=min(len(runs[name]) for name in self.counted()), holds=holds)

    def entrants(self) -> tuple[str, ...]:
        """The entrants whose curves are needed."""
        raise NotImplementedError

    def counted(self) -> tuple[str, ...]:
        """The entrants whose seeds are counted: the first one, unless a claim treats all alike."""
        return self.entrants()[:1]

    def statement(self) -> str:
        """What is claimed."""
        raise NotImplementedError

    def look_at(self, curves: Mapping[str, Curve]) -> tuple[str, bool | None]:
        """What the curves show, in words, and whether the claim holds."""
        raise NotImplementedError


@dataclass(frozen=True)
class EarlyLead(_OfCurves):
    """``who`` is below ``other`` from the first epoch, or other ``unit``, on, and above at the end.

    The lead must end at an epoch within ``until``, or at any epoch if that is None. Runs that end in the
    lead, before the last epoch of ``until``, do not decide.
    """

    claim: str
    who: str
    other: str
    key: str
    paper: str
    until: tuple[int, int] | None = None
    unit: str = "epoch"
    """What the points of the curves are."""

    def entrants(self) -> tuple[str, ...]:
        """Both."""
        return self.who, self.other

    def statement(self) -> str:
        """What is claimed."""
        when = "" if self.until is None else f" (until epoch {self.until[0]} to {self.until[1]})"
        return f"{self.who} leads {self.other} in {in_words(self.key)} at first{when}, and is behind at the end"

    def look_at(self, curves: Mapping[str, Curve]) -> tuple[str, bool | None]:
        """Find where the lead ends."""
        own, theirs = curves.values()
        epochs = [epoch for epoch in own if epoch >= 1 and epoch in theirs]
        ahead = [epoch for epoch in epochs if own[epoch] < theirs[epoch]]
        lead = list(itertools.takewhile(lambda epoch: own[epoch] < theirs[epoch], epochs))
        low, high = self.until or (1, math.inf)
        plural = "s" * (len(ahead) > 1)
        where = f"{self.unit}{plural} {epochs_in_words(ahead)} (of {len(epochs)})" if ahead else f"no {self.unit}"
        ours = f"ahead at {where}; at the end {own[epochs[-1]]:.4g} against {theirs[epochs[-1]]:.4g}"
        if self.until is not None and lead == epochs and epochs[-1] < high:
            return f"{ours}; the runs end before epoch {high}", None
        return ours, bool(lead) and epochs[-1] not in ahead and low <= lead[-1] <= high


@dataclass(frozen=True)
class AlikeAlong(_OfCurves):
    """The curves of ``names`` differ by no more than a share ``within`` at every epoch from ``first`` on."""

    claim: str
    names: tuple[str, ...]
    key: str
    within: float
    paper: str
    first: int = 2

    def entrants(self) -> tuple[str, ...]:
        """All."""
        return self.names

    def counted(self) -> tuple[str, ...]:
        """All."""
        return self.names

    def statement(self) -> str:
        """What is claimed."""
        alike = f"within {self.within:.0%} of each other in {in_words(self.key)}"
        return f"{listed(self.names)} are {alike} at every epoch"

    def look_at(self, curves: Mapping[str, Curve]) -> tuple[str, bool | None]:
        """Find the largest difference."""
        epochs = [e for e in curves[self.names[0]] if e >= self.first and all(e in curve for curve in curves.values())]
        gaps = {e: _share([curve[e] for curve in curves.values()]) for e in epochs}
        worst = max(gaps, key=lambda epoch: gaps[epoch])
        last = ", ".join(f"{name} {curve[epochs[-1]]:.4g}" for name, curve in curves.items())
        most = f"they differ by at most {gaps[worst]:.0%} (epoch {worst})"
        ours = f"{most}, and by {gaps[epochs[-1]]:.0%} at the end: {last}"
        return ours, gaps[worst] <= self.within


def _share(values: Sequence[float]) -> float:
    """How far apart the largest and the smallest value are, as a share of the smallest."""
    return math.inf if math.isinf(max(values)) else max(values) / min(values) - 1


@dataclass(frozen=True)
class FastestAfterDecays(_OfCurves, Contest):
    """After each halving of the learning rate, ``key`` of ``who`` falls by a larger factor than for ``others``.

    The factor is from the last whole epoch before the halving to the first whole epoch after it. The schedule is
    "halving" of `ggt_lab.runs.schedules.SCHEDULES`.
    """

    parts: int = 8

    def entrants(self) -> tuple[str, ...]:
        """All, ``who`` first."""
        return self.who, *self.others

    def statement(self) -> str:
        """What is claimed."""
        words = f"the {in_words(self.key)} falls by the largest factor with {self.who}"
        return f"just after each decay of the learning rate, {words}"

    def look_at(self, curves: Mapping[str, Curve]) -> tuple[str, bool | None]:
        """Count the decays after which ``who`` falls most."""
        pairs = self._around_decays(max(curves[self.who]))
        drops = {name: [_factor(curve, *pair) for pair in pairs] for name, curve in curves.items()}
        firsts = [max(zip(column, drops, strict=True))[1] for column in zip(*drops.values(), strict=True)]
        shown = "; ".join(f"{name} {', '.join(f'{drop:.2f}' for drop in found)}" for name, found in drops.items())
        ours = f"{self.who} is first at {firsts.count(self.who)} of {len(pairs)} decays; factors: {shown}"
        return ours, firsts.count(self.who) == len(pairs) if pairs else None

    def _around_decays(self, epochs: int) -> list[tuple[int, int]]:
        """The last whole epoch before each decay, and the first whole epoch after it; none if decays are too close."""
        if epochs < 2 * self.parts:
            return []
        places = [k * epochs / self.parts for k in range(1, self.parts)]
        pairs = [(math.floor(place), math.ceil(place) + 1) for place in places]
        return [(before, after) for before, after in pairs if after <= epochs]


def _factor(curve: Curve, before: int, after: int) -> float:
    """How many times smaller the number became; 0 for a curve that diverged."""
    return curve[before] / curve[after] if math.isfinite(curve[before]) else 0.0


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
