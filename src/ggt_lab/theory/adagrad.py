"""Algorithm 2: full-matrix AdaGrad on a convex function, with the averaged iterate as its output."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ggt_lab.theory.oracles import Oracle
from torch_ggt import coefficients

__all__ = ["AdaGradRun", "adagrad"]


@dataclass(frozen=True)
class AdaGradRun:
    """What a run of Algorithm 2 gives."""

    average: Tensor
    """(x_1 + … + x_w)/w: the output."""
    last: Tensor
    """x_{w+1}."""
    steps: int
    """w, the number of calls to the oracle."""


def adagrad(oracle: Oracle, start: Tensor, *, steps: int, lr: float, eps: float = 1e-8) -> AdaGradRun:
    r"""Run x ← x - η [εI + (G_t G_tᵀ)^½]⁻¹ g_t for ``steps`` steps, where G_t holds all gradients so far.

    If there are fewer gradients than dimensions (w < d), the step lies in their span and is G·c, with c the
    `coefficients` of (GᵀG, e_t). Otherwise a d × d sum is smaller, and the step is the `coefficients` of (GGᵀ, g_t).

    Args:
        oracle: the function; only ``sample`` is called.
        start: x_1, shape (d,), float64.
        steps: w ≥ 1.
        lr: η > 0.
        eps: ε ≥ 0.
    """
    if steps < 1 or not lr > 0 or not eps >= 0:
        raise ValueError(f"need steps ≥ 1, lr > 0, eps ≥ 0; got steps={steps}, lr={lr}, eps={eps}")
    x = start.double().clone()
    total = torch.zeros_like(x)
    direction = _in_the_span(steps, x, eps) if steps < x.numel() else _by_the_sum(x, eps)
    for _ in range(steps):
        total += x
        x = x - lr * direction(oracle.sample(x))
    return AdaGradRun(average=total / steps, last=x, steps=steps)


def _in_the_span(steps: int, x: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    """The direction of each new gradient, from the Gram matrix of the gradients so far."""
    gradients, gram = x.new_zeros(steps, x.numel()), x.new_zeros(steps, steps)
    number = itertools.count()

    def direction(g: Tensor) -> Tensor:
        t = next(number)
        gradients[t] = g
        gram[t] = gram[:, t] = gradients @ g
        newest = torch.zeros_like(gram[t])
        newest[t] = 1
        return coefficients(gram, newest, eps=eps, jitter=0.0) @ gradients

    return direction


def _by_the_sum(x: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    """The direction of each new gradient, from the d × d sum of the gradients so far."""
    outer = x.new_zeros(x.numel(), x.numel())

    def direction(g: Tensor) -> Tensor:
        return coefficients(outer.addr_(g, g), g, eps=eps, jitter=0.0)

    return direction
