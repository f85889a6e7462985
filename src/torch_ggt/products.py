"""The two passes over the window: W v with float64 sums, and Wᵀ c.

A Gram that is wrong by float32 rounding is indefinite for collinear rows, and its inverse square root then explodes;
so W v is accumulated in float64 whatever the rows are. Neither pass makes a temporary of the size of W: rows are
widened a block at a time.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torch_ggt.kernels import gpu_kernels
from torch_ggt.kernels.cpu import compiled_gram_row
from torch_ggt.kernels.spans import Spans

__all__ = ["column_slices", "expand", "gram_row", "spans_of"]

# Elements of the float64 block. On a CPU 8 MiB stay in the caches; a GPU needs enough to fill it.
_CPU_BLOCK = 8 * 131_072
_GPU_BLOCK = 16 * 1_048_576

# Largest relative error of a step that rounding the coefficients to the rows' precision may cause.
_ROUNDING = 4e-6
# Coefficients beyond this come with rows near the end of float32, and are better not rounded to it.
_LARGEST = 1e30


def gram_row(rows: Tensor, row: Tensor, borders: Sequence[int] | None = None) -> Tensor:
    """(W v, v·v): the inner products of ``row`` (d,) with every row of ``rows`` (r, d) and with itself, in float64.

    Shape (r + 1,): what a Gram matrix needs to know of a row, in one pass. With ``borders`` (B + 1,) the columns are
    those of B matrices, and the shape is (B, r + 1). v is rounded to the dtype of the rows first.
    """
    if torch.compiler.is_compiling():
        compiled: Tensor = _gram_row_op(rows, row, borders)
        return compiled
    return _gram_row(rows, row, borders)


def expand(
    rows: Tensor, coefficients: Tensor, gram: Tensor, out: Tensor, borders: Sequence[int] | None = None
) -> Tensor:
    """Wᵀ c into ``out`` (d,), for float64 coefficients c (r,); ``gram`` is W Wᵀ.

    With ``borders`` c is (B, r) and ``gram`` (B, r, r); columns before the first border are left alone.
    """
    if torch.compiler.is_compiling():
        return out.copy_(_expand_op(rows, coefficients, gram, borders))
    _expand(rows, coefficients, gram, out, borders)
    return out


def column_slices(borders: Sequence[int]) -> list[slice]:
    """The columns of each matrix."""
    return [slice(left, right) for left, right in itertools.pairwise(borders)]


def spans_of(rows: Tensor, borders: Sequence[int] | None) -> Spans:
    """The pieces in which a GPU takes the columns; made once for every shape."""
    whole = (0, rows.shape[1]) if borders is None else tuple(borders)
    return _spans(whole, rows.shape[0], rows.device)


@functools.cache  # never dropped: a CUDA graph may hold its address
def _spans(borders: tuple[int, ...], rows: int, device: torch.device) -> Spans:
    return Spans(borders, rows, device)


def _gram_row(rows: Tensor, row: Tensor, borders: Sequence[int] | None) -> Tensor:
    kernels = gpu_kernels(rows.device)
    if kernels is not None:
        sums: Tensor = kernels.gram_row(rows, row, spans_of(rows, borders))
        return sums[0] if borders is None else sums
    if borders is not None:
        return torch.stack([_gram_row(rows[:, part], row[part], None) for part in column_slices(borders)])
    row = row.to(rows.dtype)
    if rows.dtype == torch.float64:
        return torch.cat([torch.mv(rows, row), torch.dot(row, row)[None]])
    if rows.device.type == "cpu":
        return compiled_gram_row(rows, row, fallback=_gram_row_by_blocks)
    return _gram_row_by_blocks(rows, row)


def _gram_row_by_blocks(rows: Tensor, row: Tensor) -> Tensor:
    products = torch.zeros(rows.shape[0] + 1, dtype=torch.float64, device=rows.device)
    widen = _Widener(rows)
    for columns in widen.column_ranges():
        piece = row[columns].double()
        for row_range, block in widen.blocks(columns):
            products[row_range].addmv_(block, piece)
        products[-1] += torch.dot(piece, piece)
    return products


def _expand(
    rows: Tensor, coefficients: Tensor, gram: Tensor, out: Tensor, borders: Sequence[int] | None = None
) -> None:
    kernels = gpu_kernels(rows.device)
    if kernels is not None:
        kernels.expand(rows, coefficients.view(-1, rows.shape[0]), spans_of(rows, borders), out)
    elif borders is not None:
        for index, part in enumerate(column_slices(borders)):
            _expand(rows[:, part], coefficients[index], gram[index], out[part])
    elif rows.dtype == torch.float64:
        torch.mv(rows.t(), coefficients, out=out)
    elif rows.dtype == torch.float32 and rows.device.type == "cpu":
        # One plain product with rounded coefficients. Rows that are nearly collinear come with large coefficients of
        # opposite sign, whose rounding does not cancel; K tells how much that matters, before it happens.
        if coefficients.abs().max() > _LARGEST:
            return _expand_by_blocks(rows, coefficients, out)
        rounded = coefficients.float()
        torch.mv(rows.t(), rounded, out=out)
        lost = coefficients - rounded
        if lost @ (gram @ lost) > _ROUNDING**2 * (coefficients @ (gram @ coefficients)):
            out.addmv_(rows.t(), lost.float())
    else:
        _expand_by_blocks(rows, coefficients, out)
    return None


def _expand_by_blocks(rows: Tensor, coefficients: Tensor, out: Tensor) -> None:
    widen = _Widener(rows)
    for columns in widen.column_ranges():
        piece = torch.zeros_like(out[columns], dtype=torch.float64)
        for row_range, block in widen.blocks(columns):
            piece.addmv_(block.t(), coefficients[row_range])
        out[columns] = piece


class _Widener:
    """Float64 copies of W, block by block, in one small buffer that is used again and again."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        size, width = rows.shape
        # Long runs of columns keep the widening copy contiguous, which on a CPU is most of its speed.
        elements, columns = (_CPU_BLOCK, 131_072) if rows.device.type == "cpu" else (_GPU_BLOCK, _GPU_BLOCK // size)
        self._width = max(1, min(width, columns))
        self._size = min(size, max(1, elements // self._width))
        self._buffer = torch.empty(self._size * self._width, dtype=torch.float64, device=rows.device)

    def column_ranges(self) -> Iterator[slice]:
        for left in range(0, self._rows.shape[1], self._width):
            yield slice(left, left + self._width)

    def blocks(self, columns: slice) -> Iterator[tuple[slice, Tensor]]:
        for top in range(0, self._rows.shape[0], self._size):
            row_range = slice(top, min(top + self._size, self._rows.shape[0]))
            source = self._rows[row_range, columns]
            yield row_range, self._buffer[: source.numel()].view(source.shape).copy_(source)


# For torch.compile both passes are opaque: a graph must not unroll the loop over blocks.
_gram_row_op = torch.library.custom_op("torch_ggt::gram_row", _gram_row, mutates_args=())


@torch.library.custom_op("torch_ggt::expand", mutates_args=())
def _expand_op(rows: Tensor, coefficients: Tensor, gram: Tensor, borders: Sequence[int] | None) -> Tensor:
    # Returns a new tensor: inductor miscompiled a version that wrote into the row (seen with torch 2.13).
    out = rows.new_zeros(rows.shape[1], dtype=torch.promote_types(rows.dtype, torch.float32))
    _expand(rows, coefficients, gram, out, borders)
    return out


@_gram_row_op.register_fake
def _(rows: Tensor, row: Tensor, borders: Sequence[int] | None) -> Tensor:
    batch = () if borders is None else (len(borders) - 1,)
    return rows.new_empty(*batch, rows.shape[0] + 1, dtype=torch.float64)


@_expand_op.register_fake
def _(rows: Tensor, coefficients: Tensor, gram: Tensor, borders: Sequence[int] | None) -> Tensor:
    return rows.new_empty(rows.shape[1], dtype=torch.promote_types(rows.dtype, torch.float32))
