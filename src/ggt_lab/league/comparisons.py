"""What the cells say together: ranks, performance profiles, our member against its rivals, and pairs with whitening."""

import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ggt_lab.league.cells import Cell

__all__ = ["Pair", "Rank", "Rivalry", "against_all", "pairs", "profile", "ranks", "reached", "rivalry", "speedup"]

_RESAMPLES = 2000
TAUS = tuple(2 ** (k / 4) for k in range(17))
"""1 to 16."""


@dataclass(frozen=True)
class Rank:
    """The mean rank of an entrant over tasks, with the middle 95 % of its values over resampled tasks."""

    entrant: str
    mean: float
    low: float
    high: float
    behind: float
    """Its mean rank minus the mean rank of the first."""
    behind_low: float
    """With `behind_high` the middle 95 % of `behind`, paired: both have the tasks of one resampling."""
    behind_high: float
    tasks: int


def by_task(cells: Iterable[Cell]) -> dict[str, dict[str, Cell]]:
    """The cells of complete tasks, by task and entrant: finished ones, and those in which all trials diverged.

    A task is complete if all its entrants are there. Entrants that are nowhere (without package) do not count, nor do
    those for which the budget of the task was too small.
    """
    found: dict[str, dict[str, Cell]] = {}
    lacking: dict[str, set[str]] = {}
    for cell in cells:
        if _ended(cell):
            found.setdefault(cell.task, {})[cell.entrant] = cell
        elif not cell.over_budget:
            lacking.setdefault(cell.task, set()).add(cell.entrant)
    somewhere = {name for row in found.values() for name in row}
    return {task: row for task, row in found.items() if not lacking.get(task, set()) & somewhere}


def _ended(cell: Cell) -> bool:
    """Whether the cell has all its runs, or none because all trials diverged."""
    return cell.status in ("done", "diverged")


def _rows(cells: Iterable[Cell], names: Sequence[str] | None) -> dict[str, dict[str, Cell]]:
    """The cells of these entrants, by task and entrant, on the tasks on which all of them ended.

    Without names the cells of everybody, on complete tasks.
    """
    if names is None:
        return by_task(cells)
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        if cell.entrant in names and _ended(cell):
            rows.setdefault(cell.task, {})[cell.entrant] = cell
    return {task: row for task, row in rows.items() if len(row) == len(names)}


def ranks(cells: Sequence[Cell], names: Sequence[str] | None = None) -> list[Rank]:
    """Mean ranks, the best first.

    Args:
        cells: the cells.
        names: who is ranked, on the tasks on which all of them ended. None: everybody who ended on all complete tasks.
    """
    tasks = _rows(cells, names)
    everywhere = sorted(set.intersection(*(set(row) for row in tasks.values()))) if tasks else []
    columns: dict[str, list[float]] = {name: [] for name in everywhere}
    for row in tasks.values():
        scores = {name: row[name].log_mean for name in everywhere}
        for name, score in scores.items():
            lower = sum(other < score for other in scores.values())
            equal = sum(other == score for other in scores.values())
            columns[name].append(lower + (equal + 1) / 2)
    generator = random.Random(0)
    draws = [generator.choices(range(len(tasks)), k=len(tasks)) for _ in range(_RESAMPLES)] if tasks else []

    def middle(column: Sequence[float]) -> tuple[float, float]:
        means = sorted(statistics.fmean(column[task] for task in draw) for draw in draws)
        return means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES)]

    found = []
    in_order = sorted(columns.items(), key=lambda item: statistics.fmean(item[1]))
    for name, column in in_order:
        behind = [own - first for own, first in zip(column, in_order[0][1], strict=True)]
        mean, gap = statistics.fmean(column), statistics.fmean(behind)
        found.append(Rank(name, mean, *middle(column), gap, *middle(behind), len(column)))
    return found


def reached(cell: Cell, level: float) -> float:
    """The step at which the mean curve of a cell is at a level for the first time; infinite if it never is.

    Between two evaluations the logarithm of the metric is taken as a straight line.
    """
    before: tuple[int, float] | None = None
    for step, value in cell.curve:
        if value <= level:
            if before is None or value >= before[1]:
                return float(step)
            share = (math.log(before[1]) - math.log(level)) / (math.log(before[1]) - math.log(value))
            return before[0] + share * (step - before[0])
        before = (step, value)
    return math.inf


