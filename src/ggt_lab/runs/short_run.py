"""A short run: one problem, one optimizer, one learning rate, and evaluations that are spread evenly."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ggt_lab.optimizers.specs import OptimizerFactory
from ggt_lab.problems import Problem
from ggt_lab.runs.training_loop import loss_gradients, training_steps

__all__ = ["Outcome", "train"]


@dataclass(frozen=True)
class Outcome:
    """What a run showed."""

    status: str
    """ "done", or "diverged": a loss was not finite, and the curve ends there."""
    curve: list[dict[str, Any]]
    """Evaluations: the step, the seconds of training until then, and the numbers of the problem."""


def train(
    problem: Problem,
    make_optimizer: OptimizerFactory,
    lr: float,
    *,
    steps: int | None = None,
    evaluations: int = 50,
    rate_at: Callable[[int], float] | None = None,
) -> Outcome:
    """Train and evaluate: once before the first step, and then ``evaluations`` times.

    The seconds of the curve are seconds of training alone. The clock stands still while the problem is evaluated.
    ``rate_at`` is the learning rate as a function of the number of steps taken; without it the rate stays ``lr``.

    Raises:
        ValueError: the number of steps is not a whole number of at least 1, or evaluate() returns no usable numbers.
    """
    named = "steps of the problem" if steps is None else "steps"
    steps = problem.steps if steps is None else steps
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"{named} must be a whole number of at least 1, got {steps!r}")
    optimizer = make_optimizer(problem.parameters(), lr)
    marks = {round(steps * k / evaluations) for k in range(evaluations + 1)}
    seconds = 0.0
    curve: list[dict[str, Any]] = []

    def evaluate(step: int) -> bool:
        """Add a point to the curve; False if the metric is not finite."""
        with torch.no_grad():
            numbers = _checked(problem.evaluate(), problem.metric)
        if not math.isfinite(numbers[problem.metric]):
            if step == 0:
                raise ValueError(f"evaluate() gives {problem.metric} = {numbers[problem.metric]} before any step")
            return False
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        curve.append({"step": step, "seconds": seconds, **finite})
        return True

    evaluate(0)
    for step in training_steps(optimizer, loss_gradients(optimizer, problem.loss), last=steps, rate_at=rate_at):
        seconds += step.seconds
        assert step.loss is not None
        if not math.isfinite(step.loss.item()) or (step.number in marks and not evaluate(step.number)):
            return Outcome("diverged", curve)
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
