r"""The polar factor of a matrix without its singular value decomposition: U Vᵀ for U Σ Vᵀ, by matrix products alone.

A polynomial p(x) = a x + b x³ + c x⁵ acts on the singular values of X through a X + (b A + c A²) X with A = X Xᵀ. A
chain of such polynomials brings all singular values of [lowest, 1] close to one. `chain` makes the best chain, each
polynomial the minimax one for what the polynomials before it have left (the Polar Express, arXiv 2505.16932).
benchmarks/polar.py compares chains, and docs/finishes.md has its table.
"""

import functools
import math

import torch
from torch import Tensor

__all__ = ["chain", "polar"]

# (smallest singular value, number of polynomials), by measurement: see docs/finishes.md.
_QUICK = (3e-3, 5)
_EXACT = {torch.float64: (1e-8, 16), torch.float32: (1e-5, 11)}
# Rounding may bring a singular value above the interval of a polynomial, where the polynomial grows fast.
_MARGIN = 1.01


def polar(matrices: Tensor, *, exact: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    r"""The polar factor U Vᵀ of each matrix U Σ Vᵀ; a zero matrix gives zeros.

    Singular values are measured in units of 1.01·‖X Xᵀ‖_F^½, a bound of the largest one that costs nothing. Those from
    3e-3 on end in [0.99, 1.01] if the iteration runs in float32 or float64, and in [0.9, 1.02] if it runs in bfloat16.
    Smaller ones are multiplied by up to 550. With ``exact``, those from 1e-8 on become one to 1e-10; in matrices of
    float32 it is those from 1e-5 on, so that singular values of rounding noise stay small.

    Args:
        matrices: shape (batch, rows, columns), real.
        exact: sixteen polynomials instead of five, or eleven for float32, in float64.
        dtype: in which to iterate. None: float64 for float64 and with ``exact``; bfloat16 for float32 on a GPU, as
            ``torch.optim.Muon`` does; else float32.

    Returns:
        the factors, of the shape and dtype of ``matrices``.

    Example:
        >>> polar(torch.tensor([[[3.0, 0.0], [0.0, -0.5]]]), exact=True).round(decimals=4)
        tensor([[[ 1.,  0.],
                 [ 0., -1.]]])
    """
    if exact or matrices.dtype == torch.float64:
        dtype = torch.float64 if dtype is None else dtype
    elif dtype is None:
        dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    wide = matrices.shape[-2] <= matrices.shape[-1]
    X = matrices if wide else matrices.mT
    largest = X.abs().amax(dim=(-2, -1), keepdim=True)  # so that no square is lost below the smallest number
    X = (X / torch.where(largest > 0, largest, 1.0)).to(dtype)
    A = X @ X.mT
    bound = torch.linalg.matrix_norm(A.to(torch.promote_types(dtype, torch.float32)), keepdim=True).sqrt() * _MARGIN
    bound = torch.where(bound > 0, bound, 1.0)
    X, A = (X / bound).to(dtype), (A / bound.square()).to(dtype)
    for number, (a, b, c) in enumerate(chain(*(_EXACT[matrices.dtype] if exact else _QUICK))):
        if number:
            A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X if wide else X.mT).to(matrices.dtype)


@functools.cache
def chain(lowest: float, number: int) -> tuple[tuple[float, float, float], ...]:
    """The coefficients (a, b, c) of ``number`` polynomials for singular values of [lowest, 1].

    All but the last one are made for arguments that are too large by the margin for rounding.

    Example:
        >>> a, b, c = chain(0.5, 1)[0]
        >>> 0.95 < a * 0.5 + b * 0.5**3 + c * 0.5**5 < 1.05
        True
    """
    found = []
    low, high = lowest, 1.0
    for index in range(number):
        a, b, c, error = _minimax(low, high)
        low, high = 1 - error, 1 + error
        stretch = _MARGIN if index < number - 1 else 1.0
        found.append((a / stretch, b / stretch**3, c / stretch**5))
    return tuple(found)


def _minimax(low: float, high: float) -> tuple[float, float, float, float]:
    """(a, b, c, error) with the least error = max |1 - p(x)| over [low, high]: Remez exchange of four points."""
    if high - low < 1e-5 * high:  # the exchange would divide noise by noise: here p(1) = 1, p'(1) = p''(1) = 0
        return 15 / 8, -10 / 8, 3 / 8, 0.0
    inner, outer = (3 * low + high) / 4, (low + 3 * high) / 4
    a = b = c = error = 0.0
    for _ in range(100):
        points = torch.tensor([low, inner, outer, high], dtype=torch.float64, device="cpu")
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64, device="cpu")
        equations = torch.stack([points, points**3, points**5, signs], 1)
        before = error
        a, b, c, error = torch.linalg.solve(equations, torch.ones_like(points)).tolist()
        root = math.sqrt(9 * b * b - 20 * a * c)  # of p'(x) = a + 3 b x² + 5 c x⁴
        inner, outer = math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))
        if abs(error - before) <= 1e-15:
            break
    return a, b, c, error
