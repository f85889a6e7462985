"""Races: optimizers × learning rates × seeds on one problem, in parallel, resumable.

The one line that data follows: `grid` → `race` (each `Run` in a process, its record appended when it is done) →
`standings`.
"""

import itertools
import json
import math
import multiprocessing
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ggt_lab.optimizers import optimizer_factory
from ggt_lab.problems import problem_class
from ggt_lab.results import Record, Results, environment
from ggt_lab.train import train

__all__ = ["Run", "Standing", "grid", "race", "standings"]


@dataclass(frozen=True)
class Run:
    """One entry of a race; equal runs give equal results, so that a finished one is never run again."""

    problem: str
    optimizer: str
    lr: float
    seed: int
    steps: int | None = None
    device: str = "cpu"

    @property
    def key(self) -> str:
        """The run in words that do not change."""
        return json.dumps(asdict(self), sort_keys=True)


def grid(
    problem: str,
    optimizers: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    device: str = "cpu",
) -> list[Run]:
    """Every combination; ``optimizers`` maps a spec to its learning rates. Unknown names raise here, not later."""
    problem_class(problem)
    for spec in optimizers:
        optimizer_factory(spec)
    return [
        Run(problem, spec, lr, seed, steps, device)
        for spec, rates in optimizers.items()
        for lr in rates
        for seed in seeds
    ]


def race(
    runs: Sequence[Run],
    results: Results,
    *,
    workers: int = 1,
    on_done: Callable[[Run, Record], None] | None = None,
) -> None:
    """Run what is not finished yet, and append each record as soon as it is there.

    Interrupted at any moment, by Ctrl-C or worse, the same call goes on with the rest.
    """
    finished = results.finished()
    waiting = [run for run in dict.fromkeys(runs) if run.key not in finished]
    made_in = environment()
    # Spawned, not forked: a forked process cannot use CUDA, and inherits thread pools that do not run.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        jobs = {pool.submit(execute, run): run for run in waiting}
        for job in as_completed(jobs):
            record = {**job.result(), "environment": made_in}
            results.append(record)
            if on_done is not None:
                on_done(jobs[job], record)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def execute(run: Run) -> Record:
    """Train once, in this process."""
    torch.set_num_threads(1)  # parallelism is between runs
    problem = problem_class(run.problem)(run.seed, torch.device(run.device))
    torch.manual_seed(run.seed)
    outcome = train(problem, optimizer_factory(run.optimizer), run.lr, steps=run.steps)
    return {"key": run.key, **asdict(run), "metric": problem.metric, **asdict(outcome)}


@dataclass(frozen=True)
class Standing:
    """How an optimizer did at its best learning rate."""

    optimizer: str
    lr: float
    at_edge: bool
    """The best learning rate is the smallest or largest of the grid: a wider grid may do better."""
    final: float
    """Mean final metric over seeds; infinite if a seed diverged."""
    spread: float
    """Standard deviation of the final metric over seeds."""
    per_step: float
    """Mean of the metric over the run: the area under the curve, divided by its length."""
    per_second: float
    """The same over seconds, up to the time that the fastest optimizer took."""
    diverged: int
    """How many of its seeds diverged at this learning rate."""


def standings(records: Sequence[Record], *, by: str = "final") -> list[Standing]:
    """The best learning rate of each optimizer, best optimizer first.

    Args:
        records: runs of one problem.
        by: "final", "per_step" or "per_second": what is best.
    """
    if by not in ("final", "per_step", "per_second"):
        raise ValueError(f"by must be 'final', 'per_step' or 'per_second', got {by!r}")
    if not records:
        return []
    cells: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        cells.setdefault((record["optimizer"], record["lr"]), []).append(record)
    done = [record["curve"][-1]["seconds"] for record in records if record["status"] == "done"]
    horizon = min(done, default=math.inf)
    best: dict[str, Standing] = {}
    for (optimizer, lr), runs in cells.items():
        rates = [rate for name, rate in cells if name == optimizer]
        finals = [_final(run) for run in runs]
        standing = Standing(
            optimizer=optimizer,
            lr=lr,
            at_edge=len(rates) > 1 and lr in (min(rates), max(rates)),
            final=statistics.fmean(finals),
            spread=statistics.stdev(finals) if len(finals) > 1 and all(map(math.isfinite, finals)) else 0.0,
            per_step=statistics.fmean(_area(run, "step", math.inf) for run in runs),
            per_second=statistics.fmean(_area(run, "seconds", horizon) for run in runs),
            diverged=sum(run["status"] != "done" for run in runs),
        )
        if optimizer not in best or getattr(standing, by) < getattr(best[optimizer], by):
            best[optimizer] = standing
    return sorted(best.values(), key=lambda standing: float(getattr(standing, by)))


def _final(record: Record) -> float:
    return float(record["curve"][-1][record["metric"]]) if record["status"] == "done" else math.inf


def _area(record: Record, axis: str, horizon: float) -> float:
    """The mean of the metric along ``axis`` up to ``horizon``, by the trapezoidal rule."""
    if record["status"] != "done":
        return math.inf
    points: list[dict[str, Any]] = record["curve"]
    area, length = 0.0, 0.0
    for left, right in itertools.pairwise(points):
        width = min(right[axis], horizon) - left[axis]
        if width <= 0:
            break
        metric = record["metric"]
        slope = (right[metric] - left[metric]) / (right[axis] - left[axis])
        area += width * (left[metric] + 0.5 * slope * width)
        length += width
    return area / length if length > 0 else float(points[0][record["metric"]])
