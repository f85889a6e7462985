"""How an entrant moves: one gradient at a time, or by a quasi-Newton method, whose line search takes several."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ggt_lab.league.entrants import Entrant
from ggt_lab.optimizers.specs import finish_of, optimizer_factory
from ggt_lab.problems import Problem
from ggt_lab.problems.deep_problem import DeepProblem
from ggt_lab.runs.schedules import SCHEDULES
from ggt_lab.runs.training_loop import loss_gradients
from torch_ggt import param_groups

__all__ = ["Move", "Stepper", "make_stepper"]

_ITERATIONS = 20  # of L-BFGS between two looks at the number of gradients


class Move(NamedTuple):
    """What a move took."""

    gradients: int
    finite: bool
    """Whether the loss and its gradient were finite; if not, the parameters stayed as they were."""


class Stepper(Protocol):
    """Moves the parameters of a problem."""

    def move(self, done: int) -> Move:
        """One move, after ``done`` gradients."""
        ...


def make_stepper(
    problem: Problem,
    entrant: Entrant,
    settings: Mapping[str, float],
    lr: float,
    steps: int,
    *,
    warm_up: float = 0.0,
    schedule: str = "cosine",
) -> Stepper:
    """The stepper of an entrant for a run of ``steps`` gradients.

    The rate of first-order methods rises for the share ``warm_up``, and follows the schedule.
    """
    spec = entrant.spec_with(settings)
    if entrant.kind == "L-BFGS":
        return _LBFGS(problem, spec, lr, steps)
    if entrant.kind.startswith("then"):
        switch = round(settings["share"] * steps)

        def quasi_newton() -> Stepper:
            if entrant.kind == "then self-scaled":
                return _SelfScaled(problem, entrant.then, steps)
            return _LBFGS(problem, "LBFGS(history_size=50, line_search_fn='strong_wolfe')", 1.0, steps)

        # Adam has a constant rate here, as is the habit of the field.
        return _Then(_FirstOrder(problem, spec, lambda _: lr), quasi_newton, switch)

    def rate_at(done: int) -> float:
        rising = min(1.0, (done + 1) / (warm_up * steps)) if warm_up else 1.0
        return lr * rising * SCHEDULES[schedule](done / steps)

    return _FirstOrder(problem, spec, rate_at)


class _FirstOrder:
    """A gradient, then a step of the optimizer."""

    def __init__(self, problem: Problem, spec: str, rate_at: Callable[[int], float]) -> None:
        self._parameters = list(problem.parameters())
        self.optimizer = optimizer_factory(spec)(_sorted_parameters(problem, spec), rate_at(0))
        self._rate_at = rate_at
        # A deep problem has a faster way to its gradients than a loss and autograd.
        given: Callable[[], Tensor | None] | None = getattr(problem, "take_gradients", None)
        self._take_gradients = given or loss_gradients(self.optimizer, problem.loss)

    def move(self, done: int) -> Move:
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate_at(done)
        loss = self._take_gradients()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        size = torch.nn.utils.get_total_norm(gradients)
        finite = math.isfinite(size.item()) and (loss is None or math.isfinite(loss.item()))
        if finite:
            self.optimizer.step()
        return Move(1, finite)


def _sorted_parameters(problem: Problem, spec: str) -> list[Any]:
    """The parameters of a small problem; the param groups of a deep one, alike for everybody.

    In a deep model embeddings and the last layer are no hidden matrices: Muon's authors leave them to AdamW, and our
    polar finishes leave them to "adam". Norms and biases have no weight decay, whoever the optimizer is.
    """
    if not isinstance(problem, DeepProblem):
        return list(problem.parameters())
    head = {f"^{re.escape(problem.head)}$": {"role": "rest"}}
    return param_groups(problem.model, finish=finish_of(spec), overrides=head)


class _QuasiNewton:
    """A method whose line search takes several gradients. A move that would take more than are left is undone."""

    def __init__(self, problem: Problem, spec: str, lr: float, steps: int) -> None:
        self._parameters = list(problem.parameters())
        self.optimizer = optimizer_factory(spec)(self._parameters, lr)
        self._loss = problem.loss
        self._steps = steps

    def prepare(self, left: int) -> None:
        """Before a move, when ``left`` gradients are left."""

    def forget(self) -> None:
        """Drop the curvature of points that are not finite."""

    def gradient(self) -> Tensor:
        """The loss at the parameters; their gradients are left in ``grad``."""
        self.optimizer.zero_grad()
        loss = self._loss()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def move(self, done: int) -> Move:
        before = self._points()
        self.prepare(self._steps - done)
        taken, finite = 0, True

        def closure() -> Tensor:
            nonlocal taken, finite
            loss, fresh = self.evaluate()
            taken += fresh
            finite = finite and math.isfinite(loss.item())
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        finite = finite and all(bool(p.isfinite().all()) for p in self._parameters)
        if not finite or done + taken > self._steps:
            with torch.no_grad():
                for parameter, old in zip(self._parameters, before, strict=True):
                    parameter.copy_(old)
        if not finite:
            self.forget()
        return Move(max(taken, 1), finite)  # a method that has stopped moves no more, and the run goes on to its end

    def evaluate(self) -> tuple[Tensor, int]:
        """The loss at the parameters, and how many gradients it took."""
        return self.gradient(), 1

    def _points(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._parameters]


class _LBFGS(_QuasiNewton):
    """Some iterations of torch's L-BFGS."""

    def __init__(self, problem: Problem, spec: str, lr: float, steps: int) -> None:
        super().__init__(problem, spec, lr, steps)
        group = self.optimizer.param_groups[0]
        group["tolerance_grad"] = group["tolerance_change"] = 0.0  # it ends when the gradients are used up

    def prepare(self, left: int) -> None:
        group = self.optimizer.param_groups[0]
        group["max_iter"] = _ITERATIONS
        group["max_eval"] = max(1, min(_ITERATIONS * 5 // 4, left))

    def forget(self) -> None:
        self.optimizer.state.clear()


class _SelfScaled(_QuasiNewton):
    """One iteration of a self-scaled method of Broyden's class, with a dense matrix.

    The method asks for the gradient at its start, where the line search of the iteration before has ended. This
    gradient is remembered, and costs nothing.
    """

    def __init__(self, problem: Problem, spec: str, steps: int) -> None:
        before = torch.get_default_dtype()
        torch.set_default_dtype(next(iter(problem.parameters())).dtype)  # it makes its matrix in torch's default
        super().__init__(problem, spec, 1.0, steps)
        torch.set_default_dtype(before)
        self._searched: list[tuple[list[Tensor], Tensor, list[Tensor]]] = []

    def prepare(self, left: int) -> None:
        here = self._points()
        same = [known for known in self._searched if all(map(torch.equal, known[0], here))]
        self._searched = same[:1]

    def evaluate(self) -> tuple[Tensor, int]:
        here = self._points()
        for place, loss, gradients in self._searched[:1]:
            if all(map(torch.equal, place, here)):
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    parameter.grad = gradient.clone()
                return loss, 0
        loss = self.gradient().detach()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self._parameters]
        self._searched.append((here, loss, gradients))
        return loss, 1


class _Then:
    """One stepper for the first ``switch`` gradients, and another one for the rest."""

    def __init__(self, first: Stepper, make_second: Callable[[], Stepper], switch: int) -> None:
        self._first, self._make_second, self._switch = first, make_second, switch
        self._second: Stepper | None = None

    def move(self, done: int) -> Move:
        if done < self._switch:
            return self._first.move(done)
        self._second = self._second or self._make_second()
        return self._second.move(done)