def profile(
    cells: Sequence[Cell],
    standard: str,
    step_seconds: Mapping[tuple[str, str], float] | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, list[float]]:
    """For each entrant, the share of its tasks that it solves within τ times the cost of the cheapest, for `TAUS`.

    A task is solved at the level that ``standard`` has at its end. The cost is a number of steps, or of seconds.

    Args:
        cells: the cells.
        standard: the entrant that sets the levels.
        step_seconds: the seconds of a step, by task and entrant; None counts steps. Tasks in which the time of a step
            is not known for every entrant are left out.
        names: as in `ranks`.
    """
    ratios: dict[str, list[float]] = {}
    for task, row in _rows(cells, names).items():
        if standard not in row or row[standard].mean == math.inf:
            continue
        if step_seconds is not None and any((task, name) not in step_seconds for name in row):
            continue
        costs = {name: reached(cell, row[standard].mean * (1 + 1e-9)) for name, cell in row.items()}
        if step_seconds is not None:
            costs = {name: cost * step_seconds[task, name] for name, cost in costs.items()}
        cheapest = min(costs.values())
        for name, cost in costs.items():
            ratios.setdefault(name, []).append(cost / max(cheapest, 1e-12) if cost < math.inf else math.inf)
    return {
        name: [sum(ratio <= tau * (1 + 1e-9) for ratio in values) / len(values) for tau in TAUS]
        for name, values in ratios.items()
    }


@dataclass(frozen=True)
class Rivalry:
    """A member of ours against its rivals on one task."""

    task: str
    place: int
    """Its place among itself and the rivals; 1 is the best."""
    best_rival: str
    apart: float
    """Standard errors by which it lies above the best rival; negative where it is better."""
    steps: dict[str, float]
    """The steps to the final level of the best rival, of itself and of each rival; infinite where never reached."""

    @property
    def level(self) -> bool:
        """First, or within one standard error of the first."""
        return self.apart <= 1


def rivalry(cells: Sequence[Cell], member: str, rivals: Sequence[str]) -> list[Rivalry]:
    """The member against the rivals, on every task on which all of them are finished."""
    found = []
    for task, row in _rows(cells, (member, *rivals)).items():
        best = min(rivals, key=lambda name: row[name].log_mean)
        place = 1 + sum(row[name].log_mean < row[member].log_mean for name in rivals)
        level = row[best].mean * (1 + 1e-9)
        steps = {name: reached(row[name], level) for name in (member, *rivals)}
        found.append(Rivalry(task, place, best, row[member].apart(row[best]), steps))
    return found


def against_all(cells: Sequence[Cell], member: str, ours: Sequence[str], tasks: Sequence[str]) -> list[Rivalry]:
    """The member against every finished rival on each of these tasks, whoever of them entered there."""
    found = []
    for task in tasks:
        row = [cell for cell in cells if cell.task == task]
        found += rivalry(row, member, [cell.entrant for cell in row if cell.entrant not in ours and _ended(cell)])
    return found


def speedup(
    tasks: Sequence[Rivalry],
    member: str,
    rival: str,
    lengths: Mapping[str, int],
    step_seconds: Mapping[tuple[str, str], float] | None = None,
) -> float | None:
    """The geometric mean over tasks of the member's steps divided by the rival's, to the level of the best rival.

    Who never reaches the level counts with all steps of the run. So the best rival never needs more steps than the
    run has, and a task that the member loses counts as 1: show this number beside the one with the roles swapped.

    Args:
        tasks: the rivalry of the member.
        member: the member.
        rival: one of its rivals.
        lengths: the steps of a run, by task.
        step_seconds: the seconds of a step, by task and entrant: the seconds are compared; None compares steps.

    Returns:
        the mean; None without tasks, or where a time is missing.
    """

    def cost(each: Rivalry, name: str) -> float:
        steps = max(min(each.steps[name], float(lengths[each.task])), 1.0)
        return steps * (step_seconds[each.task, name] if step_seconds is not None else 1.0)

    if not tasks or (
        step_seconds is not None
        and any((each.task, name) not in step_seconds for each in tasks for name in (member, rival))
    ):
        return None
    return statistics.geometric_mean(cost(each, member) / cost(each, rival) for each in tasks)


@dataclass(frozen=True)
class Pair:
    """An optimizer alone and whitened, on one task."""

    task: str
    alone: str
    whitened: str
    factor: float
    """The mean alone divided by the mean whitened: above 1 where whitening helps."""
    apart: float
    """Standard errors by which alone lies above whitened."""


def pairs(cells: Sequence[Cell]) -> list[Pair]:
    """Every optimizer that is there alone and whitened."""
    found = []
    for task, row in by_task(cells).items():
        for name in row:
            alone = name.removeprefix("whiten-")
            if alone != name and alone in row:
                one, other = row[alone], row[name]
                ratio = one.log_mean - other.log_mean
                factor = math.exp(ratio) if math.isfinite(ratio) else math.nan if math.isnan(ratio) else math.inf
                found.append(Pair(task, alone, name, factor, one.apart(other)))
    return found
