"""Who did best: measures of single runs, the best learning rate of each optimizer, and which rates to try next."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from ggt_lab.runs.results import Record

__all__ = [
    "CRITERIA",
    "MEASURES",
    "Standing",
    "around_the_best",
    "beyond_the_edge",
    "larger_is_better",
    "left_out",
    "measure",
    "one_more_rate",
    "standings",
    "steps_left_out",
]

CRITERIA = {"final": "final {metric}", "per_step": "mean {metric} per step", "per_second": "mean {metric} per second"}
"""What "best" means in the tables of a race: names of measures, each with its words."""


@dataclass(frozen=True)
class Standing:
    """How an optimizer did at its best learning rate. Numbers are means over seeds, not finite if a seed diverged."""

    optimizer: str
    lr: float
    at_edge: bool
    """The best learning rate is the smallest or largest of the grid: a wider grid may do better."""
    final: float
    """The metric at the end."""
    spread: float
    """Standard deviation of the final metric over seeds."""
    per_step: float
    """Mean of the metric over the run: the area under the curve, divided by its length."""
    per_second: float
    """Mean of the metric over seconds, up to the time that the fastest optimizer took."""
    log_final: float
    """log10 of the metric at the end."""
    log_last_tenth: float
    """Mean of log10 of the metric over the last tenth of the run: the end, without the luck of a single evaluation."""
    log_per_step: float
    """Mean of log10 of the metric over the run."""
    diverged: int
    """How many seeds diverged at this learning rate."""
    skipped: int = 0
    """How many steps were left out, over all seeds, because the loss or its gradient was not finite."""


MEASURES = ("final", "per_step", "per_second", "log_final", "log_last_tenth", "log_per_step")
_SMALLEST = 1e-16  # logarithms stop here: below is rounding


def measure(record: Record, by: str, *, horizon: float = math.inf) -> float:
    """How well one run did, by its metric.

    A run that diverged has the worst number there is: ∞, or −∞ if the metric is to be large.

    Args:
        record: a run.
        by: one of `MEASURES`; `Standing` says what each means.
        horizon: the last second that "per_second" takes into account.
    """
    if by not in MEASURES:
        raise ValueError(f"by must be one of {', '.join(map(repr, MEASURES))}; got {by!r}")
    if record["status"] != "done":
        return -math.inf if larger_is_better([record]) else math.inf
    axis = "seconds" if by == "per_second" else "step"
    points = [(float(point[axis]), float(point[record["metric"]])) for point in record["curve"]]
    if by.startswith("log_"):
        points = [(x, math.log10(max(y, _SMALLEST))) for x, y in points]
    if by in ("final", "log_final"):
        return points[-1][1]
    if by == "log_last_tenth":
        end = points[-1][0]
        points = [(x, y) for x, y in points if x >= 0.9 * end]
    return _mean_along(points, horizon if by == "per_second" else math.inf)


def steps_left_out(record: Record) -> int:
    """How many steps of a run were left out because the loss or its gradient was not finite."""
    found = record.get("skipped")  # not every record says it
    return found if isinstance(found, int) else 0


def left_out(records: Sequence[Record], standing: Standing) -> tuple[int, int]:
    """How many steps of an optimizer were left out at its best learning rate, and of how many; no seed diverged."""
    runs = [run for run in records if (run["optimizer"], run["lr"]) == (standing.optimizer, standing.lr)]
    return standing.skipped, sum(int(run["curve"][-1]["step"]) for run in runs)


def larger_is_better(records: Sequence[Record]) -> bool:
    """Whether the metric of these runs is to be large; they are runs of one problem."""
    return bool(records and records[0].get("larger_is_better"))


def standings(records: Sequence[Record], *, by: str = "final") -> list[Standing]:
    """The best learning rate of each optimizer, best optimizer first.

    Args:
        records: runs of one problem.
        by: one of `MEASURES`: the number that decides who is best.
    """
    if by not in MEASURES:
        raise ValueError(f"by must be one of {', '.join(map(repr, MEASURES))}; got {by!r}")
    cells: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        cells.setdefault((record["optimizer"], record["lr"]), []).append(record)
    done = [record["curve"][-1]["seconds"] for record in records if record["status"] == "done"]
    horizon = min(done, default=math.inf)
    sign = -1.0 if larger_is_better(records) else 1.0
    best: dict[str, Standing] = {}
    for (optimizer, lr), runs in cells.items():
        rates = [rate for name, rate in cells if name == optimizer]
        finals = [measure(run, "final") for run in runs]
        means = {name: _mean([measure(run, name, horizon=horizon) for run in runs]) for name in MEASURES}
        standing = Standing(
            optimizer=optimizer,
            lr=lr,
            at_edge=len(rates) > 1 and lr in (min(rates), max(rates)),
            spread=_spread(finals),
            diverged=sum(run["status"] != "done" for run in runs),
            skipped=sum(map(steps_left_out, runs)),
            **means,
        )
        if optimizer not in best or sign * getattr(standing, by) < sign * getattr(best[optimizer], by):
            best[optimizer] = standing
    return sorted(best.values(), key=lambda standing: sign * float(getattr(standing, by)))


def _mean(values: Sequence[float]) -> float:
    """The mean; infinite where the sum of the numbers is beyond float64."""
    try:
        return statistics.fmean(values)
    except OverflowError:
        return math.inf


def _spread(values: Sequence[float]) -> float:
    """The standard deviation; 0 for a single number, or where a number is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    try:
        return statistics.stdev(values)
    except OverflowError:
        return math.inf


