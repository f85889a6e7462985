"""P2: the method of GGT also gives full-matrix RMSprop, Adadelta and Nadam.

Two questions. Is each member of `torch_ggt.relatives` what its formula says? The gradients of a run on the logistic
regression of S1 go through the literal dense form of `torch_ggt.reference`, and both must make the same steps. Is the
full matrix of use? The member and its diagonal namesake of torch.optim race on that landscape, each at its best
learning rate, and a paired test over seeds decides.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_ggt
from ggt_lab.experiments.experiment import Settings
from ggt_lab.experiments.seed_statistics import gaps, is_negative, stdev, why_open
from ggt_lab.experiments.short_experiment import ShortExperiment, ShortTask
from ggt_lab.experiments.verdicts import Figure, Verdict
from ggt_lab.figures.race_curves import draw_curves
from ggt_lab.problems import problem_class
from ggt_lab.runs.race import Run, execute, grid
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import beyond_the_edge, standings
from torch_ggt import reference

__all__ = ["DenseTask", "Relatives", "compare_with_dense"]

_PROBLEM = "logistic"
_MEASURE = "log_per_step"
_WINDOW = 20
_AGREE = 1e-6
_RATES = (0.01, 0.0316228, 0.1, 0.316228, 1.0, 3.16228)
_LARGEST_GRID = 12
_MEMBERS: dict[str, tuple[Callable[..., list[Tensor]], dict[str, Any]]] = {
    "RMSprop": (reference.dense_rmsprop, {"alpha": 0.99, "eps": 1e-4}),
    "Adadelta": (reference.dense_adadelta, {"rho": 0.9, "eps": 1e-4}),
    "NAdam": (reference.dense_nadam, {"betas": (0.9, 0.999), "eps": 1e-4, "momentum_decay": 4e-3}),
}
"""Each relative that the paper names: its dense form, and its options."""
_PAIRS = {name: (f"FullMatrix{name}(window=100)", name) for name in _MEMBERS}


@dataclass(frozen=True)
class DenseTask(ShortTask):
    """A run of a member, and its dense form on the gradients of that run."""

    kind = "dense form"
    member: str
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.member} and its dense form, seed {self.seed}"


def compare_with_dense(task: DenseTask) -> Record:
    """Train, and give the largest relative difference between a step of the member and a step of its dense form."""
    dense, options = _MEMBERS[task.member]
    problem = problem_class(_PROBLEM)(task.seed, torch.device("cpu"))
    (point,) = problem.parameters()
    optimizer = getattr(torch_ggt, task.member)([point], lr=0.1, window=_WINDOW, jitter=0.0, **options)
    gradients, steps = [], []
    for _ in range(task.steps):
        optimizer.zero_grad()
        problem.loss().backward()  # type: ignore[no-untyped-call]
        assert point.grad is not None
        gradients.append(point.grad.clone())
        before = point.detach().clone()
        optimizer.step()
        steps.append((before - point.detach()) / 0.1)
    expected = dense(gradients, window=_WINDOW, **options)
    differences = [float((a - b).norm() / b.norm()) for a, b in zip(steps, expected, strict=True)]
    return {**asdict(task), "difference": max(differences)}


class Relatives(ShortExperiment):
    """Experiment P2."""

    name = "P2"
    title = "Full-matrix RMSprop, Adadelta and Nadam"
    seeds = 8

    def first(self, settings: Settings) -> list[Run | DenseTask]:
        """Every member and its namesake on one grid, and every member against its dense form."""
        rates, steps = ((0.1, 0.316228), 4) if settings.smoke else (_RATES, 300)
        seeds = range(settings.seeds)
        specs = [spec for pair in _PAIRS.values() for spec in pair]
        dense = [DenseTask(member, seed, 10 if settings.smoke else 100) for member in _MEMBERS for seed in seeds]
        return [*grid(_PROBLEM, dict.fromkeys(specs, rates), seeds, steps=steps), *dense]

    def more(self, settings: Settings, tasks: Sequence[Run | DenseTask], records: Sequence[Record]) -> list[Run]:
        """Learning rates beyond the grids whose best point is at the edge."""
        runs = [task for task in tasks if isinstance(task, Run)]
        if settings.smoke or len({run.lr for run in runs}) > _LARGEST_GRID:
            return []
        return beyond_the_edge(runs, _races(records), by=[_MEASURE])

    def run(self, task: Run | DenseTask) -> Record:
        """One run of a race, or one comparison with a dense form."""
        return execute(task) if isinstance(task, Run) else compare_with_dense(task)

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge each member: is it its dense form, and is it better than the diagonal?"""
        races = _races(records)
        best = {standing.optimizer: standing for standing in standings(races, by=_MEASURE)}
        found = []
        for member, (full, diagonal) in _PAIRS.items():
            differences = [record["difference"] for record in records if record.get("member") == member]
            found.append(
                Verdict(
                    claim="P2",
                    statement=f"full-matrix {member} makes the steps of its dense form",
                    paper="the method extends to it",
                    ours=f"largest relative difference of a step {max(differences):.1g} (allowed: {_AGREE:g})",
                    spread=None,
                    n=len(differences),
                    holds=max(differences) <= _AGREE,
                    command=command,
                )
            )
            apart = gaps(races, _MEASURE, best[full], best[diagonal])
            holds = is_negative(apart)
            edge = "; a best rate is at the edge of its grid" if best[full].at_edge or best[diagonal].at_edge else ""
            found.append(
                Verdict(
                    claim="P2",
                    statement=f"full-matrix {member} is faster than diagonal {member} on logistic regression",
                    paper="not stated",
                    ours=(
                        f"mean log₁₀ suboptimality {best[full].log_per_step:.3f} (lr {best[full].lr:g}) against "
                        f"{best[diagonal].log_per_step:.3f} (lr {best[diagonal].lr:g}){edge}"
                        f"{why_open(holds, len(apart))}"
                    ),
                    spread=f"difference {statistics.fmean(apart):+.3f} ± {stdev(apart):.3f}",
                    n=len(apart),
                    holds=holds,
                    command=command,
                )
            )
        return found

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """Draw every member and its namesake at their best learning rates."""
        title = "P2: logistic regression, full-matrix and diagonal"
        names = {full: f"{member}, full matrix" for member, (full, _) in _PAIRS.items()}
        files = draw_curves(_races(records), folder / "relatives", title=title, by=_MEASURE, names=names)
        order = ", ".join(names.get(s.optimizer, s.optimizer) for s in standings(_races(records), by=_MEASURE))
        return [Figure(files[0], f"Suboptimality per step on logistic regression; from fastest to slowest: {order}.")]


def _races(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if "curve" in record]
