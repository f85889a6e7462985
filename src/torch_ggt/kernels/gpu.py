"""The two passes over the window on a GPU, in Triton. `torch_ggt.products` is their specification.

Both read W once, sum in float64 and use no atomic operations: the same input gives the same bits. All matrices of a
window (see `spans`) are served by one launch.

How they widen, and what bounds them, is said in `widen`.
"""
# ruff: noqa: ANN001, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.kernels.launch import launch
from torch_ggt.kernels.parameters import Addresses, gather, update
from torch_ggt.kernels.ring import admit, write
from torch_ggt.kernels.root import coefficients
from torch_ggt.kernels.spans import Spans
from torch_ggt.kernels.widen import OTHER_SCALE, RESULT_SCALE, weighted_sum, widen

__all__ = [
    "Addresses",
    "admit",
    "check",
    "coefficients",
    "expand",
    "gather",
    "gram_row",
    "update",
    "write",
]


def check(device: torch.device) -> None:
    """Raise whatever goes wrong when a kernel is built and run: no C compiler, a driver that is too old."""
    with torch.no_grad():
        gram_row(torch.ones(1, 1, device=device), torch.ones(1, device=device), Spans([0, 1], 1, device))


def gram_row(
    rows: Tensor,
    row: Tensor,
    spans: Spans,
    *,
    bits: bool = True,
    warps: int = 4,
    block_rows: int = 8,
    block_columns: int | None = None,
) -> Tensor:
    """(W v, v·v) per matrix: inner products of ``row`` (d,) with every row of ``rows`` (r, d) and with itself.

    v may have more digits than W, and is rounded first. The last four arguments change the speed, and the result by
    rounding in float64 only.

    Returns:
        float64, shape (B, r + 1). With ``bits``, elements of W that are not finite count as some finite number; those
        of v show in v·v either way.
    """
    size = rows.shape[0]
    bits = bits and rows.dtype != torch.float64
    partials = torch.empty(spans.pieces, size + 1, dtype=torch.float64, device=rows.device)
    sums = torch.empty(spans.count, size + 1, dtype=torch.float64, device=rows.device)
    block_columns = block_columns or {torch.bfloat16: 512, torch.float32: 256}.get(rows.dtype, 128)
    tiles = triton.cdiv(size, block_rows) + 1
    if spans.pieces:
        launch(
            _gram_partials,
            (spans.pieces * tiles,),
            rows,
            row,
            spans.starts,
            spans.ends,
            partials,
            size,
            rows.stride(0),
            tiles,
            ALIGNED=_aligned(rows, spans) and row.data_ptr() % 16 == 0,
            BITS=bits,
            BLOCK_R=block_rows,
            BLOCK_D=block_columns,
            num_warps=warps,
        )
    programs = (spans.count, triton.cdiv(size + 1, 8))
    launch(_sum_partials, programs, partials, spans.firsts, sums, size + 1, BLOCK_R=8, BLOCK_P=128)
    return sums


def expand(
    rows: Tensor,
    coefficients: Tensor,
    spans: Spans,
    out: Tensor,
    *,
    arithmetic: str = "float64",
    warps: int = 4,
    block: int = 1024,
) -> Tensor:
    """Wᵀ c into ``out`` (d,), for float64 coefficients (B, r), one row of them per matrix.

    Args:
        rows: W, shape (r, d).
        coefficients: c.
        spans: the columns of each matrix.
        out: float32 or float64; columns of no matrix are left alone.
        arithmetic: "float64": products and sums. "pair": c is split into two float32 halves and the sums are float32
            (two multiply-adds per element, no widening); where c is beyond float32 it is float64 all the same.
        warps: of a program.
        block: columns of a program.
    """
    if spans.pieces:
        blocks = triton.cdiv(spans.longest, block)
        launch(
            _expand,
            (spans.pieces * blocks,),
            rows,
            coefficients.contiguous(),
            spans.starts,
            spans.ends,
            spans.owners,
            out,
            rows.shape[0],
            rows.stride(0),
            blocks,
            ALIGNED=_aligned(rows, spans) and out.data_ptr() % 16 == 0,
            BITS=rows.dtype != torch.float64,
            PAIR=arithmetic == "pair" and rows.dtype != torch.float64,
            SIZE=triton.next_power_of_2(rows.shape[0]),
            BLOCK_D=block,
            UNROLL=8,
            num_warps=warps,
        )
    return out


