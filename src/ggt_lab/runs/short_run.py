"""A short run: one problem, one optimizer, one learning rate, and evaluations that are spread evenly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ggt_lab.optimizers.specs import OptimizerFactory
from ggt_lab.problems import Problem
from ggt_lab.problems.registry import large_numbers
from ggt_lab.runs.schedules import rate_function
from ggt_lab.runs.training_loop import loss_gradients, training_steps

__all__ = ["Outcome", "train"]


@dataclass(frozen=True)
class Outcome:
    """What a run showed."""

    status: str
    """ "done", or "diverged": gradients or the metric were not finite any more, and the curve ends there."""
    curve: list[dict[str, Any]]
    """Evaluations: the step, the seconds of training until then, and the numbers of the problem."""
    skipped: int = 0
    """The steps that were left out because the loss or its gradient was not finite."""


_GIVE_UP = 10  # steps in a row that are not finite


def train(
    problem: Problem,
    make_optimizer: OptimizerFactory,
    lr: float,
    *,
    steps: int | None = None,
    evaluations: int = 50,
    schedule: str = "constant",
) -> Outcome:
    """Train and evaluate: once before the first step, and then ``evaluations`` times.

    The seconds of the curve are seconds of training alone. The clock stands still while the problem is evaluated.
    A step whose loss or gradient is not finite is left out, with every optimizer; ten in a row end the run as diverged.
    ``schedule`` is one of `ggt_lab.runs.schedules.schedule_names`.

    Raises:
        ValueError: the number of steps is not a whole number of at least 1, or evaluate() returns no usable numbers.
    """
    named = "steps of the problem" if steps is None else "steps"
    steps = problem.steps if steps is None else steps
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"{named} must be a whole number of at least 1, got {steps!r}")
    parameters = list(problem.parameters())
    optimizer = make_optimizer(parameters, lr)
    marks = {round(steps * k / evaluations) for k in range(evaluations + 1)}
    seconds = 0.0
    curve: list[dict[str, Any]] = []

    def evaluate(step: int) -> bool:
        """Add a point to the curve; False if the metric is not finite."""
        with torch.no_grad():
            numbers = _checked(problem.evaluate(), problem)
        if not math.isfinite(numbers[problem.metric]):
            if step == 0:
                raise ValueError(f"evaluate() gives {problem.metric} = {numbers[problem.metric]} before any step")
            return False
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        curve.append({"step": step, "seconds": seconds, **finite})
        return True

    def is_finite(loss: Tensor | None) -> bool:
        gradients = [p.grad for p in parameters if p.grad is not None]
        size = torch.nn.utils.get_total_norm(gradients)
        return math.isfinite(size.item()) and (loss is None or math.isfinite(loss.item()))

    evaluate(0)
    skipped = in_a_row = 0
    for step in training_steps(
        optimizer,
        loss_gradients(optimizer, problem.loss),
        last=steps,
        rate_at=rate_function(problem, schedule, lr, steps),
        is_usable=is_finite,
    ):
        seconds += step.seconds
        skipped += not step.taken
        in_a_row = 0 if step.taken else in_a_row + 1
        if in_a_row >= _GIVE_UP or (step.number in marks and not evaluate(step.number)):
            return Outcome("diverged", curve, skipped)
    return Outcome("done", curve, skipped)


def _checked(numbers: Any, problem: Problem) -> dict[str, float]:  # noqa: ANN401 - whatever a user's evaluate() returns
    """The numbers of an evaluation as floats, or an error that says what evaluate() should return."""
    metric = problem.metric
    if not isinstance(numbers, Mapping) or metric not in numbers:
        raise ValueError(
            f"evaluate() must return a dict of numbers, {metric!r} (the metric) among them; got {numbers!r}"
        )
    reserved = {"step", "seconds", "epoch"} & set(numbers)
    if reserved:
        raise ValueError(f"evaluate() returns {', '.join(sorted(reserved))}, which the curve uses itself; rename it")
    strange = [name for name in large_numbers(type(problem)) if name not in numbers]
    if strange:
        raise ValueError(
            f"larger_is_better names {', '.join(strange)}, and evaluate() returns {', '.join(map(str, numbers))}; "
            "it should name numbers that evaluate() returns"
        )
    return {str(name): float(value) for name, value in numbers.items()}
