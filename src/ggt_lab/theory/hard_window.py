"""Algorithm 3: GGT with a hard gradient window, and the schedule under which its theorem holds."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ggt_lab.theory.adagrad import AdaGradRun, adagrad
from ggt_lab.theory.oracles import Oracle, Proximal

__all__ = ["HardWindowRun", "Schedule", "hard_window", "schedule"]


class Schedule(NamedTuple):
    """How long Algorithm 3 must run."""

    restarts: int
    """T."""
    window: int
    """w, steps between restarts."""


def schedule(
    *, smoothness: float, gap: float, sigma: float, ratio: float, target: float, strength: float | None = None
) -> Schedule:
    r"""T and w for which the theorem promises E‖∇f‖ ≤ ε, rounded up.

    .. math:: T = \frac{4M(L+2\lambda)}{\epsilon^2}, \qquad
              w = \frac{16\mu^2\sigma^2(L+2\lambda)}{\epsilon^2(2\lambda-L)}

    Args:
        smoothness: L, a bound on ‖∇²f‖.
        gap: M ≥ f(x_1) - min f.
        sigma: σ.
        ratio: μ, a bound on the adaptive ratio in every window, fixed beforehand.
        target: ε.
        strength: λ > L/2; 3L/2 by default, which makes T·w = 512·L·M·μ²σ²/ε⁴.

    Example:
        >>> schedule(smoothness=1.0, gap=1.0, sigma=1.0, ratio=1.0, target=0.5)
        Schedule(restarts=64, window=128)
    """
    given = {"smoothness": smoothness, "gap": gap, "sigma": sigma, "ratio": ratio, "target": target}
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, got {name}={value!r}")
    strength = 1.5 * smoothness if strength is None else strength
    if not 2 * strength > smoothness:
        raise ValueError(
            f"strength (λ) must be larger than smoothness/2 = {smoothness / 2}, got {strength}: "
            "only then is every window a strongly convex problem"
        )
    stiffness = smoothness + 2 * strength
    return Schedule(
        restarts=math.ceil(4 * gap * stiffness / target**2),
        window=math.ceil(16 * (ratio * sigma) ** 2 * stiffness / (target**2 * (2 * strength - smoothness))),
    )


@dataclass(frozen=True)
class HardWindowRun:
    """What a run of Algorithm 3 gives."""

    best: Tensor
    """The iterate of least gradient norm: the output."""
    best_gradient_norm: float
    """‖∇f(best)‖, exact."""
    gradient_norms: list[float]
    """‖∇f(x_t)‖ for t = 1 … T+1."""
    oracle_calls: int
    """T·w."""


def hard_window(
    oracle: Oracle,
    start: Tensor,
    *,
    restarts: int,
    window: int,
    strength: float,
    lr: float | Callable[[Proximal, Tensor], float],
    eps: float = 1e-8,
    on_window: Callable[[Proximal, AdaGradRun], None] | None = None,
) -> HardWindowRun:
    """x_{t+1} ← the output of Algorithm 2 on f(x) + λ‖x - x_t‖² from x_t. Gradients are forgotten in between.

    Args:
        oracle: f. Its exact gradient serves only to choose the output, as the algorithm states it.
        start: x_1, shape (d,), float64.
        restarts: T.
        window: w.
        strength: λ.
        lr: η of Algorithm 2: a number, or a function of the window's problem and its start.
        eps: ε of Algorithm 2.
        on_window: called after each window with its problem and its run, for example to measure the adaptive ratio.
    """
    x = start.double().clone()
    best, norms = x, [float(oracle.gradient(x).norm())]
    for _ in range(restarts):
        problem = Proximal(oracle, x, strength)
        rate = lr(problem, x) if callable(lr) else lr
        run = adagrad(problem, x, steps=window, lr=rate, eps=eps)
        if on_window is not None:
            on_window(problem, run)
        x = run.average
        norms.append(float(oracle.gradient(x).norm()))
        if norms[-1] <= min(norms):
            best = x
    return HardWindowRun(best, min(norms), norms, restarts * window)
