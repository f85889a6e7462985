"""A short run: one problem, one optimizer, one learning rate, and evaluations that are spread evenly."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ggt_lab.optimizers.specs import OptimizerFactory
from ggt_lab.problems import Problem
from ggt_lab.problems.registry import large_numbers
from ggt_lab.runs.schedules import rate_function
from ggt_lab.runs.training_loop import loss_gradients, training_steps
from ggt_lab.runs.users_code import MemberError, called

__all__ = ["Outcome", "parameters_of", "steps_of", "train"]


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
        MemberError: a member of the problem gives what a run cannot use; the message says what it should give.
    """
    steps = steps_of(problem, steps)
    if not isinstance(problem.metric, str):
        raise MemberError("metric", f"metric should be the name of a number of evaluate(); it is {problem.metric!r}")
    parameters = parameters_of(problem)
    optimizer = make_optimizer(parameters, lr)
    marks = {round(steps * k / evaluations) for k in range(evaluations + 1)}
    seconds = 0.0
    curve: list[dict[str, Any]] = []

    def evaluate(step: int) -> bool:
        """Add a point to the curve; False if the metric is not finite."""
        with torch.no_grad():
            numbers = _checked(called("evaluate", problem.evaluate), problem)
        if not math.isfinite(numbers[problem.metric]):
            if step == 0:
                words = f"evaluate() gives {problem.metric} = {numbers[problem.metric]} before any step"
                raise MemberError("evaluate", f"{words}; the start of a run should have a finite metric")
            return False
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        curve.append({"step": step, "seconds": seconds, **finite})
        return True

    def is_finite(loss: Tensor | None) -> bool:
        gradients = [_numbers(p.grad) for p in parameters if p.grad is not None]
        size = torch.nn.utils.get_total_norm(gradients)
        return math.isfinite(size.item()) and (loss is None or math.isfinite(loss.item()))

    evaluate(0)
    skipped = in_a_row = 0
    for step in training_steps(
        optimizer,
        loss_gradients(optimizer, _checked_loss(problem)),
        last=steps,
        rate_at=rate_function(problem, schedule, lr, steps),
        is_usable=is_finite,
    ):
        if step.number == 1 and all(p.grad is None for p in parameters):
            raise MemberError(
                "loss", "loss() gives no gradient to any of parameters(); it should be computed from them"
            )
        seconds += step.seconds
        skipped += not step.taken
        in_a_row = 0 if step.taken else in_a_row + 1
        if in_a_row >= _GIVE_UP or (step.number in marks and not evaluate(step.number)):
            return Outcome("diverged", curve, skipped)
    return Outcome("done", curve, skipped)


def steps_of(problem: Problem, steps: int | None) -> int:
    """The length of a run: ``steps``, or else the problem's own.

    Raises:
        MemberError: it is not a whole number of at least 1.
    """
    named = "steps of the problem" if steps is None else "steps"
    found = problem.steps if steps is None else steps
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise MemberError("steps", f"{named} must be a whole number of at least 1, got {found!r}")
    return found


def _numbers(gradient: Tensor) -> Tensor:
    """The numbers that are stored: norms know dense tensors only."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def parameters_of(problem: Problem) -> list[torch.nn.Parameter]:
    """The parameters that are optimized.

    Raises:
        MemberError: the problem gives something else, or nothing.
    """
    given = called("parameters", problem.parameters)
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, Tensor) else []
    if listed and all(isinstance(each, Tensor) for each in listed):
        return listed
    strange = [type(each).__name__ for each in listed if not isinstance(each, Tensor)]
    got = f"a {strange[0]} among them" if strange else _short(given)
    raise MemberError("parameters", f"parameters() should give parameters, as self.model.parameters() does; got {got}")


def _checked_loss(problem: Problem) -> Callable[[], Tensor]:
    """The method ``loss``, with an error that says what it should return."""

    def loss() -> Tensor:
        value: Any = called("loss", problem.loss)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _short(value)
            raise MemberError("loss", f"loss() should return a tensor with one number, got {got}")
        if not value.requires_grad:
            words = "loss() returns a tensor without a gradient; it should be computed from the parameters"
            raise MemberError("loss", f"{words}, and without .item(), .detach() and torch.no_grad()")
        return value

    return loss


def _short(value: object) -> str:
    return textwrap.shorten(repr(value), 80)


def _checked(numbers: Any, problem: Problem) -> dict[str, float]:  # noqa: ANN401 - whatever a user's evaluate() returns
    """The numbers of an evaluation as floats, or an error that says what evaluate() should return."""
    metric = problem.metric
    if not isinstance(numbers, Mapping) or metric not in numbers:
        words = f"evaluate() must return a dict of numbers, {metric!r} (the metric) among them"
        raise MemberError("evaluate", f"{words}; got {_short(numbers)}")
    reserved = {"step", "seconds", "epoch"} & set(numbers)
    if reserved:
        words = f"evaluate() returns {', '.join(sorted(reserved))}, which the curve uses itself; rename it"
        raise MemberError("evaluate", words)
    strange = [name for name in large_numbers(type(problem)) if name not in numbers]
    if strange:
        raise MemberError(
            "larger_is_better",
            f"larger_is_better names {', '.join(strange)}, and evaluate() returns {', '.join(map(str, numbers))}; "
            "it should name numbers that evaluate() returns",
        )
    return {str(name): _number(name, value) for name, value in numbers.items()}


def _number(name: object, value: Any) -> float:  # noqa: ANN401 - whatever a user's evaluate() returns
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        words = f"evaluate() returns {name} = {_short(value)}; it should be a number"
        raise MemberError("evaluate", words) from None
