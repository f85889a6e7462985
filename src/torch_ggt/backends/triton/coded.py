"""The passes over rows of integers with scales, in Triton. `formats.BlockFormat` and `backends.plain` specify them.

W v needs float64 only once for eight elements: v is stored as integers, too, and eight products of i² ≤ 127² add up
exactly in 32 bits. These kernels were run by Triton's interpreter and compiled for a GPU, but not run on a GPU.
"""
# ruff: noqa: ANN001, ANN202, SIM108 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.backends.triton.launch import ceil_div, launch
from torch_ggt.backends.triton.passes import sum_partials
from torch_ggt.backends.triton.spans import Spans
from torch_ggt.formats import BLOCK, BlockFormat, Coded

__all__ = ["encode", "expand", "gram_row", "write"]

_BLOCK = tl.constexpr(BLOCK)
_ROUNDS = tl.constexpr(1.5 * 2.0**23)  # x plus this, minus this, is x rounded to the nearest integer, ties to even
_EXACT = tl.constexpr(8)  # so many products of two 127² are below 2³¹
_SMALLEST = tl.constexpr(torch.finfo(torch.float32).tiny)


def encode(row: Tensor, stored: BlockFormat, *, block: int = 1024) -> tuple[Tensor, Tensor]:
    """As `BlockFormat.encode` for one row (d,): integers and scales."""
    codes = torch.empty(row.shape[0] // stored.per_byte, dtype=stored.dtype, device=row.device)
    scales = torch.empty(row.shape[0] // BLOCK, device=row.device)
    launch(
        _encode, (ceil_div(row.shape[0], block),), row, codes, scales, row.shape[0],
        LARGEST=stored.largest, PACKED=stored.packed, BLOCK_D=block,
    )  # fmt: skip
    return codes, scales


def gram_row(rows: Coded, row: Tensor, spans: Spans, *, block_rows: int = 4, block: int = 2048) -> Tensor:
    """As `passes.gram_row`: (W v, v·v) for each matrix, float64, shape (B, r + 1). Spans start at whole blocks."""
    stored, size = rows.format, rows.shape[0]
    codes, scales = encode(row, stored)
    partials = torch.empty(spans.pieces, size + 1, dtype=torch.float64, device=row.device)
    tiles = ceil_div(size, block_rows) + 1
    launch(
        _gram_partials, (spans.pieces * tiles,), rows.codes, rows.scales, codes, scales, *spans.tables[:2], partials,
        size, rows.codes.stride(0), rows.scales.stride(0), tiles,
        PACKED=stored.packed, BLOCK_R=block_rows, BLOCK_D=block, num_warps=8,
    )  # fmt: skip
    return sum_partials(partials, spans)


def expand(
    rows: Coded, coefficients: Tensor, spans: Spans, out: Tensor, *, add: bool = False, block: int = 1024
) -> Tensor:
    """As `passes.expand`: write Wᵀ c into ``out`` (d,), or with ``add`` add it to what is there."""
    blocks = ceil_div(spans.longest, block)
    launch(
        _expand, (spans.pieces * blocks,), rows.codes, rows.scales, coefficients.contiguous(), *spans.tables, out,
        rows.shape[0], rows.codes.stride(0), rows.scales.stride(0), blocks,
        PACKED=rows.format.packed, ADD=add, BLOCK_D=block, num_warps=4,
    )  # fmt: skip
    return out


def write(
    rows: Coded, row: Tensor, slots: Tensor, spans: Spans, carry: tuple[Tensor, Tensor] | None = None, *,
    block: int = 1024,
) -> None:  # fmt: skip
    """As `ring.write`: store ``row`` (d,) in the slots that `ring.admit` returned, and copy what is carried."""
    blocks = ceil_div(spans.longest, block)
    target, source = carry or (row, row)
    launch(
        _write, (spans.pieces * blocks,), rows.codes, rows.scales, row, slots, target, source, *spans.tables,
        rows.codes.stride(0), rows.scales.stride(0), blocks,
        LARGEST=rows.format.largest, PACKED=rows.format.packed, CARRY=carry is not None, BLOCK_D=block, num_warps=4,
    )  # fmt: skip


@triton.jit
def _coded(v, LARGEST: tl.constexpr, PACKED: tl.constexpr):
    """The integers, int32, and scales of v (blocks, 64); as `BlockFormat.encode`."""
    scales = _largest_magnitude(v)
    scales = tl.div_rn(scales, 1.0 * LARGEST * LARGEST * (LARGEST if PACKED else 1))
    scales = ((scales.to(tl.int32, bitcast=True) + 0x2000) & -0x4000).to(tl.float32, bitcast=True)
    scales = tl.where(scales < _SMALLEST, 0.0, scales)
    divisor = tl.where(scales > 0, scales, float("inf"))
    units = tl.div_rn(tl.abs(v), tl.broadcast_to(divisor[:, None], v.shape))
    if PACKED:  # the integers lie between the cubes of 0.5, 1.5, ...
        whole = tl.zeros(v.shape, tl.int32)
        for i in tl.static_range(LARGEST):
            whole += (units > (i + 0.5) * (i + 0.5) * (i + 0.5)).to(tl.int32)
    else:
        roots = (tl.sqrt_rn(units) + _ROUNDS) - _ROUNDS
        whole = tl.where(roots <= LARGEST, roots, 0.0).to(tl.int32)  # NaN has no integer; its scale tells
    return tl.where(v < 0, -whole, whole), scales


@triton.jit
def _largest_magnitude(v):
    """max |v| of each block; NaN if there is one. A maximum on a GPU would drop it."""
    poison = tl.sum(v * 0.0, 1)  # 0, or NaN if a number is not finite
    return tl.max(tl.abs(v), 1) + poison


@triton.jit
def _store(codes, scales, base, base_of_scales, v, left, end, LARGEST: tl.constexpr, PACKED: tl.constexpr,
           BLOCK_D: tl.constexpr):  # fmt: skip
    """Encode v, the columns from ``left`` on, and store what lies before ``end``."""
    NUMBER: tl.constexpr = BLOCK_D // _BLOCK
    whole, found = _coded(tl.reshape(v, (NUMBER, _BLOCK)), LARGEST, PACKED)
    which = left // _BLOCK + tl.arange(0, NUMBER)
    inside = which * _BLOCK < end
    tl.store(scales + base_of_scales + which, found, mask=inside)
    if PACKED:
        low, high = tl.split(tl.permute(tl.reshape(whole, (NUMBER, 2, _BLOCK // 2)), (0, 2, 1)))
        both = ((low + 8) | ((high + 8) << 4)).to(tl.uint8)
        where = which[:, None] * (_BLOCK // 2) + tl.arange(0, _BLOCK // 2)[None, :]
        tl.store(codes + base + where, both, mask=inside[:, None])
    else:
        where = which[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
        tl.store(codes + base + where, whole.to(tl.int8), mask=inside[:, None])


@triton.jit
def _encode(row, codes, scales, columns, LARGEST: tl.constexpr, PACKED: tl.constexpr, BLOCK_D: tl.constexpr):
    left = tl.program_id(0).to(tl.int64) * BLOCK_D
    where = left + tl.arange(0, BLOCK_D)
    v = tl.load(row + where, mask=where < columns, other=0.0).to(tl.float32)
    _store(codes, scales, 0, 0, v, left, columns, LARGEST, PACKED, BLOCK_D)


@triton.jit
def _signed_square(code):
    """i·|i|, int32."""
    i = code.to(tl.int32)
    return i * tl.abs(i)


@triton.jit
def _low(byte):
    i = (byte.to(tl.int32) & 15) - 8
    return i * i * i


@triton.jit
def _high(byte):
    i = ((byte.to(tl.int32) >> 4) & 15) - 8
    return i * i * i


@triton.jit
def _gram_partials(
    codes, scales, row, row_scales, starts, ends, partials,  # pointers
    size, stride, scale_stride, tiles,  # numbers
    PACKED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program multiplies v by BLOCK_R rows, on one piece of columns. The last tile of a piece computes v·v."""
    piece, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    PER: tl.constexpr = _BLOCK // 2 if PACKED else _BLOCK  # bytes of a block
    NUMBER: tl.constexpr = BLOCK_D // _BLOCK
    result = partials + piece.to(tl.int64) * (size + 1)
    inner = tl.arange(0, PER)
    if tile < tiles - 1:
        which = tile * BLOCK_R + tl.arange(0, BLOCK_R)
        sums = tl.zeros((BLOCK_R, NUMBER), tl.float64)
        for left in range(start, end, BLOCK_D):
            block = left // _BLOCK + tl.arange(0, NUMBER)
            inside = block * _BLOCK < end
            there = (which < size)[:, None] & inside[None, :]
            v = tl.load(row + block[:, None] * PER + inner[None, :], mask=inside[:, None], other=0)
            where = which.to(tl.int64)[:, None, None] * stride + block[None, :, None] * PER + inner[None, None, :]
            w = tl.load(codes + where, mask=there[:, :, None], other=0, eviction_policy="evict_first")
            if PACKED:
                products = _low(w) * _low(v)[None, :, :] + _high(w) * _high(v)[None, :, :]
            else:
                products = _signed_square(w) * _signed_square(v)[None, :, :]
            exact = tl.sum(tl.reshape(products, (BLOCK_R, NUMBER, PER // _EXACT, _EXACT)), 3).to(tl.float64)
            exact = tl.sum(exact, 2)
            of_v = tl.load(row_scales + block, mask=inside, other=0.0).to(tl.float64)
            where = which.to(tl.int64)[:, None] * scale_stride + block[None, :]
            sums += exact * (tl.load(scales + where, mask=there, other=0.0).to(tl.float64) * of_v[None, :])
        tl.store(result + which, tl.sum(sums, 1), mask=which < size)
    else:
        squares = tl.zeros((NUMBER,), tl.float64)
        for left in range(start, end, BLOCK_D):
            block = left // _BLOCK + tl.arange(0, NUMBER)
            inside = block * _BLOCK < end
            v = tl.load(row + block[:, None] * PER + inner[None, :], mask=inside[:, None], other=0)
            if PACKED:
                products = _low(v) * _low(v) + _high(v) * _high(v)
            else:
                products = _signed_square(v) * _signed_square(v)
            exact = tl.sum(tl.reshape(products, (NUMBER, PER // _EXACT, _EXACT)), 2).to(tl.float64)
            of_v = tl.load(row_scales + block, mask=inside, other=0.0).to(tl.float64)
            squares += tl.sum(exact, 1) * (of_v * of_v)
        tl.store(result + size, tl.sum(squares, 0))


@triton.jit
def _expand(
    codes, scales, coefficients, starts, ends, owners, out,  # pointers
    size, stride, scale_stride, blocks,  # numbers
    PACKED: tl.constexpr, ADD: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program sums all rows over BLOCK_D columns."""
    piece, number = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    left = start + number * BLOCK_D
    if left < end:
        PER: tl.constexpr = _BLOCK // 2 if PACKED else _BLOCK
        block = left // _BLOCK + tl.arange(0, BLOCK_D // _BLOCK)
        inside = block * _BLOCK < end
        weights = coefficients + tl.load(owners + piece) * size
        where = block[:, None] * PER + tl.arange(0, PER)[None, :]
        first = tl.zeros((BLOCK_D // _BLOCK, PER), tl.float64)
        second = tl.zeros((BLOCK_D // _BLOCK, PER), tl.float64)
        for i in range(size):
            w = tl.load(codes + i * tl.cast(stride, tl.int64) + where, mask=inside[:, None], other=0)
            s = tl.load(scales + i * tl.cast(scale_stride, tl.int64) + block, mask=inside, other=0.0)
            factor = (tl.load(weights + i) * s.to(tl.float64))[:, None]
            if PACKED:
                first += factor * _low(w).to(tl.float64)
                second += factor * _high(w).to(tl.float64)
            else:
                first += factor * _signed_square(w).to(tl.float64)
        columns = block[:, None] * _BLOCK + tl.arange(0, PER)[None, :]
        if ADD:
            first += tl.load(out + columns, mask=inside[:, None], other=0.0).to(tl.float64)
        tl.store(out + columns, first.to(out.dtype.element_ty), mask=inside[:, None])
        if PACKED:
            if ADD:
                second += tl.load(out + columns + PER, mask=inside[:, None], other=0.0).to(tl.float64)
            tl.store(out + columns + PER, second.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _write(
    codes, scales, row, slots, target, source, starts, ends, owners,  # pointers
    stride, scale_stride, blocks,  # numbers
    LARGEST: tl.constexpr, PACKED: tl.constexpr, CARRY: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    piece, number = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    slot = tl.load(slots + tl.load(owners + piece)).to(tl.int64)
    left = start + number * BLOCK_D
    columns = left + tl.arange(0, BLOCK_D)
    inside = columns < end
    if (slot >= 0) & (left < end):
        v = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
        _store(codes, scales, slot * stride, slot * scale_stride, v, left, end, LARGEST, PACKED, BLOCK_D)
        if CARRY:
            tl.store(target + columns, tl.load(source + columns, mask=inside, other=0.0), mask=inside)
