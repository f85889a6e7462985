"""NorMuon: Muon whose step has rows of equal size (Li, Liu, Liang, Chen, Zhao 2025, arXiv 2510.05491)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz

__all__ = ["NorMuon", "equal_rows"]

_BETA2 = 0.95
"""How much of the running mean of the squares of a row stays at each step."""


class NorMuon(torch.optim.Muon):
    """Muon, with each row of the polar factor divided by a running root mean square of its elements.

    The polar factor is the one of torch's Muon: momentum, nesterov, Newton–Schulz iteration. `equal_rows` changes the
    length of its rows and keeps its Frobenius norm. The step is then scaled to the length of AdamW's steps, 0.2·√max(m,
    n) for an m × n matrix.

    Args:
        *args: as of `torch.optim.Muon`.
        **options: as of `torch.optim.Muon`; ``adjust_lr_fn`` must be "match_rms_adamw".

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = NorMuon([weight], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        >>> weight.grad = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
        >>> optimizer.step()
        >>> (1 - weight.detach().diagonal()).round(decimals=2)  # both rows move equally far
        tensor([0.0200, 0.0200])
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - those of Muon
        super().__init__(*args, **options)
        wrong = {group["adjust_lr_fn"] for group in self.param_groups} - {"match_rms_adamw"}
        if wrong:
            raise ValueError(f'NorMuon: adjust_lr_fn must be "match_rms_adamw", got {wrong.pop()!r}; give that option')

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - whatever it returns
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters: list[Tensor] = []
            gradients: list[Tensor] = []
            momenta: list[Tensor] = []
            self._init_group(group, parameters, gradients, momenta)
            lr, beta = group["lr"], group["momentum"]
            for p, gradient, momentum in zip(parameters, gradients, momenta, strict=True):
                momentum.lerp_(gradient, 1 - beta)
                ahead = gradient.lerp(momentum, beta) if group["nesterov"] else momentum
                polar = _zeropower_via_newtonschulz(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
                squares = self.state[p].setdefault("row_squares", torch.zeros_like(p[:, :1]))
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(equal_rows(polar.to(p.dtype), squares), alpha=-lr * 0.2 * math.sqrt(max(p.shape)))
        return loss


def equal_rows(polar: Tensor, squares: Tensor) -> Tensor:
    """Divide each row by its running root mean square, and give the matrix its Frobenius norm back.

    Args:
        polar: a matrix (m, n).
        squares: the running mean squares (m, 1) of the rows. They are updated.
    """
    squares.lerp_(polar.square().mean(1, keepdim=True), 1 - _BETA2)
    rows = polar / (squares.sqrt() + 1e-8)
    factor: Tensor = torch.linalg.vector_norm(polar) / (torch.linalg.vector_norm(rows) + 1e-8)
    return rows * factor
