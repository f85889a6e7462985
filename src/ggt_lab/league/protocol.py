"""The protocol: equal trials for all, then fresh seeds. `next_runs` says which runs a cell of the league needs next.

**The search.** Each entrant has eight trials on each task, with a seed that is not reported:

1. three neighbouring learning rates, 10^(k/2) each;
2. as long as the best rate so far is the lowest or the highest rate tried, and at most twice: the next rate beyond it,
   with the best settings so far;
3. else the next of the five changes of the entrant (momentum and weight decay for nearly everybody), at the best
   trial so far.

A widened grid costs trials, so that nobody has more than eight. The trial with the lowest ``tuned_by`` at its end wins.

**The report.** The winner runs with five fresh seeds, on deep tasks with three. Trials of small tasks have the length
of these runs, because shorter ones predicted badly in the first season. Trials of deep tasks are shorter. AdamW's
trials are repeated at full length there, and `cells.shortness` says what short trials cost.

**Equal for all.** A seed fixes the start and all batches. First-order methods have a cosine schedule to zero, and on
deep tasks the rate first rises for 5 % of the steps: without that AdamW and SOAP fail on the GPT. L-BFGS has no
schedule. A task of the paper may name another schedule. A step whose loss or gradient is not finite is left out and
counted, for everybody; ten in a row end a run as diverged, and so does a metric that is not finite. The length of a run
is a number of gradients: for L-BFGS those of its line search count.

**Claims of the paper.** Their tasks have entrants of their own, whose searches begin at the rates that were best in
earlier runs.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from ggt_lab.league.entrants import ENTRANTS, Entrant
from ggt_lab.league.tasks import TASKS, LeagueTask
from ggt_lab.runs.results import Record

__all__ = [
    "PROTOCOL",
    "SMOKE",
    "LeagueRun",
    "Protocol",
    "at_edge",
    "best_trial",
    "fresh_runs",
    "next_runs",
    "trials_of",
]


@dataclass(frozen=True)
class Protocol:
    """The numbers that are alike for all tasks and entrants."""

    season: int = 2
    trials: int = 8
    widenings: int = 2
    tuning_seed: int = 200
    seeds: tuple[int, ...] = (10, 11, 12, 13, 14)
    evaluations: int = 25
    checked: str = "adamw"
    """The entrant whose trials are repeated at full length."""
    tasks: tuple[LeagueTask, ...] = TASKS
    entrants: tuple[Entrant, ...] = ENTRANTS

    def task(self, name: str) -> LeagueTask:
        """The task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def entrant(self, name: str) -> Entrant:
        """The entrant of that name."""
        return next(entrant for entrant in self.entrants if entrant.name == name)

    def seeds_of(self, task: LeagueTask) -> tuple[int, ...]:
        """The fresh seeds of a task."""
        return self.seeds[: task.seeds]

    def enters(self, entrant: Entrant, task: LeagueTask) -> bool:
        """Whether it enters: L-BFGS needs full batches, deep tasks have few entrants, the paper's claims their own."""
        if entrant.paper or task.closed or entrant.name in task.powers:
            return entrant.name in task.powers
        return (entrant.kind == "first order" or task.full_batch) and (entrant.deep or not task.deep)

    def common(self) -> Record:
        """What is alike for all tasks and entrants, as JSON."""
        numbers = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("tasks", "entrants")
        }
        return dict(json.loads(json.dumps(numbers)))

    def digest(self, task: LeagueTask, entrant: Entrant) -> str:
        """A hash of all that decides a run of this entrant on this task."""
        words = json.dumps([self.common(), task.rules(), entrant.rules()], sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:12]


def _tiny(task: LeagueTask) -> LeagueTask:
    return replace(task, steps=6, tuning_steps=3, problem=f"{task.problem}-tiny" if task.deep else task.problem)


class _Smoke(Protocol):
    """All entrants on the first task; on every other one two of its kind, and two of the paper where it names them."""

    def enters(self, entrant: Entrant, task: LeagueTask) -> bool:
        few = entrant.name in (self.checked, f"whiten-{self.checked}", "ggt-200", "adam")
        return (few or entrant.name == "adagrad" or task == self.tasks[0]) and super().enters(entrant, task)


PROTOCOL = Protocol()
SMOKE = _Smoke(trials=4, seeds=(0, 1), evaluations=3, tasks=tuple(map(_tiny, TASKS)))
"""Tiny: does everything run here?"""


