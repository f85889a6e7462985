"""One run: one problem, one optimizer, one learning rate, one seed."""

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ggt_lab.problems import Problem

__all__ = ["Outcome", "seed_everything", "train"]

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]


@dataclass(frozen=True)
class Outcome:
    """What a run showed."""

    status: str
    """ "done", or "diverged": a loss was not finite, and the curve ends there."""
    curve: list[dict[str, Any]]
    """Evaluations: step, seconds spent training until then, and the problem's numbers."""


def seed_everything(seed: int) -> None:
    """Seed torch, NumPy and Python, so that a problem may use any of them and still starts the same for all."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # the state that users' code reads
    random.seed(seed)


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
                numbers = _checked(problem.evaluate(), problem.metric)
            if not math.isfinite(numbers[problem.metric]):
                if step == 0:
                    raise ValueError(f"evaluate() gives {problem.metric} = {numbers[problem.metric]} before any step")
                return Outcome("diverged", curve)
            finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
            curve.append({"step": step, "seconds": seconds, **finite})
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


def _checked(numbers: Any, metric: str) -> dict[str, float]:  # noqa: ANN401 - whatever a user's evaluate() returns
    """The numbers of an evaluation as floats, or an error that says what evaluate() should return."""
    if not isinstance(numbers, Mapping) or metric not in numbers:
        raise ValueError(
            f"evaluate() must return a dict of numbers, {metric!r} (the metric) among them; got {numbers!r}"
        )
    reserved = {"step", "seconds", "epoch"} & set(numbers)
    if reserved:
        raise ValueError(f"evaluate() returns {', '.join(sorted(reserved))}, which the curve uses itself; rename it")
    return {str(name): float(value) for name, value in numbers.items()}
