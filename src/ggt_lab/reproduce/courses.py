"""Kinds of claims about the course of long runs: who leads at first, who is alike, who gains from a decay."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggt_lab.reproduce.claims import (
    Claim,
    Finding,
    Runs,
    absent,
    epochs_in_words,
    in_words,
    mean_curves,
    nothing_run,
)

__all__ = ["AlikeAlong", "EarlyLead", "FastestAfterDecays"]


@dataclass(frozen=True)
class EarlyLead(Claim):
    """``who`` is below ``other`` from the first epoch to one within ``until`` (anywhere, if None), not at the end."""

    claim: str
    who: str
    other: str
    key: str
    paper: str
    until: tuple[int, int] | None = None

    def judge(self, runs: Runs) -> Finding:
        """Where the lead ends."""
        when = "" if self.until is None else f" (until epoch {self.until[0]} to {self.until[1]})"
        words = in_words(self.key)
        statement = f"{words}: {self.who} leads {self.other} at first{when}, and is behind at the end"
        if missing := absent(runs, self.who, self.other):
            return nothing_run(statement, missing)
        own, theirs = mean_curves(runs, [self.who, self.other], self.key).values()
        epochs = [epoch for epoch in own if epoch >= 1 and epoch in theirs]
        ahead = [epoch for epoch in epochs if own[epoch] < theirs[epoch]]
        lead = list(itertools.takewhile(lambda epoch: own[epoch] < theirs[epoch], epochs))
        low, high = self.until or (1, math.inf)
        return Finding(
            statement=statement,
            ours=f"ahead at {epochs_in_words(ahead) if ahead else 'none'} of {len(epochs)} epochs; at the end "
            f"{own[epochs[-1]]:.4g} against {theirs[epochs[-1]]:.4g}",
            n=len(runs[self.who]),
            holds=bool(lead) and epochs[-1] not in ahead and low <= lead[-1] <= high,
        )


@dataclass(frozen=True)
class AlikeAlong(Claim):
    """The curves of ``names`` differ by no more than a share ``within`` at every epoch from ``first`` on."""

    claim: str
    names: tuple[str, ...]
    key: str
    within: float
    paper: str
    first: int = 2

    def judge(self, runs: Runs) -> Finding:
        """The largest difference."""
        words = in_words(self.key)
        statement = f"{words} of {', '.join(self.names)}: within {self.within:.0%} of each other at every epoch"
        if missing := absent(runs, *self.names):
            return nothing_run(statement, missing)
        curves = mean_curves(runs, self.names, self.key)
        epochs = [e for e in curves[self.names[0]] if e >= self.first and all(e in curve for curve in curves.values())]
        gaps = {e: _share([curve[e] for curve in curves.values()]) for e in epochs}
        worst = max(gaps, key=lambda epoch: gaps[epoch])
        last = ", ".join(f"{name} {curve[epochs[-1]]:.4g}" for name, curve in curves.items())
        return Finding(
            statement=statement,
            ours=f"at most {gaps[worst]:.0%} (epoch {worst}), {gaps[epochs[-1]]:.0%} at the end: {last}",
            n=min(len(runs[name]) for name in self.names),
            holds=gaps[worst] <= self.within,
        )


def _share(values: Sequence[float]) -> float:
    """How far apart the largest and the smallest are."""
    return math.inf if math.isinf(max(values)) else max(values) / min(values) - 1


@dataclass(frozen=True)
class FastestAfterDecays(Claim):
    """After each halving of the learning rate, ``key`` of ``who`` falls by a larger factor than that of ``others``.

    Compared are the last whole epoch before and the first whole one after, `ggt_lab.longrun.SCHEDULES` "halving".
    """

    claim: str
    who: str
    others: tuple[str, ...]
    key: str
    paper: str
    parts: int = 8

    def judge(self, runs: Runs) -> Finding:
        """Count the decays."""
        words = in_words(self.key)
        statement = f"just after each decay of the learning rate, {self.who}'s {words} falls by the largest factor"
        if missing := absent(runs, self.who, *self.others):
            return nothing_run(statement, missing)
        curves = mean_curves(runs, [self.who, *self.others], self.key)
        pairs = self._around_decays(max(curves[self.who]))
        drops = {name: [_factor(curve, *pair) for pair in pairs] for name, curve in curves.items()}
        firsts = [max(zip(column, drops, strict=True))[1] for column in zip(*drops.values(), strict=True)]
        shown = "; ".join(f"{name} {', '.join(f'{drop:.2f}' for drop in found)}" for name, found in drops.items())
        return Finding(
            statement=statement,
            ours=f"{self.who} first at {firsts.count(self.who)} of {len(pairs)} decays; factors: {shown}",
            n=len(runs[self.who]),
            holds=firsts.count(self.who) == len(pairs) if pairs else None,
        )

    def _around_decays(self, epochs: int) -> list[tuple[int, int]]:
        """The last whole epoch before each decay, and the first whole one after it; none if decays are too close."""
        if epochs < 2 * self.parts:
            return []
        places = [k * epochs / self.parts for k in range(1, self.parts)]
        pairs = [(math.floor(place), math.ceil(place) + 1) for place in places]
        return [(before, after) for before, after in pairs if after <= epochs]


def _factor(curve: Mapping[int, float], before: int, after: int) -> float:
    """How many times smaller it became; 0 where it diverged."""
    return curve[before] / curve[after] if math.isfinite(curve[before]) else 0.0
