"""The passes over rows of integers with scales, in Triton. `formats.BlockFormat` and `backends.plain` specify them.

At the memory's speed a GPU has time for about seven instructions for an element of 8 bits, and for four of 4 bits. So
the arithmetic is chosen for few of them. Still it decides, and not the memory: docs/row_formats.md has the times.

- W v: v is stored as integers, too. In 8 bits, eight products of i² ≤ 127² add up exactly in 32 bits, and only their
  sum becomes float64. In 4 bits, the 64 products of a block add up exactly in float32 (64·7⁶ < 2²⁴).
- Wᵀ c: a GPU turns integers into float64 at a quarter of the speed of its float64 sums. So an integer x becomes the
  upper half of the float64 number 2²⁰ + offset + x (times a power of two). The sum of the weights times 2²⁰ + offset
  is subtracted at the end. It is summed in the same order, so that a column of zeros gives exactly zero.
"""
# ruff: noqa: ANN001, ANN201, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.backends.triton.launch import ceil_div, launch
from torch_ggt.backends.triton.passes import sum_partials
from torch_ggt.backends.triton.spans import Spans
from torch_ggt.formats import BLOCK, BlockFormat, Coded

__all__ = ["encode", "expand", "gram_row", "rows_at_a_time", "sum_with_row", "usual_block", "words", "write"]

_BLOCK = tl.constexpr(BLOCK)
_ROUNDS = tl.constexpr(1.5 * 2.0**23)  # x plus this, minus this, is x rounded to the nearest integer, ties to even
_EXACT = tl.constexpr(8)  # so many products of two 127² are below 2³¹
_SMALLEST = tl.constexpr(torch.finfo(torch.float32).tiny)
_TWO_23 = tl.constexpr(2.0**23)
_FLOAT_23 = tl.constexpr(0x4B000000)  # the bits of 2²³ in float32: the lowest bits of the fraction count ones
_HIGH_20 = tl.constexpr(0x41308000)  # the upper half of 2²⁰ + 2¹⁵ in float64: its lowest bits count ones
_ZERO_8 = tl.constexpr(2.0**20 + 2.0**15)  # what the 8-bit integer zero becomes
_ZERO_4 = tl.constexpr(2.0**20 + 2.0**19)  # what the 4-bit integer zero becomes, in units of 2¹⁵⁷
_OFFSET_4 = tl.constexpr(2.0**23 + 2.0**19)  # its bits in float32 are the upper half of 2¹⁵⁷ _ZERO_4 in float64
_UNIT_4 = tl.constexpr(2.0**-157)
_UNIT_96 = tl.constexpr(2.0**-96)


