"""c = [(M + δI)^½ + εI]⁻¹ a on a GPU: all shifted solves in one kernel. `solver` is its specification.

One program takes one shift of one matrix. It builds S = α(M + δI) + βI while it reads the Gram matrix and the age
weights, and solves S x = a by a Cholesky factorization in blocks of 16 columns. A shrunk M has smaller entries and a
larger diagonal (`shrinkage.shrunk`), so it needs no other solve. The factor lies in scratch memory that
stays in the cache. The right-hand side is one more row of S, so that only the backward substitution remains. cuSOLVER's
batched routines need many launches of small kernels. This kernel waits only for its own chain of r elimination steps.
"""
# ruff: noqa: ANN001, ANN201, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.backends.triton.launch import ceil_div, launch, power_of_2
from torch_ggt.quadrature import inverse_sqrt_nodes
from torch_ggt.solver import interval

__all__ = ["coefficients", "eliminate"]

# The warps of a program, the rows that it updates at a time, and how many programs there are at most, for 132
# processors; with more problems a program solves several. A problem is a chain of steps that wait for each other. With
# few problems a program has many warps, for a short chain. With many small ones eight programs of one warp share a
# processor: while one of them waits the others work, and their factors fit into the cache together.
_FEW, _MANY = (4, 128, 264), (1, 32, 1056)
_SMALL = 64


def coefficients(
    gram: Tensor, decay: Tensor, rhs: Tensor, *, eps: float, jitter: float, tolerance: float,
    share: float | Tensor = 0.0, shift: float = 0.0, warps: int | None = None, panel: int | None = None,
    block: int = 16,
) -> Tensor:  # fmt: skip
    """Compute `solver.coefficients` of (1 - q) M + q tr(M) I + shift·I, M = D K D, by shifted solves: float64, (B, r).

    ``gram`` is K, shape (B, r, r), contiguous. ``decay`` is the diagonal of D, and ``rhs`` is a, both (B, r). ``share``
    is q, a number or shape (B,). All are float64. ``jitter`` is positive. A program of ``warps`` warps updates
    ``panel`` rows and eliminates ``block`` columns at a time; these three change only the speed and the rounding.
    """
    batch, size = rhs.shape
    shares = share if isinstance(share, Tensor) else None
    number = 0.0 if isinstance(share, Tensor) else share
    table, nodes = _table(eps, jitter, size, tolerance, number, shift, gram.device)
    padded, problems = ceil_div(size, block) * block, batch * (nodes + 1)
    many = padded <= _SMALL and problems > _FEW[-1]
    usual_warps, usual_panel, most = _MANY if many else _FEW
    programs = min(problems, most)
    # Each program has L, one more row for a, and one row for x.
    scratch = torch.empty(programs, padded + 2, padded, dtype=torch.float64, device=gram.device)
    parts = torch.empty(batch, nodes + 1, size, dtype=torch.float64, device=gram.device)
    launch(
        _solve, (programs,), gram, decay.contiguous(), rhs.contiguous(), table if shares is None else shares,
        table, parts, scratch, size, padded, nodes, problems, SHARES=shares is not None,
        SIZE=power_of_2(size), NODES=power_of_2(nodes), BLOCK=block, PANEL=panel or usual_panel,
        num_warps=warps or usual_warps,
    )  # fmt: skip
    return parts.sum(1)


@functools.cache  # a table is never freed: a CUDA graph may hold its address
def _table(
    eps: float, jitter: float, size: int, tolerance: float, share: float, shift: float, device: torch.device
) -> tuple[Tensor, int]:
    """ε, δ, the ends of the interval, q, the shift of M, the shifts and weights of the nodes.

    They are a tensor because float arguments are float32.
    """
    low, high = interval(jitter, size)
    shifts, weights = inverse_sqrt_nodes(low, high, tolerance)
    values = [eps, jitter / size, low, high, share, shift, *shifts, *weights]
    return torch.tensor(values, dtype=torch.float64, device=device), len(shifts)