def _aligned(rows: Tensor, spans: Spans) -> bool:
    return spans.aligned and rows.stride(0) % 16 == 0 and rows.data_ptr() % 16 == 0


@triton.jit
def _gram_partials(
    rows,
    row,
    starts,
    ends,
    partials,
    size,
    stride,
    tiles,
    ALIGNED: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program: BLOCK_R rows times one piece of columns. The last tile of a piece is v itself."""
    # Tiles of one piece run side by side, and find its part of v in the cache.
    piece, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    if ALIGNED:
        start, end = tl.multiple_of(start, 16), tl.multiple_of(end, 16)
    if tile < tiles - 1:
        which = tile * BLOCK_R + tl.arange(0, BLOCK_R)
        base = rows + which.to(tl.int64)[:, None] * stride
        sums = tl.zeros((BLOCK_R, BLOCK_D), tl.float64)
        for left in range(start, end, BLOCK_D):
            columns = left + tl.arange(0, BLOCK_D)
            if ALIGNED:
                columns = tl.max_contiguous(tl.multiple_of(columns, 16), BLOCK_D)
            inside = columns < end
            v = tl.load(row + columns, mask=inside, other=0.0).to(rows.dtype.element_ty).to(tl.float64)
            w = tl.load(base + columns[None, :], mask=(which < size)[:, None] & inside[None, :], other=0.0)
            if BITS:
                v = v * OTHER_SCALE
            sums += widen(w, BITS) * v[None, :]
        total = tl.sum(sums, 1)
        if BITS:
            total = total * RESULT_SCALE
        tl.store(partials + piece.to(tl.int64) * (size + 1) + which, total, mask=which < size)
    else:
        squares = tl.zeros((BLOCK_D,), tl.float64)
        for left in range(start, end, BLOCK_D):
            columns = left + tl.arange(0, BLOCK_D)
            v = tl.load(row + columns, mask=columns < end, other=0.0).to(rows.dtype.element_ty).to(tl.float64)
            squares += v * v
        tl.store(partials + piece.to(tl.int64) * (size + 1) + size, tl.sum(squares, 0))


@triton.jit
def _sum_partials(
    partials,
    firsts,
    sums,
    length,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
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
    rows,
    coefficients,
    starts,
    ends,
    owners,
    out,
    size,
    stride,
    blocks,
    ALIGNED: tl.constexpr,
    BITS: tl.constexpr,
    PAIR: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """One program: all rows, BLOCK_D columns."""
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
        wide = True
        if PAIR:
            all_rows = tl.arange(0, SIZE)
            wide = tl.max(tl.abs(tl.load(mine + all_rows, mask=all_rows < size, other=0.0)), 0) > 1e30
        whole = size - size % UNROLL
        if wide:
            total = weighted_sum(rows, mine, size, stride, columns, inside, BITS, BLOCK_D, UNROLL)
            tl.store(out + columns, total.to(out.dtype.element_ty), mask=inside)
        else:
            large, small = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
            for top in range(0, whole, UNROLL):
                for i in tl.static_range(UNROLL):
                    large, small = _add_pair(large, small, mine, rows, top + i, stride, columns, inside)
            for i in range(whole, size):
                large, small = _add_pair(large, small, mine, rows, i, stride, columns, inside)
            tl.store(out + columns, (large + small).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_pair(large, small, mine, rows, i, stride, columns, inside):
    c = tl.load(mine + i)
    rounded = c.to(tl.float32)
    w = tl.load(rows + i * tl.cast(stride, tl.int64) + columns, mask=inside, other=0.0).to(tl.float32)
    return large + rounded * w, small + (c - rounded.to(tl.float64)).to(tl.float32) * w