@dataclass(frozen=True)
class LeagueRun:
    """One run; everything that decides its result."""

    task: LeagueTask
    entrant: Entrant
    power: int
    settings: tuple[tuple[str, float], ...]
    seed: int
    steps: int
    evaluations: int
    digest: str
    device: str = "cpu"
    sharing: int = 1
    """How many runs share the device; each is charged its part of the time."""

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(10 ** (self.power / 2))

    @property
    def key(self) -> str:
        """The run in words, with the hash of its protocol."""
        settings = ", ".join(f"{name} {value:g}" for name, value in self.settings)
        words = [self.task.name, self.entrant.name, f"lr 1e{self.power / 2:g}", settings, f"seed {self.seed}"]
        return json.dumps(["league", *words, f"{self.steps} steps", self.device, self.digest])

    def __str__(self) -> str:
        settings = ", ".join(f"{name} {value:g}" for name, value in self.settings)
        return f"{self.task.name}, {self.entrant.title}, lr {self.lr:.2g}, {settings}, seed {self.seed}"


class _Cell:
    """The runs of one entrant on one task."""

    def __init__(self, protocol: Protocol, task: LeagueTask, entrant: Entrant, device: str) -> None:
        self.protocol, self.task, self.entrant, self.device = protocol, task, entrant, device
        self.digest = protocol.digest(task, entrant)

    def run(self, power: int, settings: Mapping[str, float], seed: int, steps: int) -> LeagueRun:
        pairs = tuple(sorted(settings.items()))
        evaluations = (self.task.evaluations or self.protocol.evaluations) if seed in self.protocol.seeds else 1
        return LeagueRun(self.task, self.entrant, power, pairs, seed, steps, evaluations, self.digest, self.device)

    def trial(self, power: int, settings: Mapping[str, float]) -> LeagueRun:
        return self.run(power, settings, self.protocol.tuning_seed, self.task.tuning_steps)


def trials_of(
    protocol: Protocol, task: LeagueTask, entrant: Entrant, done: Mapping[str, Record], device: str = "cpu"
) -> list[LeagueRun]:
    """The trials as far as they can be told from the finished ones; the last of them may not be finished."""
    cell = _Cell(protocol, task, entrant, device)
    power = task.powers.get(entrant.name, entrant.power)
    trials = [cell.trial(power + step, entrant.start) for step in (-1, 0, 1)]
    widened = changed = 0
    while len(trials) < protocol.trials and all(trial.key in done for trial in trials):
        best = best_trial(trials, done)
        powers = [trial.power for trial in trials]
        base = best or min(trials, key=lambda trial: trial.power)  # all diverged: lower rates
        if (best is None or at_edge(base, trials)) and widened < protocol.widenings:
            power = min(powers) - 1 if base.power == min(powers) else max(powers) + 1
            trials.append(cell.trial(power, dict(base.settings)))
            widened += 1
        else:
            trials.append(cell.trial(base.power, {**dict(base.settings), **entrant.changes[changed]}))
            changed += 1
    return trials


def at_edge(run: LeagueRun, trials: Sequence[LeagueRun]) -> bool:
    """Whether the rate of a run is the lowest or the highest of the rates tried."""
    powers = [trial.power for trial in trials]
    return run.power in (min(powers), max(powers))


def best_trial(trials: Sequence[LeagueRun], done: Mapping[str, Record]) -> LeagueRun | None:
    """The finished trial with the lowest number that the task is tuned by; None if all diverged."""

    def score(trial: LeagueRun) -> float:
        record = done.get(trial.key)
        if record is None or record["status"] != "done":
            return math.inf
        return float(record["points"][-1][trial.task.tuned_by])

    best = min(trials, key=score)
    return best if score(best) < math.inf else None


def fresh_runs(
    protocol: Protocol, task: LeagueTask, entrant: Entrant, best: LeagueRun, device: str = "cpu"
) -> list[LeagueRun]:
    """The reported runs of the winner among the trials."""
    cell = _Cell(protocol, task, entrant, device)
    return [cell.run(best.power, dict(best.settings), seed, task.steps) for seed in protocol.seeds_of(task)]


def full_length_trials(protocol: Protocol, trials: Sequence[LeagueRun]) -> list[LeagueRun]:
    """The trials at full length, for the check of short trials; none for an entrant that is not checked."""
    if trials[0].entrant.name != protocol.checked:
        return []
    return [replace(trial, steps=trial.task.steps) for trial in trials]


def next_runs(
    protocol: Protocol, task: LeagueTask, entrant: Entrant, done: Mapping[str, Record], device: str = "cpu"
) -> list[LeagueRun]:
    """The runs that a cell needs next, in view of the finished runs; none when it has all of them."""
    trials = trials_of(protocol, task, entrant, done, device)
    missing = [trial for trial in trials if trial.key not in done]
    if missing:
        return missing
    best = best_trial(trials, done)
    fresh = [] if best is None else fresh_runs(protocol, task, entrant, best, device)
    return [run for run in (*fresh, *full_length_trials(protocol, trials)) if run.key not in done]