class _Rated(Protocol):
    """A run at a learning rate: what a grid is made of."""

    @property
    def optimizer(self) -> str: ...

    @property
    def lr(self) -> float: ...


_R = TypeVar("_R", bound=_Rated)


def beyond_the_edge(runs: Sequence[_R], records: Sequence[Record], *, by: Sequence[str] = ("final",)) -> list[_R]:
    """The runs that add one learning rate to every grid whose best point (by any of ``by``) is at its edge.

    There are none if every best learning rate lies inside its grid. The new rate continues the ratio of the grid.
    """
    wanted: list[_R] = []
    for standing in (s for name in by for s in standings(records, by=name) if s.at_edge):
        grid_rates = sorted({run.lr for run in runs if run.optimizer == standing.optimizer})
        low = standing.lr == grid_rates[0]
        inner, edge = (grid_rates[1], grid_rates[0]) if low else (grid_rates[-2], grid_rates[-1])
        rate = float(f"{edge * edge / inner:.6g}")  # a decimal grid gets the next decimal
        wanted += [_at_rate(run, rate) for run in runs if (run.optimizer, run.lr) == (standing.optimizer, edge)]
    return list(dict.fromkeys(wanted))


def _at_rate(run: _R, rate: float) -> _R:
    changed: _R = replace(run, lr=rate)  # type: ignore[type-var] # every run is a dataclass
    return changed


def around_the_best(runs: Sequence[_R], records: Sequence[Record], *, by: Sequence[str] = ("final",)) -> list[_R]:
    """The runs that halve, on a log scale, the gaps next to each best learning rate (by any of ``by``).

    A gap of a factor of two or less is left alone, so that repeated calls come to an end.
    """
    wanted: list[_R] = []
    for standing in (s for name in by for s in standings(records, by=name)):
        rates = sorted({run.lr for run in runs if run.optimizer == standing.optimizer})
        place = rates.index(standing.lr)
        for low, high in itertools.pairwise(rates[max(0, place - 1) : place + 2]):
            if high > 2 * low:
                rate = float(f"{math.sqrt(low * high):.6g}")
                wanted += [_at_rate(run, rate) for run in runs if (run.optimizer, run.lr) == (standing.optimizer, low)]
    return list(dict.fromkeys(wanted))


def one_more_rate(runs: Sequence[_R], records: Sequence[Record]) -> list[_R]:
    """The runs of one more learning rate for every optimizer, so that all have as many trials; none if all are inside.

    An optimizer whose best rate is at the edge of its grid gets the rate beyond. Each other optimizer gets a rate
    between its best rate and a neighbour, unless its grid is already as fine as a factor of two.
    """
    wider = beyond_the_edge(runs, records)
    if not wider:
        return []
    finer = around_the_best(runs, records)
    others = dict.fromkeys(run.optimizer for run in runs if run.optimizer not in {each.optimizer for each in wider})
    for name in others:
        mine = [run for run in finer if run.optimizer == name]
        wider += [run for run in mine if run.lr == mine[0].lr]
    return wider


def _mean_along(points: Sequence[tuple[float, float]], horizon: float) -> float:
    """The mean of y along x up to ``horizon``, by the trapezoidal rule."""
    area, length = 0.0, 0.0
    for (left, low), (right, high) in itertools.pairwise(points):
        width = min(right, horizon) - left
        if width <= 0:
            break
        area += width * (low + 0.5 * (high - low) / (right - left) * width)
        length += width
    return area / length if length > 0 else points[0][1]
