"""Numbers from the eigenvalues λ of a window's GᵀG, and the GᵀG of gradients without structure."""

import math

import torch
from torch import Tensor

__all__ = ["effective_rank", "eigenvalues_above_rounding", "isotropic_moment", "rounding_level", "stable_rank"]


def rounding_level(dtype: torch.dtype, rows: int) -> float:
    """The share λ/Σλ below which an eigenvalue of GᵀG may be zero: rounding hides the difference.

    Rows of unit roundoff u move singular values by up to u·√Σλ. The float64 Gram matrix is correct to about r·2⁻⁵².

    Example:
        >>> rounding_level(torch.bfloat16, 20) == 2.0**-16
        True
    """
    return max((torch.finfo(dtype).eps / 2) ** 2, max(rows, 16) * 2.0**-52)


def eigenvalues_above_rounding(singular_values: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """λ = σ² without eigenvalues at the rounding level of rows of ``dtype``; shape (≤ r,), in the given order.

    Example:
        >>> eigenvalues_above_rounding(torch.tensor([3.0, 1.0, 1e-9], dtype=torch.float64))
        tensor([9., 1.], dtype=torch.float64)
    """
    eigenvalues = singular_values.square()
    return eigenvalues[eigenvalues > rounding_level(dtype, eigenvalues.numel()) * eigenvalues.sum()]


def effective_rank(eigenvalues: Tensor) -> float:
    r"""exp(entropy of λ/Σλ): r for r equal eigenvalues, 1 for a single eigenvalue, NaN for no eigenvalues.

    Example:
        >>> round(effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])), 6)
        3.0
    """
    shares = eigenvalues / eigenvalues.sum()
    return math.exp(-float(torch.xlogy(shares, shares).sum())) if eigenvalues.sum() > 0 else math.nan


def stable_rank(eigenvalues: Tensor) -> float:
    """Σλ/λmax. It is like `effective_rank`, but small eigenvalues hardly count; NaN for no eigenvalues.

    Example:
        >>> stable_rank(torch.tensor([4.0, 2.0, 0.0]))
        1.5
    """
    return float(eigenvalues.sum() / eigenvalues.max()) if eigenvalues.sum() > 0 else math.nan


def isotropic_moment(decay: Tensor, *, beta1: float = 0.0, nesterov: bool = False) -> Tensor:
    r"""M for orthonormal gradients, (r, r) in float64: it shows only momentum and decay, and no structure.

    Rows :math:`w_t = \sum_k h_k g_{t-k}` of orthonormal g have :math:`w_s\cdot w_t = \sum_k h_k h_{k+|s-t|}`. For
    momentum, h_k = β₁^k, this is β₁^|s-t|/(1 - β₁²). Its condition number grows with r to ((1 + β₁)/(1 - β₁))², which
    is 361 for β₁ = 0.9.

    Args:
        decay: the weights β₂^age, newest first, shape (r,).
        beta1: β₁ of the momentum in the window; 0 if the window holds gradients.
        nesterov: whether the window holds g + β₁ v; then h_0 = 1 + β₁ and h_k = β₁^(k + 1).

    Example:
        >>> isotropic_moment(torch.tensor([1.0, 0.5]))
        tensor([[1.0000, 0.0000],
                [0.0000, 0.2500]], dtype=torch.float64)
    """
    ages = torch.arange(decay.numel(), dtype=torch.float64, device=decay.device)
    lag = (ages[:, None] - ages).abs()
    powers = torch.as_tensor(beta1, dtype=torch.float64) ** lag
    tail = powers / (1 - beta1**2)  # Σ_k β₁^k β₁^(k + lag)
    if nesterov:
        first = torch.where(lag == 0, 1 + beta1, beta1 * powers) * (1 + beta1)
        tail = first + beta1**4 * tail
    return decay.double()[:, None] * tail * decay.double()
