"""One run: one problem, one optimizer, one learning rate, one seed."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ggt_lab.problems import Problem

__all__ = ["Outcome", "train"]

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]


@dataclass(frozen=True)
class Outcome:
    """What a run showed."""

    status: str
    """ "done", or "diverged": a loss was not finite, and the curve ends there."""
    curve: list[dict[str, Any]]
    """Evaluations: step, seconds spent training until then, and the problem's numbers."""


def train(
    problem: Problem,
    make_optimizer: OptimizerFactory,
    lr: float,
    *,
    steps: int | None = None,
    evaluations: int = 50,
    on_step: Callable[[int], None] | None = None,
) -> Outcome:
    """Train and evaluate, at the start and then ``evaluations`` times, evenly spread.

    Seconds are those of training alone: the clock stands still while the problem is evaluated.
    """
    steps = problem.steps if steps is None else steps
    optimizer = make_optimizer(problem.parameters(), lr)
    marks = {round(steps * k / evaluations) for k in range(evaluations + 1)}
    seconds = 0.0
    curve: list[dict[str, Any]] = []
    for step in range(steps + 1):
        if step in marks:
            with torch.no_grad():
                numbers = problem.evaluate()
            if not all(math.isfinite(value) for value in numbers.values()):
                return Outcome("diverged", curve)
            curve.append({"step": step, "seconds": seconds, **numbers})
        if step == steps:
            break
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = problem.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds += time.perf_counter() - start
        if not math.isfinite(loss.item()):
            return Outcome("diverged", curve)
        if on_step is not None:
            on_step(step)
    return Outcome("done", curve)