def encode(row: Tensor, stored: BlockFormat, *, block: int = 1024) -> tuple[Tensor, Tensor]:
    """As `BlockFormat.encode` for one row (d,): integers and scales."""
    codes = torch.empty(row.shape[0] // stored.per_byte, dtype=stored.dtype, device=row.device)
    scales = torch.empty(row.shape[0] // BLOCK, device=row.device)
    launch(
        _encode, (ceil_div(row.shape[0], block),), row, codes, scales, row.shape[0],
        LARGEST=stored.largest, PACKED=stored.packed, BLOCK_D=block,
    )  # fmt: skip
    return codes, scales


def gram_row(
    rows: Coded, row: Tensor, spans: Spans, *, block_rows: int = 4, block: int | None = None, warps: int = 4,
    stages: int = 1,
) -> Tensor:  # fmt: skip
    """As `passes.gram_row`: (W v, v·v) for each matrix, float64, shape (B, r + 1). Spans start at whole blocks.

    The last four arguments change only the speed: the rows and columns that a program takes in one step, its number of
    warps, and how many steps it loads ahead.
    """
    stored, size = rows.format, rows.shape[0]
    codes, scales = encode(row, stored)
    matrix, stride = words(rows)
    if stored.packed:
        codes = codes.view(torch.int32)
    partials = torch.empty(spans.pieces, size + 1, dtype=torch.float64, device=row.device)
    tiles = ceil_div(size, block_rows) + 1
    launch(
        _gram_partials, (spans.pieces * tiles,), matrix, rows.scales, codes, scales, *spans.tables[:2], partials,
        size, stride, rows.scales.stride(0), tiles,
        PACKED=stored.packed, BLOCK_R=block_rows, BLOCK_D=block or (4096 if stored.packed else 2048), STAGES=stages,
        num_warps=warps,
    )  # fmt: skip
    return sum_partials(partials, spans)


def expand(
    rows: Coded, coefficients: Tensor, spans: Spans, out: Tensor, *, kept: Tensor | None = None,
    block: int | None = None, warps: int = 4, unroll: int | None = None,
) -> Tensor:  # fmt: skip
    """As `passes.expand`: write Wᵀ c into ``out`` (d,); with ``kept``, κ, float64 (B,), Wᵀ c + κ·out.

    The last three arguments change only the speed: the columns and warps of a program, and the rows that it loads at
    one time.
    """
    block = block or usual_block(rows)
    blocks, (codes, stride) = ceil_div(spans.longest, block), words(rows)
    launch(
        _expand, (spans.pieces * blocks,), codes, rows.scales, coefficients.contiguous(),
        coefficients if kept is None else kept.contiguous(), *spans.tables, out,
        rows.shape[0], stride, rows.scales.stride(0), blocks,
        PACKED=rows.format.packed, KEEP=kept is not None, BLOCK_D=block,
        UNROLL=unroll or rows_at_a_time(rows.shape[0]), num_warps=warps,
    )  # fmt: skip
    return out


def usual_block(rows: Coded) -> int:
    """How many columns a program of Wᵀ c takes. For 8 bits both were timed (docs/row_formats.md), for 4 bits one."""
    return 2048 if rows.format.packed else 1024


def rows_at_a_time(size: int) -> int:
    """How many rows Wᵀ c loads together: 4 to 8, so that few loads are left over."""
    return min(range(4, 9), key=lambda number: (-size % number, -number))


def words(rows: Coded) -> tuple[Tensor, int]:
    """The integers as both passes read them, and the distance of two rows: packed ones are read as words of eight."""
    codes = rows.codes.view(torch.int32) if rows.format.packed else rows.codes
    return codes, codes.stride(0)


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
    largest = tl.div_rn(_largest_magnitude(v), 1.0 * LARGEST * LARGEST * (LARGEST if PACKED else 1))
    rounded = ((largest.to(tl.int32, bitcast=True) + 0x2000) & -0x4000).to(tl.float32, bitcast=True)
    # The bits of NaN are not rounded: a GPU's NaN is 0x7FFFFFFF, and that plus 0x2000 would be -0.
    scales = tl.where(largest < float("inf"), rounded, float("nan"))
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
    """max |v| of each block; NaN if there is one. A maximum of floats drops NaN; as integers, its bits are largest."""
    bits = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(bits, 1).to(tl.float32, bitcast=True)


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
def _float_23(size):
    """The bits of 2²³, in a register. The compiler would load a constant again and again: it cannot know this one."""
    return _FLOAT_23 + (size >> 30)


@triton.jit
def _nibble(word, float_23, K: tl.constexpr):
    """16^K·i for i, the K-th of the lowest four 4-bit integers of a word: float32."""
    ONES: tl.constexpr = 1 << (4 * K)
    return ((word & (15 * ONES)) | float_23).to(tl.float32, bitcast=True) - (_TWO_23 + 8.0 * ONES)


@triton.jit
def _products(w, v, float_23, BLOCK_R: tl.constexpr, NUMBER: tl.constexpr, PACKED: tl.constexpr):
    """Products of rows w and v as stored, in units of the scales: float64 sums (rows, blocks, parts of a block)."""
    if PACKED:  # words
        sums = tl.zeros((BLOCK_R, NUMBER, _BLOCK // 8), tl.float32)
        for half in tl.static_range(2):
            for k in tl.static_range(4):
                i, j = _nibble(w >> (16 * half), float_23, k), _nibble(v >> (16 * half), float_23, k)
                sums += (i * i) * (i * (j * j * j * (1.0 / (1 << (24 * k))))[None, :, :])  # both have a factor of 16^k
        return tl.sum(sums, 2, keep_dims=True).to(tl.float64)
    else:
        products = _signed_square(w) * _signed_square(v)[None, :, :]
        # 16 integers are what a thread loads at a time: its sum stays in the thread.
        parts = tl.reshape(products, (BLOCK_R, NUMBER, _BLOCK // (2 * _EXACT), 2, _EXACT))
        return tl.sum(tl.sum(parts, 4).to(tl.float64), 3)


@triton.jit
def _gram_partials(
    codes, scales, row, row_scales, starts, ends, partials,  # pointers
    size, stride, scale_stride, tiles,  # numbers
    PACKED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program multiplies v by BLOCK_R rows, on one piece of columns. The last tile of a piece computes v·v."""
    piece, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    PER: tl.constexpr = _BLOCK // 8 if PACKED else _BLOCK  # words, or bytes, of a block
    PARTS: tl.constexpr = 1 if PACKED else _BLOCK // (2 * _EXACT)
    NUMBER: tl.constexpr = BLOCK_D // _BLOCK
    result = partials + piece.to(tl.int64) * (size + 1)
    inner = tl.arange(0, PER)
    float_23 = _float_23(size)
    if tile < tiles - 1:
        which = tile * BLOCK_R + tl.arange(0, BLOCK_R)
        first, first_scale = which.to(tl.int64) * stride, which.to(tl.int64) * scale_stride
        sums = tl.zeros((BLOCK_R, NUMBER, PARTS), tl.float64)
        for left in tl.range(start, end, BLOCK_D, num_stages=STAGES):
            block = left // _BLOCK + tl.arange(0, NUMBER)
            inside = block * _BLOCK < end
            there = (which < size)[:, None] & inside[None, :]
            v = tl.load(row + block[:, None] * PER + inner[None, :], mask=inside[:, None], other=0)
            where = first[:, None, None] + block[None, :, None] * PER + inner[None, None, :]
            # W is read only once, so it must not push v out of the cache.
            w = tl.load(codes + where, mask=there[:, :, None], other=0, eviction_policy="evict_first")
            of_v = tl.load(row_scales + block, mask=inside, other=0.0).to(tl.float64)
            of_w = tl.load(scales + first_scale[:, None] + block[None, :], mask=there, other=0.0).to(tl.float64)
            sums += _products(w, v, float_23, BLOCK_R, NUMBER, PACKED) * (of_w * of_v[None, :])[:, :, None]
        tl.store(result + which, tl.sum(tl.sum(sums, 2), 1), mask=which < size)
    else:
        squares = tl.zeros((1, NUMBER, PARTS), tl.float64)
        for left in range(start, end, BLOCK_D):
            block = left // _BLOCK + tl.arange(0, NUMBER)
            inside = block * _BLOCK < end
            v = tl.load(row + block[:, None] * PER + inner[None, :], mask=inside[:, None], other=0)
            of_v = tl.load(row_scales + block, mask=inside, other=0.0).to(tl.float64)
            squares += _products(v[None, :, :], v, float_23, 1, NUMBER, PACKED) * (of_v * of_v)[None, :, None]
        tl.store(result + size, tl.sum(tl.sum(tl.sum(squares, 2), 1), 0))


@triton.jit
def _upper_half(high):
    """The float64 number whose upper 32 bits are these; the lower ones are zero."""
    return (high.to(tl.int64) << 32).to(tl.float64, bitcast=True)


@triton.jit
def _add_cubes(total, factor, word, float_23, K: tl.constexpr):
    """total + factor·2¹⁵⁷·2^(96 K)·(_ZERO_4 + i³) for i, the K-th of the lowest four 4-bit integers of a word."""
    i = _nibble(word, float_23, K)  # 16^K times as large, so that its cube is 2^(12 K) times as large
    bits = (i * i * i + _OFFSET_4 * (1 << (12 * K))).to(tl.int32, bitcast=True)
    # The exponent is 12 K larger, and ends three bits further left than the exponent of a float64 number.
    return tl.fma(tl.broadcast_to(factor[:, None], total.shape), _upper_half(bits), total)


@triton.jit
def _row(codes, scales, weights, i, stride, scale_stride, where, block, there):
    """The integers of row i, and c_i times their scales."""
    w = tl.load(codes + i * tl.cast(stride, tl.int64) + where, mask=there[:, None], other=0)
    s = tl.load(scales + i * tl.cast(scale_stride, tl.int64) + block, mask=there, other=0.0)
    return w, tl.load(weights + i) * s.to(tl.float64)


@triton.jit
def _sum_bytes(
    codes, scales, weights, size, stride, scale_stride, block, inside, NUMBER: tl.constexpr, UNROLL: tl.constexpr
):
    """Σ_i c_i·row_i over all rows of 8-bit integers, float64 (blocks, 64)."""
    where = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    total, zero = tl.zeros((NUMBER, _BLOCK), tl.float64), tl.zeros((NUMBER,), tl.float64)
    unit = tl.full((NUMBER,), _ZERO_8, tl.float64)
    for top in range(0, size, UNROLL):
        for i in tl.static_range(UNROLL):
            there = inside & (tl.zeros((NUMBER,), tl.int32) + (top + i) < size)
            row = tl.minimum(top + i, size - 1)
            w, factor = _row(codes, scales, weights, row, stride, scale_stride, where, block, there)
            wide = tl.broadcast_to(factor[:, None], total.shape)
            total = tl.fma(wide, _upper_half(_signed_square(w) + _HIGH_20), total)
            zero = tl.fma(factor, unit, zero)
    return total - zero[:, None]


@triton.jit
def _sum_words(
    codes, scales, weights, size, stride, scale_stride, block, inside, NUMBER: tl.constexpr, UNROLL: tl.constexpr
):
    """Σ_i c_i·row_i over all rows of 4-bit integers, float64 (blocks, 64). A word has eight integers."""
    WORDS: tl.constexpr = _BLOCK // 8
    where = block[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    a0, zero = tl.zeros((NUMBER, WORDS), tl.float64), tl.zeros((NUMBER,), tl.float64)
    a1, a2, a3, a4, a5, a6, a7 = a0, a0, a0, a0, a0, a0, a0
    unit, float_23 = tl.full((NUMBER,), _ZERO_4, tl.float64), _float_23(size)
    for top in range(0, size, UNROLL):
        for i in tl.static_range(UNROLL):
            there = inside & (tl.zeros((NUMBER,), tl.int32) + (top + i) < size)
            row = tl.minimum(top + i, size - 1)
            w, factor = _row(codes, scales, weights, row, stride, scale_stride, where, block, there)
            zero = tl.fma(factor, unit, zero)
            factor = factor * _UNIT_4
            a0, a1 = _add_cubes(a0, factor, w, float_23, 0), _add_cubes(a1, factor, w, float_23, 1)
            a2, a3 = _add_cubes(a2, factor, w, float_23, 2), _add_cubes(a3, factor, w, float_23, 3)
            w = w >> 16
            a4, a5 = _add_cubes(a4, factor, w, float_23, 0), _add_cubes(a5, factor, w, float_23, 1)
            a6, a7 = _add_cubes(a6, factor, w, float_23, 2), _add_cubes(a7, factor, w, float_23, 3)
    # The first half of a block is in the low halves of bytes.
    low = tl.join(tl.join(a0, a4), tl.join(a2 * _UNIT_96 * _UNIT_96, a6 * _UNIT_96 * _UNIT_96))
    high = tl.join(tl.join(a1, a5) * _UNIT_96, tl.join(a3, a7) * _UNIT_96 * _UNIT_96 * _UNIT_96)
    both = tl.join(tl.reshape(low, (NUMBER, _BLOCK // 2)), tl.reshape(high, (NUMBER, _BLOCK // 2)))
    return tl.reshape(tl.permute(both, (0, 2, 1)), (NUMBER, _BLOCK)) - zero[:, None]


@triton.jit
def sum_with_row(
    codes, scales, weights, kept, row, size, stride, scale_stride, left, end,
    PACKED: tl.constexpr, KEEP: tl.constexpr, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Σ_i c_i·row_i + κ·row over all rows, float64 (BLOCK_D,), for the columns from ``left`` to ``end``.

    The loads of UNROLL rows run at one time. Where κ is zero, ``row`` is not read: it may hold what is not finite.
    """
    NUMBER: tl.constexpr = BLOCK_D // _BLOCK
    block = left // _BLOCK + tl.arange(0, NUMBER)
    inside = block * _BLOCK < end
    if PACKED:
        total = _sum_words(codes, scales, weights, size, stride, scale_stride, block, inside, NUMBER, UNROLL)
    else:
        total = _sum_bytes(codes, scales, weights, size, stride, scale_stride, block, inside, NUMBER, UNROLL)
    if KEEP:
        share = tl.load(kept)
        columns = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
        read = block * _BLOCK < tl.where(share != 0, end, 0)
        v = tl.load(row + columns, mask=read[:, None], other=0.0)
        total += share * v.to(tl.float64)
    return tl.reshape(total, (BLOCK_D,))


@triton.jit
def _expand(
    codes, scales, coefficients, kept, starts, ends, owners, out,  # pointers
    size, stride, scale_stride, blocks,  # numbers
    PACKED: tl.constexpr, KEEP: tl.constexpr, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One program sums all rows over BLOCK_D columns."""
    piece, number = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    left = start + number * BLOCK_D
    if left < end:
        owner = tl.load(owners + piece)
        total = sum_with_row(
            codes, scales, coefficients + owner * size, kept + owner, out, size, stride, scale_stride, left, end,
            PACKED, KEEP, BLOCK_D, UNROLL,
        )  # fmt: skip
        columns = left // _BLOCK * _BLOCK + tl.arange(0, BLOCK_D)  # a multiple of 64, as Triton can see
        tl.store(out + columns, total.to(out.dtype.element_ty), mask=columns < tl.multiple_of(end, _BLOCK))


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
