"""The four adaptive methods of the paper's synthetic experiments, without heuristics, as torch optimizers.

The full-matrix methods keep a d × d sum (the paper's "cubic-time matrix inversion"). They are for small d only.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from torch_ggt import coefficients

__all__ = ["DiagonalAdaptive", "FullMatrixAdaptive"]


class _Adaptive(torch.optim.Optimizer):
    """x ← x - η·[root of a sum of squares, forgetting by β₂² per step, + ε]⁻¹ g, over one flat vector."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, *, beta2: float = 1.0, eps: float = 1e-4) -> None:
        if not lr >= 0 or not 0 < beta2 <= 1 or not eps >= 0:
            raise ValueError(f"need lr ≥ 0, 0 < beta2 ≤ 1, eps ≥ 0; got lr={lr}, beta2={beta2}, eps={eps}")
        super().__init__(params, {"lr": lr, "beta2": beta2, "eps": eps})

    def direction(self, gradient: Tensor, state: dict[str, Tensor], beta2: float, eps: float) -> Tensor:
        """The step u for one flat gradient. Changes ``state``."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            if not with_gradient:
                continue
            gradient = torch.cat([p.grad.flatten() for p in with_gradient]).double()
            u = self.direction(gradient, self.state[group["params"][0]], group["beta2"], group["eps"])
            parts = torch.split_with_sizes(u, [p.numel() for p in with_gradient])
            for p, part in zip(with_gradient, parts, strict=True):
                p.sub_(group["lr"] * part.view_as(p))
        return loss


class DiagonalAdaptive(_Adaptive):
    """Diagonal AdaGrad (beta2 = 1), or Adam without its heuristics (beta2 < 1)."""

    def direction(self, gradient: Tensor, state: dict[str, Tensor], beta2: float, eps: float) -> Tensor:
        """g / (√Σβ₂^(2k) g² + ε)."""
        squares = state.setdefault("squares", torch.zeros_like(gradient))
        squares.mul_(beta2**2).addcmul_(gradient, gradient)
        return gradient / (squares.sqrt() + eps)


class FullMatrixAdaptive(_Adaptive):
    """Full-matrix AdaGrad (beta2 = 1), or full-matrix AdaGrad with exponential forgetting (beta2 < 1)."""

    def direction(self, gradient: Tensor, state: dict[str, Tensor], beta2: float, eps: float) -> Tensor:
        """[(Σβ₂^(2k) g gᵀ)^½ + εI]⁻¹ g."""
        size = gradient.numel()
        outer = state.setdefault("outer", torch.zeros(size, size, dtype=gradient.dtype, device=gradient.device))
        outer.mul_(beta2**2).addr_(gradient, gradient)
        return coefficients(outer, gradient, eps=eps, jitter=0.0)
