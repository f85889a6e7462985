r"""The r × r heart of a GGT step: coefficients c = (N + εI)⁻¹ a with N = (M + δI)^½, as pure functions.

Symbols, here and in the paper: G (d × r) holds the decayed window as columns; M = GᵀG; δ = jitter·tr(M)/r. Because
f(GGᵀ)G = G f(GᵀG), a vector in the span, v = G a, is preconditioned exactly by

.. math:: [(GG^\top+\delta I)^{1/2} + \varepsilon I]^{-1} G a = G\,[(M+\delta I)^{1/2} + \varepsilon I]^{-1} a,

with no pseudo-inverse and no 1/ε term. Everything runs in float64 and in units of tr(M), in which the spectrum of
M + δI lies in [jitter/r, 1 + jitter/r] whatever the data.
"""

import functools
import math

import torch
from torch import Tensor

from torch_ggt.quadrature import inverse_sqrt_nodes

__all__ = ["apply_inverse_root", "check_solver", "coefficients", "interval", "robust_eigh", "solve"]

# The quadrature covers √λ and ε with this factor to spare at both ends. Two, because beyond it M + δI - ε²I is safely
# definite, which the pole correction in `_by_cholesky` needs.
_MARGIN = 2.0
# Beyond both, torch solves a stack of triangular systems by MAGMA, which cannot be part of a CUDA graph.
_CUBLAS_ROWS, _CUBLAS_STACK = 512, 8


def coefficients(
    moment: Tensor, rhs: Tensor, *, eps: float, jitter: float, solver: str = "eigh", tolerance: float = 1e-12
) -> Tensor:
    r"""Solve :math:`[(M + \delta I)^{1/2} + \varepsilon I]\,c = a` with δ = jitter·tr(M)/r.

    Args:
        moment: M, symmetric positive semi-definite, float64, shape (..., r, r).
        rhs: a, float64, shape (..., r).
        eps: ε ≥ 0, absolute, as in the paper.
        jitter: relative to the mean eigenvalue of M. With 0, eigenvalues below rounding count as zero.
        solver: "eigh", or "cholesky" (shifted solves, no iteration that can fail; needs jitter > 0).
        tolerance: relative accuracy of the "cholesky" quadrature, which sets the number of its nodes.

    Returns:
        c, float64, shape (..., r). Zero where a is zero; finite for every M, the zero matrix included.

    Example:
        >>> M = torch.diag(torch.tensor([4.0, 9.0], dtype=torch.float64))
        >>> coefficients(M, torch.ones(2, dtype=torch.float64), eps=1.0, jitter=0.0)
        tensor([0.3333, 0.2500], dtype=torch.float64)
    """
    check_solver(solver, jitter)
    if moment.is_complex() or rhs.is_complex() or not eps >= 0:
        raise ValueError(f"moment and rhs must be real and eps ≥ 0, got {moment.dtype}, {rhs.dtype}, eps={eps}")
    return solve(moment.double(), rhs.double(), eps=eps, jitter=jitter, solver=solver, tolerance=tolerance)


def solve(moment: Tensor, rhs: Tensor, *, eps: float, jitter: float, solver: str, tolerance: float) -> Tensor:
    """`coefficients` for options that were checked before: the heart of a step."""
    trace = moment.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    unit = torch.where(trace > 0, trace, 1.0)  # an all-zero window must not give 0/0
    root_unit = unit.sqrt()
    relative, relative_eps = moment / unit.unsqueeze(-1), root_unit.reciprocal().mul_(eps)
    if solver == "cholesky":
        return _by_cholesky(relative, rhs, relative_eps, jitter, tolerance).div_(root_unit)
    return _by_eigh(relative, rhs, relative_eps, jitter).div_(root_unit)


