"""A row enters the window on a GPU: one kernel updates the state, one writes the row. `Window.push` specifies both."""
# ruff: noqa: ANN001, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import functools
import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.backends.triton.launch import ceil_div, launch, power_of_2
from torch_ggt.backends.triton.spans import Spans

__all__ = ["admit", "write"]


def admit(
    sums: Tensor, accept: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], betas: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Do all of `Window.push` except writing the row; e_newest (B, r), and the slot to write (B,), -1 for no slot.

    ``sums`` is (W v, v·v), shape (B, r + 1). A matrix whose ``accept``, shape () or (B,), is False does not change.
    ``state`` is gram, decay, momentum, position and count. All are contiguous, and all are changed in place.
    """
    batch, size = sums.shape[0], sums.shape[1] - 1
    newest = torch.empty(batch, size, dtype=torch.float64, device=sums.device)
    slots = torch.empty(batch, dtype=torch.int64, device=sums.device)
    launch(
        _admit, (batch,), sums, accept, *state, newest, slots, *_exactly(betas[1]), *_exactly(betas[0]), size,
        ACCEPTS=int(accept.dim() > 0), SIZE=power_of_2(size),
    )  # fmt: skip
    return newest, slots


def write(
    rows: Tensor, row: Tensor, slots: Tensor, spans: Spans, carry: tuple[Tensor, Tensor] | None = None, *,
    block: int = 1024, warps: int = 4,
) -> None:  # fmt: skip
    """Write ``row`` (d,) over the slots of W that `admit` returned.

    ``carry`` is (target, source), both (d,). Where a matrix gets its row, source is copied to target.
    """
    blocks = ceil_div(spans.longest, block)
    target, source = carry or (row, row)
    launch(
        _write, (spans.pieces * blocks,), rows, row, slots, target, source, *spans.tables, rows.stride(0), blocks,
        ALIGNED=spans.aligned_in(rows, row, target, source), CARRY=carry is not None,
        SAME=carry is not None and source is row, BLOCK_D=block, num_warps=warps,
    )  # fmt: skip


@functools.cache
def _exactly(number: float) -> tuple[float, float, float]:
    """Three float32 whose sum is this float64: a kernel rounds a float argument to float32."""
    parts = []
    for _ in range(3):
        (part,) = struct.unpack("f", struct.pack("f", number))
        parts.append(part)
        number -= part
    return parts[0], parts[1], parts[2]


@triton.jit
def _admit(
    sums, accept, gram, decay, momentum, position, count, newest, slots,  # pointers
    decay_large, decay_middle, decay_small, momentum_large, momentum_middle, momentum_small, size,  # numbers
    ACCEPTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    matrix = tl.program_id(0)
    i = tl.arange(0, SIZE)
    inside = i < size
    filled, slot = tl.load(count + matrix), tl.load(position + matrix)
    square = tl.load(sums + matrix * (size + 1) + size)
    accepted = tl.load(accept + matrix * ACCEPTS) != 0
    taken = ((filled > 0) | (square > 0)) & accepted
    tl.store(newest + matrix * size + i, tl.where(i == tl.where(taken, slot, -1), 1.0, 0.0).to(tl.float64), mask=inside)
    tl.store(slots + matrix, tl.where(taken, slot, -1))
    if taken:
        entries = tl.load(sums + matrix * (size + 1) + i, mask=inside)
        entries = tl.where(i == slot, square, entries)
        mine = gram + matrix.to(tl.int64) * size * size
        tl.store(mine + slot * size + i, entries, mask=inside)
        tl.store(mine + i * size + slot, entries, mask=inside)
        beta = tl.cast(decay_large, tl.float64) + tl.cast(decay_middle, tl.float64) + tl.cast(decay_small, tl.float64)
        weights = tl.load(decay + matrix * size + i, mask=inside)
        tl.store(decay + matrix * size + i, tl.where(i == slot, 1.0, beta * weights), mask=inside)
        beta = tl.cast(momentum_large, tl.float64) + tl.cast(momentum_middle, tl.float64)
        beta += tl.cast(momentum_small, tl.float64)
        weights = tl.load(momentum + matrix * size + i, mask=inside)
        tl.store(momentum + matrix * size + i, tl.where(i == slot, 1.0, beta * weights), mask=inside)
        # All warps must read the old slot before a thread writes the next: on a busy processor, warps run far apart.
        tl.debug_barrier()
        tl.store(position + matrix, (slot + 1) % size)
        tl.store(count + matrix, tl.minimum(filled + 1, size))


@triton.jit
def _write(
    rows, row, slots, target, source, starts, ends, owners,  # pointers
    stride, blocks,  # numbers
    ALIGNED: tl.constexpr, CARRY: tl.constexpr, SAME: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    piece, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    start, end = tl.load(starts + piece), tl.load(ends + piece)
    slot = tl.load(slots + tl.load(owners + piece))
    columns = start + block * BLOCK_D + tl.arange(0, BLOCK_D)
    if ALIGNED:
        end = tl.multiple_of(end, 16)
        columns = tl.max_contiguous(tl.multiple_of(columns, 16), BLOCK_D)
    inside = columns < end
    if slot >= 0:
        v = tl.load(row + columns, mask=inside, other=0.0)
        tl.store(rows + slot * stride + columns, v.to(rows.dtype.element_ty), mask=inside)
        if CARRY:
            if not SAME:
                v = tl.load(source + columns, mask=inside, other=0.0)
            tl.store(target + columns, v, mask=inside)
