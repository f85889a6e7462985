"""P1: the paper's remarks on its own options. Each option is changed alone, on a small network.

The runs are a race on ``digits``. Each variant has its own tuned learning rate. Variants are compared seed by seed, by
the mean of log₁₀ training loss over the run. A gain counts if Student's test shows it at 95 %. "Little" and
"unnoticeable" get a number: the change and its standard error together are smaller than the effect of a seed, which is
the standard deviation over the seeds of the other variant.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from torch import Tensor

from ggt_lab.experiments.experiment import Settings
from ggt_lab.experiments.seed_statistics import FEWEST, gaps, is_negative, runs_of, stdev, why_open
from ggt_lab.experiments.short_experiment import ShortExperiment, ShortTask
from ggt_lab.experiments.verdicts import Figure, Verdict
from ggt_lab.figures.style import COLORS, log_axis, quiet, save
from ggt_lab.problems import problem_class
from ggt_lab.runs.race import Run, execute, grid
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import Standing, beyond_the_edge, measure, standings
from ggt_lab.runs.training_loop import loss_gradients, training_steps
from torch_ggt import GGT

__all__ = ["Ablations", "DirectionTask"]

_PROBLEM = "digits"
_WINDOWS = (5, 10, 20, 40, 80)
_PRINCIPLED = 20  # 1/(1 - 0.95)
_PAPER: dict[str, Any] = {
    "window": 20,
    "betas": (0.9, 1.0),
    "history": "momentum",
    "finish": "none",
    "shrinkage": 0.0,
    "weight_decay": 0.0,
}
"""The GGT of the paper, whatever the defaults of `GGT` are."""


def _variant(**changes: object) -> str:
    return f"GGT({', '.join(f'{name}={value!r}' for name, value in (_PAPER | changes).items())})"


_BASE = _variant()
_GRADIENT = _variant(history="gradient")
_SLOW_DECAY = _variant(betas=(0.9, 0.999))
_NO_JITTER = _variant(jitter=0.0)
_BY_WINDOW = {size: _variant(window=size, betas=(0.9, 0.95)) for size in _WINDOWS}
_NAMES = {
    _BASE: "GGT",
    _GRADIENT: "GGT with gradients in the window",
    _SLOW_DECAY: "GGT with β₂ = 0.999",
    _NO_JITTER: "GGT without jitter",
    **{spec: f"GGT with β₂ = 0.95 and {size} rows" for size, spec in _BY_WINDOW.items()},
}
_SPECS = tuple(_NAMES)
_RATES = (0.003, 0.01, 0.03, 0.1)
_SCALES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_MEASURE = "log_per_step"


@dataclass(frozen=True)
class DirectionTask(ShortTask):
    """The angle between a GGT step and an SGD step with momentum, for growing ``sgd_scale``, after some training."""

    kind = "direction"
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"directions, seed {self.seed}"


def measure_direction(task: DirectionTask) -> Record:
    """Train, then take the next step once for every scale, always from the state after training.

    The unit of a scale is 1/(√λmax of the window): at 1 the added term is as large as the gain of the preconditioner in
    its stiffest direction.
    """
    problem = problem_class(_PROBLEM)(task.seed, torch.device("cpu"))
    parameters = list(problem.parameters())
    optimizer = GGT(parameters, lr=0.01, **_PAPER)
    take_gradients = loss_gradients(optimizer, problem.loss)
    for _ in training_steps(optimizer, take_gradients, last=task.steps):
        pass
    take_gradients()
    unit = 1 / float(optimizer.spectrum()[0][0])
    before, state = [p.detach().clone() for p in parameters], optimizer.state_dict()
    cosines = []
    for scale in _SCALES:
        twin = GGT(parameters, lr=0.01, **_PAPER)
        twin.load_state_dict(state)
        twin.param_groups[0]["sgd_scale"] = scale * unit
        twin.step()
        step = _flat([old - p.detach() for old, p in zip(before, parameters, strict=True)])
        momentum = _flat([twin.state[p]["momentum_buffer"] for p in parameters])
        cosines.append(float(torch.nn.functional.cosine_similarity(step, momentum, dim=0)))
        with torch.no_grad():
            for p, old in zip(parameters, before, strict=True):
                p.copy_(old)
    return {**asdict(task), "scales": _SCALES, "cosines": cosines}


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


class Ablations(ShortExperiment):
    """Experiment P1."""

    name = "P1"
    title = "The paper's remarks on its options"
    seeds = 5

    def first(self, settings: Settings) -> list[Run | DirectionTask]:
        """All variants on one grid, and the directions."""
        rates, steps = ((0.01, 0.03), 4) if settings.smoke else (_RATES, None)
        seeds = range(settings.seeds)
        runs = grid(_PROBLEM, dict.fromkeys(_SPECS, rates), seeds, steps=steps)
        return [*runs, *(DirectionTask(seed, steps or 100) for seed in seeds)]

    def more(self, settings: Settings, tasks: Sequence[Run | DirectionTask], records: Sequence[Record]) -> list[Run]:
        """Learning rates beyond the grids whose best point is at the edge."""
        runs = [task for task in tasks if isinstance(task, Run)]
        if settings.smoke or len({run.lr for run in runs}) > 2 * len(_RATES):
            return []
        return beyond_the_edge(runs, _races(records), by=[_MEASURE])

    def run(self, task: Run | DirectionTask) -> Record:
        """One run of a race, or one set of directions."""
        return execute(task) if isinstance(task, Run) else measure_direction(task)

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge each remark."""
        races = _races(records)
        best = {standing.optimizer: standing for standing in standings(races, by=_MEASURE)}

        def compare(
            statement: str, paper: str, variant: str, other: str, judge: Callable[[Sequence[float], float], bool | None]
        ) -> Verdict:
            differences = gaps(races, _MEASURE, best[variant], best[other])
            mean = statistics.fmean(differences)
            noise = stdev([measure(run, _MEASURE) for run in runs_of(races, best[other])])
            better = sum(gap < 0 for gap in differences)
            holds = judge(differences, noise)
            return Verdict(
                claim="P1",
                statement=statement,
                paper=paper,
                ours=(
                    f"mean log₁₀ loss {_words(best[variant])} against {_words(best[other])}; the first is lower in "
                    f"{better} of {len(differences)} seeds; standard deviation over seeds {noise:.3f}"
                    f"{why_open(holds, len(differences))}"
                ),
                spread=f"difference {mean:+.3f} ± {stdev(differences):.3f}",
                n=len(differences),
                holds=holds,
                command=command,
            )

        longest, shortest = _BY_WINDOW[_WINDOWS[-1]], _BY_WINDOW[_WINDOWS[0]]
        principled = _BY_WINDOW[_PRINCIPLED]
        directions = [record for record in records if "cosines" in record]
        cosines = [statistics.fmean(column) for column in zip(*(r["cosines"] for r in directions), strict=True)]
        shown = ", ".join(f"{cosine:.3f} at {scale:g}" for scale, cosine in zip(_SCALES, cosines, strict=True))
        long, short = (
            f"at β₂ = 0.95 a window of {words}" for words in ("80 is no better than 20", "20 is better than 5")
        )
        rule = "r ≈ 1/(1 − β₂) is the principled window"
        return [
            compare("momentum in the window gives a small gain", "a small gain", _BASE, _GRADIENT, _is_gain),
            compare("β₂ = 1 changes little while r ≪ T", "changes little", _BASE, _SLOW_DECAY, _is_little),
            compare("a jitter of 1e-6 is unnoticeable", "unnoticeable", _BASE, _NO_JITTER, _is_little),
            compare(f"{long} = 1/(1 − β₂)", rule, longest, principled, _is_no_gain),
            compare(short, rule, principled, shortest, _is_gain),
            Verdict(
                claim="P1",
                statement="decoupling ε from 1/ε (sgd_scale) moves the step of GGT towards the step of SGD",
                paper="interpolates with SGD",
                ours=f"cosine of the two steps, by sgd_scale: {shown}",
                spread=None,
                n=len(directions),
                holds=all(a < b for a, b in itertools.pairwise(cosines)) and cosines[-1] > 0.99,
                command=command,
            ),
        ]

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """Draw every variant at its best learning rate, and the way from GGT to SGD."""
        races = _races(records)
        ordered = standings(races, by=_MEASURE)
        figure, (dots, way) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2), layout="constrained")
        for row, standing in enumerate(reversed(ordered)):
            values = [measure(run, _MEASURE) for run in runs_of(races, standing)]
            dots.plot(values, [row] * len(values), "o", color=COLORS[5], markersize=4)
            dots.plot(statistics.fmean(values), row, "|", color=COLORS[6], markersize=14, markeredgewidth=2)
        labels = [f"{_NAMES[standing.optimizer]}, lr {standing.lr:g}" for standing in reversed(ordered)]
        dots.set_yticks(range(len(ordered)), labels, fontsize=8)
        dots.set_xlabel("mean log₁₀ training loss over the run (seeds, and their mean)")
        for record in records:
            if "cosines" in record:
                way.plot(record["scales"][1:], record["cosines"][1:], color=COLORS[0], marker="o", markersize=3)
        log_axis(way, "x")
        way.set_xlabel("sgd_scale, in units of 1/√λmax")
        way.set_ylabel("cosine with the step of SGD")
        for axes in (dots, way):
            quiet(axes)
        files = save(figure, folder / "ablations", title=f"P1: options of GGT on {_PROBLEM}")
        return [
            Figure(files[0], "Training loss of each variant of GGT; cosine with the step of SGD as sgd_scale grows.")
        ]


def _is_gain(differences: Sequence[float], noise: float) -> bool | None:
    del noise
    return is_negative(differences)


def _is_no_gain(differences: Sequence[float], noise: float) -> bool | None:
    """No better: a gain is not shown, and the mean gain is smaller than the effect of a seed."""
    better = is_negative(differences)
    return None if better is None and statistics.fmean(differences) < -noise else better is not True


def _is_little(differences: Sequence[float], noise: float) -> bool | None:
    """The change and its uncertainty together are smaller than the effect of a seed; None if that stays open."""
    if len(differences) < FEWEST:
        return None
    mean, error = abs(statistics.fmean(differences)), stdev(differences) / math.sqrt(len(differences))
    if mean + error <= noise:
        return True
    return False if mean - error > noise else None


def _words(standing: Standing) -> str:
    return f"{getattr(standing, _MEASURE):.3f} ({_NAMES[standing.optimizer]}, lr {standing.lr:g})"


def _races(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if "curve" in record]
