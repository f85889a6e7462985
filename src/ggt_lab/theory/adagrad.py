"""Algorithm 2: full-matrix AdaGrad on a convex function, with the averaged iterate as its output."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ggt_lab.theory.oracles import Oracle
from torch_ggt import Window, coefficients

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


def adagrad(
    oracle: Oracle, start: Tensor, *, steps: int, lr: float, eps: float = 1e-8, window: Window | None = None
) -> AdaGradRun:
    r"""Run x ← x - η [εI + (G_t G_tᵀ)^½]⁻¹ g_t for ``steps`` steps, where G_t holds all gradients so far.

    If there are fewer gradients than dimensions (w < d), a window of the library keeps them. Otherwise a d × d sum is
    smaller, and the solver of the library serves it too: [(GGᵀ)^½ + ε]⁻¹ g is `coefficients` of GGᵀ itself.

    Args:
        oracle: the function; only ``sample`` is called.
        start: x_1, shape (d,), float64.
        steps: w ≥ 1.
        lr: η > 0.
        eps: ε ≥ 0.
        window: a float64 window of ``steps`` rows to use again, so that restarts allocate nothing. It is reset.
    """
    if steps < 1 or not lr > 0 or not eps >= 0:
        raise ValueError(f"need steps ≥ 1, lr > 0, eps ≥ 0; got steps={steps}, lr={lr}, eps={eps}")
    x = start.double().clone()
    total = torch.zeros_like(x)
    by_window = steps < x.numel()
    if by_window:
        window = window or Window(steps, x.numel(), dtype=torch.float64, device=x.device)
        window.reset()
    outer = torch.zeros(0 if by_window else x.numel(), x.numel(), dtype=torch.float64, device=x.device)
    for _ in range(steps):
        total += x
        g = oracle.sample(x)
        if by_window and window is not None:
            newest = window.push(g, window.measure(g), betas=(0.0, 1.0))
            c = coefficients(window.moment(), newest, eps=eps, jitter=0.0)
            step = window.expand(c, out=torch.empty_like(x))
        else:
            outer.addr_(g, g)
            step = coefficients(outer, g, eps=eps, jitter=0.0)
        x = x - lr * step
    return AdaGradRun(average=total / steps, last=x, steps=steps)
