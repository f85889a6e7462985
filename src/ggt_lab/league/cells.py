"""A cell of the table: what one entrant reached on one task, or why there is nothing."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggt_lab.league.entrants import Entrant
from ggt_lab.league.play import Field
from ggt_lab.league.protocol import LeagueRun, at_edge, best_trial, fresh_runs, full_length_trials, trials_of
from ggt_lab.league.tasks import LeagueTask
from ggt_lab.runs.results import Record

__all__ = ["Cell", "Shortness", "cell_of", "fresh_records", "shortness"]

_FLOOR = 1e-12
"""Float32 cannot tell smaller numbers of our metrics from zero."""


@dataclass(frozen=True)
class Cell:
    """One entrant on one task."""

    task: str
    entrant: str
    status: str
    """ "done", "partly" (some fresh runs are missing), "diverged" (every trial), or "not run"."""
    why: str = ""
    """Why there is nothing, or not everything."""
    over_budget: bool = False
    """Something is missing, and the budget of the task is used up: no run will follow."""
    values: tuple[float, ...] = ()
    """The metric at the end of each fresh run; infinite for a run that diverged."""
    lr: float = 0.0
    settings: tuple[tuple[str, float], ...] = ()
    edge: bool = False
    """The best rate is the lowest or the highest of the rates tried."""
    momentum_edge: bool = False
    """The best momentum is the lowest or the highest of those tried."""
    trials: int = 0
    diverged_trials: int = 0
    skipped: int = 0
    """Steps of the fresh runs that were left out because a gradient was not finite."""
    curve: tuple[tuple[int, float], ...] = ()
    """The step, and the geometric mean of the metric over the fresh runs."""

    @property
    def diverged(self) -> int:
        """How many fresh runs diverged."""
        return sum(not math.isfinite(value) for value in self.values)

    @property
    def log_mean(self) -> float:
        """The mean of the logarithms; infinite if a fresh run diverged."""
        return math.inf if self.diverged or not self.values else statistics.fmean(map(_log, self.values))

    @property
    def log_error(self) -> float:
        """The standard error of `log_mean`."""
        if self.diverged or len(self.values) < 2:
            return math.inf
        return statistics.stdev(map(_log, self.values)) / math.sqrt(len(self.values))

    @property
    def mean(self) -> float:
        """The geometric mean over the fresh runs."""
        return math.exp(self.log_mean) if self.log_mean < math.inf else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """The geometric mean, divided and multiplied by the exponential of its standard error."""
        if not math.isfinite(self.log_error):
            return (0.0, math.inf)
        return math.exp(self.log_mean - self.log_error), math.exp(self.log_mean + self.log_error)

    def apart(self, other: "Cell") -> float:
        """How many standard errors of the difference this cell lies above the other one."""
        difference = self.log_mean - other.log_mean
        error = math.hypot(self.log_error, other.log_error)
        return (
            0.0 if math.isnan(difference) else difference / error if error > 0 else math.copysign(math.inf, difference)
        )


def _log(value: float) -> float:
    return math.log(max(value, _FLOOR))


def cell_of(
    field: Field,
    task: LeagueTask,
    entrant: Entrant,
    done: Mapping[str, Record],
    missing: str = "",
    *,
    over_budget: bool = False,
) -> Cell:
    """The cell of an entrant on a task, from the finished runs.

    Args:
        field: the protocol and the device.
        task: the task.
        entrant: the entrant.
        done: the finished runs by key.
        missing: why the cell cannot be played here; empty if it can.
        over_budget: whether the budget of the task is used up.
    """
    obstacle = f"the {task.minutes} minutes of the task are used up" if over_budget else missing
    trials = trials_of(field.protocol, task, entrant, done, field.device)
    made = [done[trial.key] for trial in trials if trial.key in done]
    if len(made) < field.protocol.trials:
        reasons = [f"{len(made)} of {field.protocol.trials} trials made" if made else "", obstacle]
        words = "; ".join(filter(None, reasons))
        return Cell(task.name, entrant.name, "not run", words, over_budget=over_budget, trials=len(made))
    best = best_trial(trials, done)
    diverged_trials = sum(record["status"] != "done" for record in made)
    if best is None:
        why = f"all {len(made)} trials diverged"
        return Cell(task.name, entrant.name, "diverged", why, trials=len(made), diverged_trials=diverged_trials)
    runs = fresh_records(field, task, entrant, done)
    seeds = field.protocol.seeds_of(task)
    complete = len(runs) == len(seeds)
    return Cell(
        task.name,
        entrant.name,
        "done" if complete else "partly" if runs else "not run",
        "" if complete else "; ".join(filter(None, [f"{len(runs)} of {len(seeds)} seeds", obstacle])),
        over_budget=over_budget and not complete,
        values=tuple(last(record, task.metric) for record in runs),
        lr=best.lr,
        settings=best.settings,
        edge=at_edge(best, trials),
        momentum_edge=_momentum_at_edge(best, trials),
        trials=len(made),
        diverged_trials=diverged_trials,
        skipped=sum(record["skipped"] for record in runs),
        curve=_mean_curve(runs, task.metric),
    )


def _momentum_at_edge(best: LeagueRun, trials: Sequence[LeagueRun]) -> bool:
    momenta = {value for trial in trials for name, value in trial.settings if name == "momentum"}
    return len(momenta) > 1 and dict(best.settings)["momentum"] in (min(momenta), max(momenta))


def fresh_records(field: Field, task: LeagueTask, entrant: Entrant, done: Mapping[str, Record]) -> list[Record]:
    """The finished ones of the reported runs; none while there are none, or if all trials diverged."""
    best = best_trial(trials_of(field.protocol, task, entrant, done, field.device), done)
    runs = [] if best is None else fresh_runs(field.protocol, task, entrant, best, field.device)
    return [done[run.key] for run in runs if run.key in done]


def last(record: Record, number: str) -> float:
    """The number at the end of a run; infinite if the run diverged."""
    return float(record["points"][-1][number]) if record["status"] == "done" else math.inf


def _mean_curve(runs: Sequence[Record], metric: str) -> tuple[tuple[int, float], ...]:
    """Geometric means over runs; empty if one of them diverged. L-BFGS is evaluated at steps of its own in each run."""
    if not runs or any(record["status"] != "done" for record in runs):
        return ()
    steps = sorted({point["step"] for record in runs for point in record["points"]})
    means = []
    for step in steps:
        # The newest evaluation of each run that is not younger than the step.
        values = [[p[metric] for p in record["points"] if p["step"] <= step][-1] for record in runs]
        means.append((step, math.exp(statistics.fmean(map(_log, values)))))
    return tuple(means)


@dataclass(frozen=True)
class Shortness:
    """Whether short trials found what full-length trials would have found, for one entrant on one task."""

    task: str
    entrant: str
    same_choice: bool
    cost: float
    """The number tuned by, at full length: that of the short trials' choice, divided by the lowest of all trials."""


def shortness(field: Field, task: LeagueTask, done: Mapping[str, Record]) -> Shortness | None:
    """What the short trials of the checked entrant cost; None if they were not repeated at full length."""
    entrant = field.protocol.entrant(field.protocol.checked)
    trials = trials_of(field.protocol, task, entrant, done, field.device)
    long = full_length_trials(field.protocol, trials)
    best = best_trial(trials, done)
    if len(trials) < field.protocol.trials or best is None or any(run.key not in done for run in long):
        return None

    def score(run: LeagueRun) -> float:
        return last(done[run.key], task.tuned_by)

    chosen, lowest = score(long[trials.index(best)]), min(map(score, long))
    return Shortness(task.name, entrant.name, chosen == lowest, chosen / lowest)