def apply_inverse_root(
    rows: Tensor, vector: Tensor, *, eps: float = 1e-8, jitter: float = 1e-6, solver: str = "eigh"
) -> Tensor:
    r"""Precondition any vector, in the span of the window or not.

    .. math:: u = [(GG^\top + \delta I)^{1/2} + \varepsilon I]^{-1} v
                = s v - s\,G\,[(N + \sqrt\delta)(N + \varepsilon)]^{-1} G^\top v,
              \quad s = \frac{1}{\sqrt\delta + \varepsilon}

    A vector outside the span is multiplied by s, which for tiny δ and ε is huge: where v = G a, a step
    ``rows.T @ coefficients(...)`` is the accurate form, and the one the optimizer uses.

    Args:
        rows: Gᵀ, one (decayed) gradient per row, shape (r, d), any floating dtype.
        vector: v, shape (d,).
        eps: ε ≥ 0.
        jitter: δ = jitter·tr(GᵀG)/r. With eps = 0 and jitter = 0 the complement of the span is dropped.
        solver: "eigh" or "cholesky".

    Returns:
        u, shape (d,), the dtype of ``vector``; computed in float64.

    Example:
        >>> rows = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> apply_inverse_root(rows, torch.tensor([3.0, 1.0, 1.0]), eps=1.0, jitter=0.0)
        tensor([0.7500, 0.5000, 1.0000])
    """
    if rows.ndim != 2 or vector.shape != rows.shape[1:]:
        raise ValueError(f"rows must have shape (r, d) and vector (d,), got {tuple(rows.shape)}, {tuple(vector.shape)}")
    check_solver(solver, jitter)
    if rows.is_complex() or vector.is_complex():
        raise ValueError(f"rows and vector must be real, got {rows.dtype} and {vector.dtype}: use view_as_real")
    G, v = rows.double().t(), vector.double()
    M = G.t() @ G
    solve = functools.partial(coefficients, M, jitter=jitter, solver=solver)
    projected = G.t() @ v
    floor = math.sqrt(jitter * float(M.trace()) / M.shape[0])  # √δ
    if floor + eps == 0:
        # (N² )⁻¹ Gᵀv are the coordinates of v in the span, and N⁻¹ of those the coefficients of u.
        return (G @ solve(solve(solve(projected, eps=0.0), eps=0.0), eps=0.0)).to(vector.dtype)
    inner = solve(solve(projected, eps=eps), eps=floor)
    return ((v - G @ inner) / (floor + eps)).to(vector.dtype)


def check_solver(solver: str, jitter: float) -> None:
    """Raise ValueError for an unknown solver, a jitter in the rounding noise, and for "cholesky" without jitter."""
    if not (jitter == 0 or 1e-10 <= jitter <= 1):
        raise ValueError(
            f"jitter must be 0 or lie in [1e-10, 1], got jitter={jitter}: less is below the rounding of a Gram matrix"
        )
    if solver not in ("auto", "cholesky", "eigh"):
        raise ValueError(f"solver must be 'auto', 'cholesky' or 'eigh', got {solver!r}")
    if solver == "cholesky" and not jitter > 0:
        raise ValueError(
            "solver='cholesky' needs jitter > 0, which makes every window definite; "
            f"got jitter={jitter}. Use solver='eigh' for jitter=0."
        )


def _by_eigh(moment: Tensor, rhs: Tensor, eps: Tensor, jitter: float) -> Tensor:
    # In place where it can be: for a small model, a step is the time of such small operations.
    eigenvalues, vectors = robust_eigh(moment)
    size = moment.shape[-1]
    if jitter > 0:
        gains = eigenvalues.clamp_min_(0).add_(jitter / size).sqrt_().add_(eps).reciprocal_()
    else:
        rounding = size * 2.0**-52 * eigenvalues[..., -1:]
        kept = eigenvalues > rounding.clamp_min(0)
        gains = torch.where(kept, eigenvalues.clamp_min(0).sqrt().add_(eps).reciprocal_(), 0.0)
    projections = (vectors.mT @ rhs.unsqueeze(-1)).mul_(gains.unsqueeze(-1))
    return (vectors @ projections).squeeze(-1)


