"""Schedules: the factor of the learning rate as a function of the share of a run that is done."""

import math
from collections.abc import Callable
from typing import Any

from ggt_lab.runs.users_code import MemberError, called

__all__ = ["OWN", "SCHEDULES", "rate_function", "schedule_names"]

Schedule = Callable[[float], float]
"""The factor of the learning rate, from the share of a run that is done."""


def _cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _linear(progress: float) -> float:
    return 1 - progress


def _halving(progress: float) -> float:
    return 0.5 ** math.floor(progress * 8)


SCHEDULES: dict[str, Schedule] = {
    "constant": lambda _: 1.0,
    "cosine": _cosine,
    "linear": _linear,
    "halving": _halving,
}
"""Schedules by name. "cosine" and "linear" fall to zero, "halving" halves the rate seven times."""
OWN = "own"
"""The schedule that a problem defines as its method ``schedule(progress)``."""


def schedule_names(problem: type[Any]) -> list[str]:
    """The schedules that a race on this problem can have."""
    return [*SCHEDULES, *([OWN] if callable(getattr(problem, "schedule", None)) else [])]


def rate_function(problem: Any, name: str, lr: float, steps: int) -> Callable[[int], float] | None:  # noqa: ANN401
    """The learning rate as a function of the number of steps taken; None if it is constant.

    Args:
        problem: the problem; its method ``schedule`` is asked if the name is "own".
        name: one of `schedule_names`.
        lr: the learning rate that the factors multiply.
        steps: the length of the run.

    Example:
        >>> rate = rate_function(None, "linear", 0.2, 4)
        >>> [round(rate(step), 3) for step in range(4)]
        [0.2, 0.15, 0.1, 0.05]
    """
    if name == "constant":
        return None
    factor = problem.schedule if name == OWN else SCHEDULES[name]

    def rate_at(step: int) -> float:
        found: Any = called("schedule", factor, step / steps)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
            raise MemberError(
                "schedule",
                f"schedule({step / steps:g}) of the problem returns {found!r}; it should return the factor of the "
                "learning rate at that share of the run: a number that is not negative, such as 1.0 at the start",
            )
        return lr * found

    return rate_at
