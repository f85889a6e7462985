"""The training loop of the lab: gradients, then a step, again and again. Races and long runs both use it.

    for step in training_steps(optimizer, loss_gradients(optimizer, problem.loss), last=100):
        ...  # evaluate, record, or break

The loop takes the steps. Whoever iterates decides when to evaluate, what to record and when to end.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["TrainingStep", "loss_gradients", "seed_everything", "training_steps"]


class TrainingStep(NamedTuple):
    """One step that was taken."""

    number: int
    """How many steps were taken so far, this step included."""
    loss: Tensor | None
    """What ``take_gradients`` returned."""
    seconds: float
    """Time of the gradients and of the optimizer, without whatever is done between steps."""
    taken: bool = True
    """False if ``is_usable`` refused the gradients: the parameters stayed as they were."""


def training_steps(
    optimizer: torch.optim.Optimizer,
    take_gradients: Callable[[], Tensor | None],
    *,
    last: int,
    first: int = 0,
    rate_at: Callable[[int], float] | None = None,
    is_usable: Callable[[Tensor | None], bool] | None = None,
    time_is_up: Callable[[], bool] | None = None,
) -> Iterator[TrainingStep]:
    """Train, and hand out each step after it was taken.

    Args:
        optimizer: takes the steps.
        take_gradients: puts the gradients of the next batch into the parameters.
        last: the number of steps of the whole run.
        first: how many of them were taken before, in an earlier session.
        rate_at: the learning rate as a function of the number of steps taken; None leaves the rate alone.
        is_usable: asked after the gradients, with the loss; the optimizer takes no step where it says no.
        time_is_up: asked before every step; the loop ends when it says yes.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(1))
        >>> sgd = torch.optim.SGD([w], lr=0.25)
        >>> [step.number for step in training_steps(sgd, loss_gradients(sgd, lambda: (w**2).sum()), last=2)]
        [1, 2]
        >>> w.item()
        0.25
    """
    for number in range(first, last):
        if time_is_up is not None and time_is_up():
            return
        if rate_at is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate_at(number)
        start = time.perf_counter()
        loss = take_gradients()
        taken = is_usable is None or is_usable(loss)
        if taken:
            optimizer.step()
        yield TrainingStep(number + 1, loss, time.perf_counter() - start, taken)


def loss_gradients(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A function that replaces the gradients of the optimizer's parameters by those of the next ``loss()``."""

    def take_gradients() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    return take_gradients


def seed_everything(seed: int) -> None:
    """Seed torch, NumPy and Python: a problem may use any of them, and all optimizers still get equal starts."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # the state that users' code reads
    random.seed(seed)