@triton.jit
def _solve(
    gram, decay, rhs, shares, table, parts, scratch,  # pointers
    size, padded, nodes, problems,  # numbers
    SHARES: tl.constexpr, SIZE: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr, PANEL: tl.constexpr,
):  # fmt: skip
    L = scratch + tl.program_id(0).to(tl.int64) * (padded + 2) * padded
    solution = L + (padded + 1) * padded
    for problem in range(tl.program_id(0), problems, tl.num_programs(0)):
        matrix, node = problem // (nodes + 1), problem % (nodes + 1)
        K = gram + tl.cast(matrix, tl.int64) * size * size
        D = decay + matrix * size
        a = rhs + matrix * size
        share = tl.load(shares + matrix if SHARES else table + 4)
        root_unit, scale, diagonal, weight = _shift(K, D, share, table, node, size, nodes, SIZE, NODES)
        tl.debug_barrier()
        for left in range(0, padded, BLOCK):
            eliminate(K, D, a, L, left, size, padded, padded + 1, root_unit, scale, diagonal, False, BLOCK, PANEL)
        _substitute(L, solution, padded, BLOCK, PANEL)
        i = tl.arange(0, SIZE)
        x = tl.load(solution + i, mask=i < size)
        tl.store(parts + tl.cast(problem, tl.int64) * size + i, x * weight / root_unit, mask=i < size)
        tl.debug_barrier()


@triton.jit
def _shift(K, D, share, table, node, size, nodes, SIZE: tl.constexpr, NODES: tl.constexpr):
    """√unit, and scale, diagonal and weight of this node's matrix, scale·M/unit + diagonal·I; as in `_by_cholesky`.

    The unit is the trace of the shrunk and shifted M. Node 0 corrects the result for an ε outside the interval of the
    nodes.
    """
    i = tl.arange(0, SIZE)
    decay = tl.load(D + i, mask=i < size, other=0.0)
    squares = tl.load(K + tl.cast(i, tl.int64) * (size + 1), mask=i < size, other=0.0)
    trace = tl.sum(decay * squares * decay, 0)
    spread = share * trace + tl.load(table + 5)  # what shrinkage and the shift add to the diagonal
    unit = (1 - share) * trace + size * spread
    unit = tl.where(unit > 0, unit, 1.0)
    root_unit = tl.sqrt(unit)

    eps = tl.load(table) / root_unit
    delta, low, high = tl.load(table + 1) + spread / unit, tl.load(table + 2), tl.load(table + 3)
    j = tl.arange(0, NODES)
    shifts = tl.load(table + 6 + j, mask=j < nodes, other=1.0)
    weights = tl.load(table + 6 + nodes + j, mask=j < nodes, other=0.0) / (1 + eps * eps / shifts)
    if node == 0:
        at_eps = tl.sum(weights / shifts, 0)
        below, above = eps < low, eps > high
        inverse_eps = 1 / tl.where(above, eps, 1.0)
        scale = tl.where(below, 1.0, tl.where(above, -inverse_eps * inverse_eps, 0.0))
        diagonal = scale * delta + tl.where(below, -eps * eps, 1.0)
        weight = tl.where(below, eps * eps * at_eps - eps, tl.where(above, inverse_eps - at_eps, 0.0))
    else:
        here = j == node - 1
        scale = tl.sum(tl.where(here, 1.0, 0.0).to(tl.float64), 0)
        diagonal = delta + tl.sum(tl.where(here, shifts, 0.0), 0)
        weight = tl.sum(tl.where(here, weights, 0.0), 0)
    return root_unit, scale * (1 - share), diagonal, weight


@triton.jit
def _entries(K, D, a, i, j, size, padded, root_unit, scale, diagonal, INVERT: tl.constexpr):
    """Rows i and columns j of S. Beyond r, S is the identity. Row ``padded`` of S is a, or the first of an identity."""
    inside = (i < size)[:, None] & (j < size)[None, :]
    left = tl.load(D + i, mask=i < size, other=0.0) / root_unit
    right = tl.load(D + j, mask=j < size, other=0.0) / root_unit
    k = tl.load(K + tl.cast(i, tl.int64)[:, None] * size + j[None, :], mask=inside, other=0.0)
    on_diagonal = tl.where((j < size)[None, :], diagonal, 1.0)
    entries = scale * (left[:, None] * k * right[None, :]) + tl.where(i[:, None] == j[None, :], on_diagonal, 0.0)
    if INVERT:
        return tl.where((i - padded)[:, None] == j[None, :], 1.0, entries)
    b = tl.load(a + j, mask=j < size, other=0.0)
    return tl.where((i == padded)[:, None], b[None, :], entries)


