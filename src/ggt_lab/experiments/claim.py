"""What a claim about long runs is, and the curves of all seeds by which claims are judged.

Runs are grouped by entrant: the name under which an experiment knows an optimizer. A mean is a mean over seeds. A seed
that diverged makes the mean infinite, so that it is never left out. If an entrant was not run, the claim is undecided
and names the entrant.

The kinds of claims are in `end_claims` (the end of a run), `curve_claims` (all epochs of a run) and
`wall_clock_claims` (seconds).
"""

import math
import re
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggt_lab.experiments.verdicts import NOT_RUN, Verdict
from ggt_lab.runs.results import Record

__all__ = [
    "AgainstOthers",
    "Claim",
    "Contest",
    "Finding",
    "Runs",
    "absent",
    "in_words",
    "listed",
    "mean_curve",
    "mean_curves",
    "nothing_run",
]

Runs = Mapping[str, Sequence[Record]]
"""The full runs of each entrant; an entrant that was not run is not there."""


@dataclass(frozen=True)
class Finding:
    """What runs say about a claim: the part of its `Verdict` that comes from runs."""

    statement: str
    ours: str
    n: int
    holds: bool | None
    spread: str | None = None


class Claim(ABC):
    """Something that full runs show or do not show. Each kind is a dataclass with these two fields among its fields."""

    claim: str
    paper: str

    @abstractmethod
    def judge(self, runs: Runs) -> Finding:
        """What these runs say."""

    def verdict(self, runs: Runs, command: str) -> Verdict:
        """What these runs say, with the paper's words and the command that makes the runs again."""
        return Verdict(claim=self.claim, paper=self.paper, command=command, **vars(self.judge(runs)))


@dataclass(frozen=True)
class Contest(Claim):
    """A claim about ``who`` and ``others``: a number of the curves, ``key``, is to be lower for ``who``."""

    claim: str
    who: str
    others: tuple[str, ...]
    key: str
    paper: str


@dataclass(frozen=True)
class AgainstOthers(Contest):
    """A claim that compares ``who`` with each of ``others``: it holds if it holds against all of them.

    If one of ``others`` was not run, the claim can fail but not hold.
    """

    @abstractmethod
    def statement(self) -> str:
        """What is claimed."""

    @abstractmethod
    def compare(self, runs: Runs, present: Sequence[str]) -> dict[str, tuple[str, bool | None]]:
        """For each of the entrants ``present``: words that name it, and whether the claim holds against it."""

    @abstractmethod
    def introduction(self, runs: Runs) -> str:
        """The words before all comparisons."""

    def spread(self, runs: Runs) -> str | None:
        """How much the figure of ``who`` varies over seeds."""
        del runs
        return None

    def judge(self, runs: Runs) -> Finding:
        """Compare with every entrant that was run."""
        missing = absent(runs, *self.others)
        present = [other for other in self.others if other not in missing]
        if absent(runs, self.who) or not present:
            return nothing_run(self.statement(), absent(runs, self.who, *self.others))
        found = self.compare(runs, present) | {name: (f"{name}: {NOT_RUN}", None) for name in missing}
        answers = [holds for _, holds in found.values()]
        return Finding(
            statement=self.statement(),
            ours=self.introduction(runs) + "; ".join(words for words, _ in found.values()),
            n=len(runs[self.who]),
            holds=False if False in answers else None if None in answers else True,
            spread=self.spread(runs),
        )


def nothing_run(statement: str, missing: Sequence[str]) -> Finding:
    """What can be said without the runs of ``missing``."""
    return Finding(statement, f"{NOT_RUN}: {', '.join(missing)}", n=0, holds=None)


def absent(runs: Runs, *names: str) -> list[str]:
    """The entrants among ``names`` that were not run."""
    return [name for name in names if not runs.get(name)]


def mean_curves(runs: Runs, names: Sequence[str], key: str) -> dict[str, dict[int, float]]:
    """The mean curve of each entrant, all as long as the longest; a diverged entrant is infinite from there on."""
    last = max(point["epoch"] for name in names for record in runs[name] for point in record["curve"])
    return {name: mean_curve(runs[name], key, last=last) for name in names}


def mean_curve(records: Sequence[Record], key: str, *, last: int | None = None) -> dict[int, float]:
    """The mean over seeds of a number, by epoch up to ``last``. It is infinite from where a seed diverged.

    Epochs that do not have the number are left out.
    """
    if last is None:
        last = max(point["epoch"] for record in records for point in record["curve"])
    curve = {}
    for epoch in range(last + 1):
        values = [_at(record, epoch, key) for record in records]
        if not any(math.isnan(value) for value in values):
            curve[epoch] = statistics.fmean(values)
    return curve


def _at(record: Record, epoch: int, key: str) -> float:
    """The number of one run at an epoch: infinite after the run diverged, NaN where the run does not have it."""
    point = next((point for point in record["curve"] if point["epoch"] == epoch), None)
    if point is None:
        return math.inf if record["status"] != "done" else math.nan
    return float(point.get(key, math.nan))


def in_words(key: str) -> str:
    """The name of a number as people write it.

    Example:
        >>> in_words("train_loss"), in_words("test_error")
        ('training loss', 'test error')
    """
    return re.sub("^train ", "training ", key.replace("_", " "))


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    Example:
        >>> listed(["Adam"]), listed(["Adam", "AdaGrad", "SGD"])
        ('Adam', 'Adam, AdaGrad and SGD')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
