"""The two passes over the window on a GPU, in Triton. `backends.plain` is their specification.

Each pass reads W once and sums in float64. It uses no atomic operations, so that equal inputs give equal bits. One
launch serves all matrices of a window (see `spans`). docs/design.md says what limits a pass.
"""
# ruff: noqa: ANN001, ANN201, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.backends.triton.launch import ceil_div, launch
from torch_ggt.backends.triton.spans import Spans

__all__ = ["expand", "gram_row", "sum_partials", "weighted_sum"]

# BITS gives w·2⁻⁸⁹⁶. The other factor gets 2⁷⁶⁶, which leaves room at both ends of float64. The result gets 2¹³⁰.
_OTHER_SCALE = tl.constexpr(2.0**766)
_RESULT_SCALE = tl.constexpr(2.0**130)
# This mask clears three bits after the sign: the exponent has 8 bits, and float64 has room for 11.
_MOVED = tl.constexpr(-0x7000000000000001)


def gram_row(
    rows: Tensor, row: Tensor, spans: Spans, *, block_rows: int = 4, block_columns: int = 2048, warps: int = 8,
    stages: int | None = None, vector: int | None = None,
) -> Tensor:  # fmt: skip
    """(W v, v·v) for each matrix: inner products of ``row`` (d,) with every row of ``rows`` (r, d) and with itself.

    v is first rounded to the dtype of W. The result is float64, shape (B, r + 1). The last five arguments change only
    the speed and the rounding: the rows and columns that a program takes in one step, its number of warps, how many
    steps it loads ahead, and how many elements a thread loads at a time.
    """
    size, stride = rows.shape[0], rows.stride(0)
    partials = torch.empty(spans.pieces, size + 1, dtype=torch.float64, device=rows.device)
    tiles = ceil_div(size, block_rows) + 1
    launch(
        _gram_partials, (spans.pieces * tiles,), rows, row, *spans.tables[:2], partials, size, stride, tiles,
        ALIGNED=stride % 16 == 0 and spans.aligned_in(rows, row), BLOCK_R=block_rows, BLOCK_D=block_columns,
        # A thread loads 16 bytes of v and as many elements of W. Otherwise v would go through shared memory.
        VECTOR=vector or 16 // row.element_size(), STAGES=stages or (1 if rows.dtype == torch.bfloat16 else 3),
        num_warps=warps,
    )  # fmt: skip
    return sum_partials(partials, spans)


def sum_partials(partials: Tensor, spans: Spans) -> Tensor:
    """Add up the sums (pieces, r + 1) of the pieces of each matrix: (B, r + 1)."""
    length = partials.shape[1]
    sums = torch.empty(spans.count, length, dtype=torch.float64, device=partials.device)
    programs = (spans.count, ceil_div(length, 4))
    launch(_sum_partials, programs, partials, spans.firsts, sums, length, BLOCK_R=4, BLOCK_P=256)
    return sums


