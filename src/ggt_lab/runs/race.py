"""Races: optimizers × learning rates × seeds on one problem, in parallel, resumable.

`grid` makes the runs. `race` trains each `Run` in a process and appends its record. `standings` says who did best. If a
best learning rate lies at the edge of its grid, `beyond_the_edge` gives more runs, and `race` goes on.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ggt_lab.optimizers.specs import check_optimizer, optimizer_factory
from ggt_lab.problems.registry import large_numbers
from ggt_lab.runs.process_pool import processes, run_all
from ggt_lab.runs.results import Record, Results
from ggt_lab.runs.schedules import OWN, schedule_names
from ggt_lab.runs.short_run import train
from ggt_lab.runs.training_loop import seed_everything
from ggt_lab.runs.users_code import called, problem_of, running

__all__ = ["FRESH", "Run", "execute", "grid", "race"]

FRESH = "fresh"
"""The folder, beside the results of a race, with the runs of seeds that chose no learning rate."""


@dataclass(frozen=True)
class Run:
    """One entry of a race. Equal runs give equal results, so that a finished run is never repeated."""

    problem: str
    optimizer: str
    lr: float
    seed: int
    steps: int | None = None
    device: str = "cpu"
    schedule: str = "constant"

    @property
    def key(self) -> str:
        """The run in words that do not change."""
        words = asdict(self)
        if self.schedule == "constant":  # older runs were recorded without this field
            del words["schedule"]
        if self.problem.endswith(".py") and Path(self.problem).exists():  # an edited file is another problem
            words["content"] = hashlib.sha256(Path(self.problem).read_bytes()).hexdigest()[:16]
        return json.dumps(words, sort_keys=True)

    def __str__(self) -> str:
        return f"{self.optimizer}, lr {self.lr:g}, seed {self.seed}"


def grid(
    problem: str,
    optimizers: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    device: str = "cpu",
    schedule: str | None = None,
) -> list[Run]:
    """Every combination of optimizer, learning rate and seed. A run that is not possible raises here, not later.

    Args:
        problem: a name or a file.
        optimizers: the learning rates of each optimizer.
        seeds: the seeds.
        steps: the length of each run; the problem's own length if None.
        device: where to train.
        schedule: one of `ggt_lab.runs.schedules.schedule_names`; None is the schedule of the problem if it has one,
            and constant otherwise.

    Raises:
        ValueError: an unknown name, schedule or option, a learning rate that is not positive, no seed, step or CUDA.
        ProblemError: the file of the problem raised.
    """
    cls = problem_of(problem)
    large_numbers(cls)  # raises if it cannot be read
    schedules = schedule_names(cls)
    schedule = schedule or (OWN if OWN in schedules else "constant")
    if schedule not in schedules:
        hint = "" if schedule != OWN else f"; {problem} has no method schedule(progress)"
        raise ValueError(f"schedule must be one of {', '.join(schedules)}; got {schedule!r}{hint}")
    if not optimizers or not seeds:
        raise ValueError(f"a race needs an optimizer and a seed, got optimizers={list(optimizers)}, {len(seeds)} seeds")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"device must be cpu or cuda, got {device!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device} was asked for, and torch sees no CUDA device here; use cpu")
    for spec, rates in optimizers.items():
        wrong = [rate for rate in rates if not 0 < rate < math.inf]
        if wrong or not rates:
            raise ValueError(f"learning rates must be positive numbers, got {list(rates)} for {spec}")
        check_optimizer(spec, rates[0])
    return [
        Run(problem, spec, lr, seed, steps, device, schedule)
        for spec, rates in optimizers.items()
        for lr in dict.fromkeys(rates)
        for seed in seeds
    ]


def race(
    runs: Sequence[Run],
    results: Results,
    *,
    workers: int = 1,
    on_done: Callable[[Run, Record], None] | None = None,
) -> None:
    """Train the runs that are not finished, in ``workers`` processes. After an interruption, the same call goes on."""
    with processes(workers) as pool:
        run_all(runs, execute, results, pool, on_done=on_done)


def execute(run: Run) -> Record:
    """Train one run, in this process.

    Raises:
        DataError: the data of the problem is not there.
        ProblemError: the problem or the optimizer raised, or ended the program. The message names both.
    """
    with running(run.problem, str(run)):
        cls = problem_of(run.problem)
        seed_everything(run.seed)
        problem = called("__init__", cls, run.seed, torch.device(run.device))
        seed_everything(run.seed)
        outcome = train(problem, optimizer_factory(run.optimizer), run.lr, steps=run.steps, schedule=run.schedule)
    larger = {"larger_is_better": True} if problem.metric in large_numbers(cls) else {}
    return {**asdict(run), "metric": problem.metric, **larger, **asdict(outcome)}