@triton.jit
def eliminate(
    K, D, a, L, left, size, padded, height, root_unit, scale, diagonal,
    INVERT: tl.constexpr, BLOCK: tl.constexpr, PANEL: tl.constexpr,
):  # fmt: skip
    """Compute one block column of L in S = L Lᵀ, from the diagonal down. The diagonal block is stored inverted.

    S has more rows than columns, ``height`` in all. Below the square, the rows b of S become L⁻¹ b: b is a, or with
    INVERT a row of the identity.
    """
    k = tl.arange(0, BLOCK)
    j = left + k
    pivot = _entries(K, D, a, j, j, size, padded, root_unit, scale, diagonal, INVERT)
    for before in range(0, left, BLOCK):
        mine = tl.load(L + j[:, None] * padded + before + k[None, :])
        pivot -= tl.dot(mine, tl.trans(mine), out_dtype=tl.float64)
    inverse = _inverse_factor(pivot, tl.minimum(BLOCK, size - left), BLOCK)
    tl.store(L + j[:, None] * padded + j[None, :], inverse)
    inverse = tl.trans(inverse)
    for top in range(left + BLOCK, height, PANEL):
        i = top + tl.arange(0, PANEL)
        inside = (i < height)[:, None]
        rows = _entries(K, D, a, i, j, size, padded, root_unit, scale, diagonal, INVERT)
        for before in range(0, left, BLOCK):
            mine = tl.load(L + i[:, None] * padded + before + k[None, :], mask=inside, other=0.0)
            other = tl.load(L + j[None, :] * padded + before + k[:, None])
            rows -= tl.dot(mine, other, out_dtype=tl.float64)
        tl.store(L + i[:, None] * padded + j[None, :], tl.dot(rows, inverse, out_dtype=tl.float64), mask=inside)
    tl.debug_barrier()


@triton.jit
def _inverse_factor(matrix, steps, BLOCK: tl.constexpr):
    """C⁻¹ for a definite matrix C Cᵀ, by Gaussian elimination of one column at a time.

    The inverse of the unit factor takes the place of the eliminated entries, and the pivots stay on the diagonal. We do
    not invert C Cᵀ itself: its condition number is the square of C's condition number, and float64 has too few digits.
    """
    k = tl.arange(0, BLOCK)
    for step in range(steps):  # the rest of the block is the identity
        here = (k == step)[None, :]
        column = tl.sum(tl.where(here, matrix, 0.0), 1)
        row = tl.sum(tl.where((k == step)[:, None], matrix, 0.0), 0)
        pivot = tl.sum(tl.where(k == step, row, 0.0), 0)
        factor = tl.where(k > step, column / pivot, 0.0)
        row = tl.where(k == step, 1.0, row)
        matrix = tl.where(here & (k > step)[:, None], 0.0, matrix) - factor[:, None] * row[None, :]
    on_diagonal = k[:, None] == k[None, :]
    pivots = tl.sum(tl.where(on_diagonal, matrix, 0.0), 1)
    unit_inverse = tl.where(on_diagonal, 1.0, tl.where(k[:, None] > k[None, :], matrix, 0.0))
    return unit_inverse / tl.sqrt(pivots)[:, None]


@triton.jit
def _substitute(L, solution, padded, BLOCK: tl.constexpr, PANEL: tl.constexpr):
    """Solve Lᵀ x = y from the last block to the first. y is the row of L that belongs to a."""
    k = tl.arange(0, BLOCK)
    for back in range(BLOCK, padded + 1, BLOCK):
        j = padded - back + k
        y = tl.load(L + tl.cast(padded, tl.int64) * padded + j)
        for top in range(padded - back + BLOCK, padded, PANEL):
            i = top + tl.arange(0, PANEL)
            below = tl.load(L + i[:, None] * padded + j[None, :], mask=(i < padded)[:, None], other=0.0)
            y -= tl.sum(below * tl.load(solution + i, mask=i < padded, other=0.0)[:, None], 0)
        inverse = tl.load(L + j[None, :] * padded + padded - back + k[:, None])  # transposed
        tl.store(solution + j, tl.sum(inverse * y[None, :], 1))
        tl.debug_barrier()