def expand(
    rows: Tensor, coefficients: Tensor, spans: Spans, out: Tensor, *, block: int = 2048, warps: int = 8
) -> Tensor:
    """Write Wᵀ c into ``out`` (d,), float32 or float64, and return it. Columns of no matrix do not change.

    ``rows`` is W, shape (r, d). ``coefficients`` is c, float64, shape (B, r), one row for each matrix.
    """
    size, stride, blocks = rows.shape[0], rows.stride(0), ceil_div(spans.longest, block)
    launch(
        _expand, (spans.pieces * blocks,), rows, coefficients.contiguous(), *spans.tables, out, size, stride, blocks,
        ALIGNED=stride % 16 == 0 and spans.aligned_in(rows, out), BITS=rows.dtype != torch.float64,
        BLOCK_D=block, UNROLL=8, num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
def _gram_partials(
    rows, row, starts, ends, partials,  # pointers
    size, stride, tiles,  # numbers
    ALIGNED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program multiplies v by BLOCK_R rows, on one piece of columns. The last tile of a piece computes v·v."""
    # Tiles of one piece run at about one time, so that they find its part of v in the cache.
    piece, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    if ALIGNED:
        start, end = tl.multiple_of(start, 16), tl.multiple_of(end, 16)
    if tile < tiles - 1:
        which = tile * BLOCK_R + tl.arange(0, BLOCK_R)
        base = rows + which.to(tl.int64)[:, None] * stride
        sums = tl.zeros((BLOCK_R, BLOCK_D // VECTOR), tl.float64)
        for left in tl.range(start, end, BLOCK_D, num_stages=STAGES):
            columns = left + tl.arange(0, BLOCK_D)
            if ALIGNED:
                columns = tl.max_contiguous(tl.multiple_of(columns, VECTOR), VECTOR)
            inside = columns < end
            v = tl.load(row + columns, mask=inside, other=0.0).to(rows.dtype.element_ty).to(tl.float64)
            there = (which < size)[:, None] & inside[None, :]
            # W is read only once, so it must not push v out of the cache.
            w = tl.load(base + columns[None, :], mask=there, other=0.0, eviction_policy="evict_first")
            products = w.to(tl.float64) * v[None, :]
            # A thread sums its elements right after the load: one accumulator per column would fill the registers.
            sums += tl.sum(tl.reshape(products, (BLOCK_R, BLOCK_D // VECTOR, VECTOR)), 2)
        tl.store(partials + piece.to(tl.int64) * (size + 1) + which, tl.sum(sums, 1), mask=which < size)
    else:
        squares = tl.zeros((BLOCK_D,), tl.float64)
        for left in range(start, end, BLOCK_D):
            columns = left + tl.arange(0, BLOCK_D)
            v = tl.load(row + columns, mask=columns < end, other=0.0).to(rows.dtype.element_ty).to(tl.float64)
            squares += v * v
        tl.store(partials + piece.to(tl.int64) * (size + 1) + size, tl.sum(squares, 0))


@triton.jit
def _sum_partials(partials, firsts, sums, length, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr):
    matrix = tl.program_id(0)
    which = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    first, last = tl.load(firsts + matrix), tl.load(firsts + matrix + 1)
    total = tl.zeros((BLOCK_P, BLOCK_R), tl.float64)
    for top in range(first, last, BLOCK_P):
        piece = top + tl.arange(0, BLOCK_P)
        inside = (piece < last)[:, None] & (which < length)[None, :]
        total += tl.load(partials + piece.to(tl.int64)[:, None] * length + which[None, :], mask=inside, other=0.0)
    tl.store(sums + matrix * length + which, tl.sum(total, 0), mask=which < length)


@triton.jit
def _expand(
    rows, coefficients, starts, ends, owners, out,  # pointers
    size, stride, blocks,  # numbers
    ALIGNED: tl.constexpr, BITS: tl.constexpr, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One program sums all rows over BLOCK_D columns."""
    piece, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    if ALIGNED:
        start, end = tl.multiple_of(start, 16), tl.multiple_of(end, 16)
    columns = start + block * BLOCK_D + tl.arange(0, BLOCK_D)
    if ALIGNED:
        columns = tl.max_contiguous(tl.multiple_of(columns, 16), BLOCK_D)
    if start + block * BLOCK_D < end:
        inside = columns < end
        mine = coefficients + tl.load(owners + piece) * size
        total = weighted_sum(rows, mine, size, stride, columns, inside, BITS, BLOCK_D, UNROLL)
        tl.store(out + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _widen(x, BITS: tl.constexpr):
    """x as float64, times 2⁻⁸⁹⁶ if BITS: the sign and fraction stay, and the exponent keeps its smaller bias."""
    if BITS:
        if x.dtype == tl.bfloat16:
            moved = x.to(tl.int16, bitcast=True).to(tl.int64) << 45
        else:
            moved = x.to(tl.int32, bitcast=True).to(tl.int64) << 29
        return (moved & _MOVED).to(tl.float64, bitcast=True)
    else:
        return x.to(tl.float64)


@triton.jit
def weighted_sum(
    rows, weights, size, stride, columns, inside, BITS: tl.constexpr, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr
):
    """Σ_i weights[i]·rows[i, columns] over all rows, in float64. The loads of UNROLL rows run at one time."""
    total = tl.zeros((BLOCK_D,), tl.float64)
    whole = size - size % UNROLL
    for top in range(0, whole, UNROLL):
        for i in tl.static_range(UNROLL):
            w = tl.load(rows + (top + i) * tl.cast(stride, tl.int64) + columns, mask=inside, other=0.0)
            total += _factor(weights, top + i, BITS) * _widen(w, BITS)
    if whole < size:  # these rows are loaded at one time, too: else we would wait for each row
        for i in tl.static_range(UNROLL - 1):
            there = inside & (tl.zeros((BLOCK_D,), tl.int32) + (whole + i) < size)
            w = tl.load(rows + (whole + i) * tl.cast(stride, tl.int64) + columns, mask=there, other=0.0)
            total += _factor(weights, tl.minimum(whole + i, size - 1), BITS) * _widen(w, BITS)
    if BITS:
        total = total * _RESULT_SCALE
    return total


@triton.jit
def _factor(weights, i, BITS: tl.constexpr):
    c = tl.load(weights + i)
    if BITS:
        c = c * _OTHER_SCALE
    return c
