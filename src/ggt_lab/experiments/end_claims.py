"""Claims about the end of long runs: how low an entrant ends, and by how much it ends below others."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ggt_lab.experiments.claim import (
    AgainstOthers,
    Claim,
    Finding,
    Runs,
    absent,
    in_words,
    listed,
    mean_curve,
    nothing_run,
)
from ggt_lab.experiments.seed_statistics import stdev
from ggt_lab.runs.results import Record

__all__ = ["AtMost", "Compared", "GapAtEnd", "LevelAtEnd"]


@dataclass(frozen=True)
class GapAtEnd(Claim):
    """``who`` ends below ``other`` by at least ``gap``. A negative gap: ``who`` ends above by no more than that."""

    claim: str
    who: str
    other: str
    key: str
    gap: float
    paper: str

    def judge(self, runs: Runs) -> Finding:
        """Compare means over seeds. A difference that may be chance leaves the claim undecided."""
        statement = f"{self.who} ends with a {self._sense()} than {self.other}"
        if missing := absent(runs, self.who, self.other):
            return nothing_run(statement, missing)
        own, theirs = (_ends(runs[name], self.key) for name in (self.who, self.other))
        difference, error = _difference(own, theirs)
        in_doubt = difference - error < self.gap <= difference
        return Finding(
            statement=statement,
            ours=f"{statistics.fmean(own):.4g} against {statistics.fmean(theirs):.4g}: {_signed(-difference)}",
            spread=f"{_plus_minus(error)} (two standard errors)",
            n=len(own),
            holds=None if in_doubt else difference >= self.gap,
        )

    def _sense(self) -> str:
        words = in_words(self.key)
        if self.gap == 0:
            return f"lower {words}"
        return f"{words} " + (f"at least {self.gap:g} lower" if self.gap > 0 else f"at most {-self.gap:g} higher")


@dataclass(frozen=True)
class LevelAtEnd(Claim):
    """Two entrants end at most ``within`` apart, whichever is lower."""

    claim: str
    who: str
    other: str
    key: str
    within: float
    paper: str

    def judge(self, runs: Runs) -> Finding:
        """Compare means over seeds. The claim is undecided if two standard errors reach across the limit."""
        statement = f"{self.who} and {self.other} end with a {in_words(self.key)} at most {self.within:g} apart"
        if missing := absent(runs, self.who, self.other):
            return nothing_run(statement, missing)
        own, theirs = (_ends(runs[name], self.key) for name in (self.who, self.other))
        difference, error = _difference(own, theirs)
        nearest, farthest = abs(difference) - error, abs(difference) + error
        return Finding(
            statement=statement,
            ours=f"{statistics.fmean(own):.4g} against {statistics.fmean(theirs):.4g}: {_signed(-difference)}",
            spread=f"{_plus_minus(error)} (two standard errors)",
            n=len(own),
            holds=None if nearest <= self.within < farthest else farthest <= self.within,
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
            ours=f"the lowest is {curve[epoch]:.4g} (epoch {epoch}), the last is {curve[max(curve)]:.4g}",
            spread=f"standard deviation over seeds at the end: {stdev(_ends(runs[self.who], self.key)):.4f}",
            n=len(runs[self.who]),
            holds=curve[epoch] <= self.value,
        )


@dataclass(frozen=True)
class Compared(AgainstOthers):
    """``who`` ends below each of ``others``. The paper does not say so; it is our own comparison."""

    paper: str = "not compared"

    def statement(self) -> str:
        """What is claimed."""
        return f"beyond the paper: {self.who} ends with a lower {in_words(self.key)} than {listed(self.others)}"

    def introduction(self, runs: Runs) -> str:
        """The end of ``who``."""
        return f"{self.who} {statistics.fmean(_ends(runs[self.who], self.key)):.4g}; "

    def spread(self, runs: Runs) -> str:
        """The standard deviation of the end of ``who``."""
        return f"standard deviation over seeds: {stdev(_ends(runs[self.who], self.key)):.4f}"

    def compare(self, runs: Runs, present: Sequence[str]) -> dict[str, tuple[str, bool | None]]:
        """Every end with its difference; a difference that may be chance decides nothing."""
        own = _ends(runs[self.who], self.key)
        found: dict[str, tuple[str, bool | None]] = {}
        for other in present:
            theirs = _ends(runs[other], self.key)
            end = statistics.fmean(theirs)
            difference, error = _difference(own, theirs)
            words = f"{other} diverged"
            if math.isfinite(end):
                words = f"{other} {end:.4g} ({_signed(difference, _plus_minus(error))})"
            # A difference that is not a number, because both diverged, is no lead.
            found[other] = (words, False if not difference > 0 else None if difference <= error else True)
        return found


def _ends(records: Sequence[Record], key: str) -> list[float]:
    """A number at the end of the run of each seed; infinite for a seed that diverged."""
    return [float(r["curve"][-1][key]) if r["status"] == "done" else math.inf for r in records]


def _difference(own: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """How far the mean of ``own`` is below the mean of ``theirs``, and two standard errors of that.

    The error of a single value is infinite. It is 0 if a value is not finite: that value decides alone.
    """
    difference = statistics.fmean(theirs) - statistics.fmean(own)
    if not all(map(math.isfinite, [*own, *theirs])):
        return difference, 0.0
    if min(len(own), len(theirs)) < 2:
        return difference, math.inf
    return difference, 2 * math.hypot(stdev(own) / math.sqrt(len(own)), stdev(theirs) / math.sqrt(len(theirs)))


def _signed(difference: float, error: str = "") -> str:
    """How much higher or lower a number is, in words.

    Example:
        >>> _signed(-0.0096), _signed(0.5, "± 0.1000")
        ('0.0096 lower', '0.5000 ± 0.1000 higher')
    """
    size = f"{abs(difference):.4f} {error}".strip()
    return f"{size} {'higher' if difference > 0 else 'lower'}"


def _plus_minus(error: float) -> str:
    return f"± {error:.4f}" if math.isfinite(error) else "± unknown"
