"""Read all gradients, or write all parameters, of a model in one launch. `backends.plain` and `sinks` specify it.

The pass that makes a step is the one that writes it: see `update`.

Each tensor has its own address, so the kernels read a table of addresses. New addresses are copied to the device
without waiting for it. This is not possible while a CUDA graph is captured. The caller then uses the plain version,
unless the table is there already.
"""
# ruff: noqa: ANN001, ANN202, SIM108 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.backends.triton.coded import rows_at_a_time, sum_with_row, usual_block, words
from torch_ggt.backends.triton.launch import ceil_div, launch
from torch_ggt.backends.triton.passes import weighted_sum
from torch_ggt.backends.triton.spans import Spans
from torch_ggt.formats import Coded

__all__ = ["Addresses", "gather", "update"]

_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Addresses:
    """A table on the device that holds the addresses of a model's tensors, which have ``numels`` elements."""

    def __init__(self, numels: Sequence[int], device: torch.device) -> None:
        self.numels = torch.tensor(list(numels), dtype=torch.int64, device=device)
        self.table: Tensor | None = None  #: The addresses, int64.
        self.dtype = torch.float32
        self.aligned = False  #: Whether all tensors in the table can be read 16 bytes at a time.
        self.fixed = False  #: Whether new addresses overwrite the old table, so that a graph follows them.
        self.known: list[int] = []  #: The addresses, on the host.
        self._captured: list[Tensor | None] = []

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Put the addresses of these tensors in the table. Return False if one table cannot serve them."""
        self.dtype = dtype = tensors[0].dtype
        # A list and not a generator: for 100 tensors, the host needs 24.4 µs with a list, and 26.3 µs with a generator.
        if dtype not in _DTYPES or not all([t.dtype == dtype and t.is_contiguous() for t in tensors]):  # noqa: C419
            return False
        addresses = [tensor.data_ptr() for tensor in tensors]
        cuda = self.numels.is_cuda
        capturing = cuda and torch.cuda.is_current_stream_capturing()
        if addresses != self.known:
            if capturing:
                return False
            host = torch.tensor(addresses, dtype=torch.int64, pin_memory=cuda)
            if self.fixed and self.table is not None:
                self.table.copy_(host, non_blocking=True)
            else:  # a new tensor: if a user captured a step, that graph must read the old addresses
                self.table = host.to(self.numels.device, non_blocking=True)
            self.known = addresses
            self.aligned = all(address % 16 == 0 for address in addresses)
        if capturing and not self.fixed:
            self._captured.append(self.table)  # kept: the graph reads it as long as the graph lives
        return True


def gather(
    gradients: Addresses, spans: Spans, row: Tensor, *, momentum: Tensor | None, beta: float, updated: Tensor | None,
    negate: bool, block: int = 1024, warps: int = 4,
) -> None:  # fmt: skip
    """Compute row ← g + β·momentum. g has each gradient, or its negative with ``negate``, at the columns of its span.

    ``row`` is v, float32. ``momentum`` is flat; None stands for no momentum. For Nesterov momentum, ``updated`` becomes
    g + β·momentum, and ``row`` becomes g + β·updated.
    """
    blocks = ceil_div(spans.longest, block)
    launch(
        _gather, (spans.pieces * blocks,), row, row if momentum is None else momentum,
        row if updated is None else updated, gradients.table, gradients.numels, *spans.tables, spans.origins,
        beta, blocks,
        DTYPE=_DTYPES[gradients.dtype], ALIGNED=spans.aligned and gradients.aligned, MOMENTUM=momentum is not None,
        AHEAD=updated is not None, NEGATE=negate, BLOCK_D=block, num_warps=warps,
    )  # fmt: skip


def update(
    rows: Tensor | Coded, coefficients: Tensor, parameters: Addresses, spans: Spans, chosen: tuple[int, int], *,
    matrix_of: Tensor | None, lr: float | Tensor, weight_decay: float, taken: Tensor, replace: bool = False,
    kept: tuple[Tensor, Tensor] | None = None, block: int | None = None, warps: int = 4, unroll: int | None = None,
) -> None:  # fmt: skip
    """Compute p ← p - lr·(weight_decay·p + u) for chosen parameters, in the pass that computes u = Wᵀ c.

    With ``replace`` the tensors are gradients: p ← u.

    ``rows`` is W. ``coefficients`` is c, float64, shape (number of matrices, r). ``chosen`` is the index of the first
    parameter to update, and one past the last. ``matrix_of`` is the matrix of each parameter, int32; None if there is
    one matrix. ``lr`` is a number, or a tensor of one element on the device. ``taken``, bool, shape (), says whether
    anything changes. ``kept`` is for rows of integers, and only for these: κ, float64, one for each matrix, and the
    flat row v, so that u = Wᵀ c + κ v. The last three arguments change only the speed.
    """
    first, last = (spans.first_pieces[index] for index in chosen)
    if block is None:
        block = usual_block(rows) if isinstance(rows, Coded) and not replace else 2048
    blocks, size = ceil_div(spans.longest, block), rows.shape[0]
    lr_tensor, lr_number = (lr, 0.0) if isinstance(lr, Tensor) else (coefficients, float(lr))
    if isinstance(rows, Coded):
        assert kept is not None
        (matrix, stride), scales, (share, row) = words(rows), rows.scales, kept
        scale_stride, packed, aligned = scales.stride(0), rows.format.packed, spans.aligned_in(row)
    else:
        matrix, stride, scale_stride, packed = rows, rows.stride(0), 0, False
        scales = share = row = coefficients  # they are not read
        aligned = stride % 16 == 0 and spans.aligned_in(rows)
    launch(
        _update, ((last - first) * blocks,), matrix, scales, coefficients, share, row, parameters.table,
        parameters.numels, *spans.tables, spans.origins, coefficients if matrix_of is None else matrix_of, taken,
        lr_tensor, lr_number, float(weight_decay), first, size, stride, scale_stride, blocks,
        DTYPE=_DTYPES[parameters.dtype], ALIGNED=parameters.aligned and aligned, BITS=rows.dtype != torch.float64,
        CODED=kept is not None, PACKED=packed, SEPARATE=matrix_of is not None, LR_TENSOR=isinstance(lr, Tensor),
        REPLACE=replace, BLOCK_D=block, UNROLL=unroll or (8 if kept is None else rows_at_a_time(size)),
        num_warps=warps,
    )  # fmt: skip


@triton.jit
def _part(piece, starts, ends, owners, origins, numels, offset, ALIGNED: tl.constexpr, BLOCK_D: tl.constexpr):
    """The owner, columns and elements of a block of a piece, its first column, and the column after its elements."""
    owner = tl.load(owners + piece)
    left = tl.load(starts + piece) + offset
    last = tl.minimum(tl.load(ends + piece), tl.load(origins + owner) + tl.load(numels + owner))
    origin = tl.load(origins + owner)
    columns = left + tl.arange(0, BLOCK_D)
    elements = left - origin + tl.arange(0, BLOCK_D)
    if ALIGNED:
        columns = tl.max_contiguous(tl.multiple_of(columns, 16), BLOCK_D)
        elements = tl.max_contiguous(tl.multiple_of(elements, 16), BLOCK_D)
    return owner, columns, elements, left, last


@triton.jit
def _pointer(table, owner, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(table + owner).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _gather(
    row, momentum, updated, table, numels, starts, ends, owners, origins,  # pointers
    beta, blocks,  # numbers
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, MOMENTUM: tl.constexpr, AHEAD: tl.constexpr, NEGATE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    piece, offset = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK_D
    owner, columns, elements, left, last = _part(piece, starts, ends, owners, origins, numels, offset, ALIGNED, BLOCK_D)
    source = _pointer(table, owner, DTYPE, ALIGNED)
    if left + BLOCK_D <= last:  # whole blocks have no mask, because a mask would prevent wide loads
        g = tl.load(source + elements)
        _combine(row, momentum, updated, g, beta, columns, None, MOMENTUM, AHEAD, NEGATE)
    elif left < last:  # columns between the last element and the end of the span get zeros
        g = tl.load(source + elements, mask=columns < last, other=0.0)
        _combine(row, momentum, updated, g, beta, columns, columns < tl.load(ends + piece), MOMENTUM, AHEAD, NEGATE)


@triton.jit
def _combine(
    row, momentum, updated, g, beta, columns, inside, MOMENTUM: tl.constexpr, AHEAD: tl.constexpr, NEGATE: tl.constexpr
):
    v = g.to(row.dtype.element_ty)
    if NEGATE:
        v = -v
    g = v
    if MOMENTUM:
        v = g + beta * tl.load(momentum + columns, mask=inside)
    if AHEAD:
        tl.store(updated + columns, v, mask=inside)
        v = g + beta * v
    tl.store(row + columns, v, mask=inside)


@triton.jit
def _elements(target, columns, last, whole):
    """p; whole blocks have no mask, because a mask would prevent wide loads."""
    if whole:
        p = tl.load(target)
    else:
        p = tl.load(target, mask=columns < last, other=0.0)
    return p


@triton.jit
def _update(
    rows, scales, coefficients, kept, row, table, numels, starts, ends, owners, origins,  # pointers
    matrix_of, taken, lr_tensor,  # pointers
    lr, weight_decay, first, size, stride, scale_stride, blocks,  # numbers
    DTYPE: tl.constexpr, ALIGNED: tl.constexpr, BITS: tl.constexpr, CODED: tl.constexpr, PACKED: tl.constexpr,
    SEPARATE: tl.constexpr, LR_TENSOR: tl.constexpr, REPLACE: tl.constexpr, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    piece, offset = first + tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK_D
    owner, columns, elements, left, last = _part(piece, starts, ends, owners, origins, numels, offset, ALIGNED, BLOCK_D)
    if (left < last) & (tl.load(taken) != 0):
        matrix = 0
        if SEPARATE:
            matrix = tl.load(matrix_of + owner)
        end = tl.load(ends + piece)
        if ALIGNED:
            end = tl.multiple_of(end, 16)
        target = _pointer(table, owner, DTYPE, ALIGNED) + elements
        whole = left + BLOCK_D <= last
        weights = coefficients + matrix * size
        if CODED:
            u = sum_with_row(
                rows, scales, weights, kept + matrix, row, size, stride, scale_stride, left, end,
                PACKED, True, BLOCK_D, UNROLL,
            )  # fmt: skip
        elif not REPLACE:
            p = _elements(target, columns, last, whole)  # early, so that p is there when the sum is ready
        if not CODED:
            u = weighted_sum(rows, weights, size, stride, columns, columns < end, BITS, BLOCK_D, UNROLL)
        u = u.to(tl.float32)
        if not REPLACE:
            if CODED:  # late, as v: with p in registers, a thread would need 218 of them in place of 112
                p = _elements(target, columns, last, whole)
            if LR_TENSOR:
                lr = tl.load(lr_tensor).to(tl.float32)
            wide = p.to(tl.float32)
            u = wide - lr * (weight_decay * wide + u)
        if whole:
            tl.store(target, u.to(DTYPE))
        else:
            tl.store(target, u.to(DTYPE), mask=columns < last)