def robust_eigh(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors; if the device's routine does not converge, those of a nudged matrix by the host."""
    try:
        found: tuple[Tensor, Tensor] = torch.linalg.eigh(moment)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Seen on a GPU in live training. An ulp-sized diagonal gets the iteration of LAPACK unstuck, too.
        nudge = torch.linspace(0, 2.0**-50, moment.shape[-1], dtype=moment.dtype, device=moment.device).diag()
        found = torch.linalg.eigh(moment.cpu() + nudge)
    return found[0].to(moment.device), found[1].to(moment.device)


def _by_cholesky(moment: Tensor, rhs: Tensor, eps: Tensor, jitter: float, tolerance: float) -> Tensor:
    r"""One batched Cholesky factorization of shifted matrices, exact for every ε ≥ 0.

    Write A = M + δI, λ for its eigenvalues, q(x) = Σ_j w_j/(t_j² + x) ≈ x^(-1/2). Since

        t²/((t² + ε²)(t² + λ)) = [λ/(t² + λ) - ε²/(t² + ε²)] / (λ - ε²),

    the rule for 1/(√λ + ε), with weights w_j·t_j²/(t_j² + ε²), is right wherever q is right at λ and at ε². Where ε
    lies outside the interval of the nodes, q(ε²) is wrong by a known number, and adding

        ε²·(q(ε²) - 1/ε) / (λ - ε²)

    makes up for it: one more shifted solve, definite because ε² is then well outside the spectrum of A. So a single
    set of nodes, which depends on r and the jitter alone, serves every ε.
    """
    size = moment.shape[-1]
    delta = jitter / size
    low, high = interval(jitter, size)
    shifts, weights = _node_tensors(low, high, tolerance, moment.device)

    identity = torch.eye(size, dtype=moment.dtype, device=moment.device)
    matrix = moment + delta * identity
    ratio = eps.square() / shifts  # (ε/t)², may be infinite
    node_weights = weights / (1 + ratio)
    quadrature_at_eps = (node_weights / shifts).sum(-1, keepdim=True)  # q(ε²)

    # The extra matrix is α·A + β·I, times its weight: (A - ε²)⁻¹ below the nodes, (I - A/ε²)⁻¹ above, nothing between.
    below, above = eps < low, eps > high
    inverse_eps = 1 / eps
    alpha = torch.where(below, 1.0, torch.where(above, -inverse_eps.square(), 0.0))
    beta = torch.where(below, -eps.square(), 1.0)
    weight = torch.where(above, inverse_eps - quadrature_at_eps, 0.0)
    weight = torch.where(below, eps.square() * quadrature_at_eps - eps, weight)

    scales = torch.cat([alpha, torch.ones_like(node_weights)], -1)
    diagonals = torch.cat([beta, shifts.expand_as(node_weights)], -1)
    all_weights = torch.cat([weight, node_weights], -1)
    stack = scales[..., None, None] * matrix[..., None, :, :] + diagonals[..., None, None] * identity
    factors = torch.linalg.cholesky_ex(stack).L
    solutions = _substituted(factors, rhs[..., None, :, None].expand(*stack.shape[:-1], 1))
    return (all_weights[..., None] * solutions.squeeze(-1)).sum(-2)


def _substituted(factors: Tensor, rhs: Tensor) -> Tensor:
    """Solve L Lᵀ x = b for stacks of factors L (..., n, r, r) and of columns b (..., n, r, 1).

    On a GPU, `torch.cholesky_solve` of a stack is MAGMA, which asks for memory at each call: a CUDA graph cannot
    capture that. Two triangular solves are cuBLAS. For stacks of more than 8 matrices of more than 512 rows torch
    would take MAGMA again, so these are solved a few at a time.
    """
    if factors.is_cuda and factors.shape[-1] > _CUBLAS_ROWS and factors.shape[:-2].numel() > _CUBLAS_STACK:
        stacks = (torch.split(stack.flatten(0, -3), _CUBLAS_STACK) for stack in (factors, rhs))
        return torch.cat([_substituted(*pair) for pair in zip(*stacks, strict=True)]).view(rhs.shape)
    forward = torch.linalg.solve_triangular(factors, rhs, upper=False)
    found: Tensor = torch.linalg.solve_triangular(factors.mT, forward, upper=True)
    return found


def interval(jitter: float, size: int) -> tuple[float, float]:
    """Where √λ of (M + δI)/tr(M) lies for every M, with a factor to spare at both ends."""
    delta = jitter / size
    return math.sqrt(delta) / _MARGIN, math.sqrt(1 + delta) * _MARGIN


@functools.lru_cache(maxsize=64)
def _node_tensors(low: float, high: float, tolerance: float, device: torch.device) -> tuple[Tensor, Tensor]:
    shifts, weights = torch.tensor(inverse_sqrt_nodes(low, high, tolerance), dtype=torch.float64, device=device)
    return shifts, weights
