"""The two passes over the window: W v with float64 sums, and Wᵀ c.

A Gram that is wrong by float32 rounding is indefinite for collinear rows, and its inverse square root then explodes;
so W v is accumulated in float64 whatever the rows are. Neither pass makes a temporary of the size of W: rows are
widened a block at a time.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["expand", "gram_row"]

# Elements of the float64 block. On a CPU 4 MiB stay in the caches; a GPU needs enough to fill it.
_CPU_BLOCK = 8 * 65_536
_GPU_BLOCK = 16 * 1_048_576
_CPU_BLOCK_COLUMNS = 65_536

# Largest relative error of a step that rounding the coefficients to the rows' precision may cause.
_ROUNDING = 1e-6


def gram_row(rows: Tensor, row: Tensor) -> Tensor:
    """W v: the inner products of ``row`` (d,) with every row of ``rows`` (r, d), accumulated in float64."""
    if torch.compiler.is_compiling():
        compiled: Tensor = _gram_row_op(rows, row)
        return compiled
    return _gram_row(rows, row)


def expand(rows: Tensor, coefficients: Tensor, gram: Tensor, out: Tensor) -> Tensor:
    """Wᵀ c into ``out`` (d,), for float64 coefficients c (r,); ``gram`` is W Wᵀ."""
    if torch.compiler.is_compiling():
        _expand_op(rows, coefficients, gram, out)
    else:
        _expand(rows, coefficients, gram, out)
    return out


def _gram_row(rows: Tensor, row: Tensor) -> Tensor:
    if rows.dtype == torch.float64:
        return torch.mv(rows, row)
    products = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for columns, row_range, block in _wide_blocks(rows):
        products[row_range].addmv_(block, row[columns].double())
    return products


def _expand(rows: Tensor, coefficients: Tensor, gram: Tensor, out: Tensor) -> None:
    if rows.dtype == torch.float64:
        torch.mv(rows.t(), coefficients, out=out)
    elif rows.dtype == torch.float32 and rows.device.type == "cpu":
        # One plain product with rounded coefficients. Rows that are nearly collinear come with large coefficients of
        # opposite sign, whose rounding does not cancel; K tells how much that matters, before it happens.
        rounded = coefficients.float()
        torch.mv(rows.t(), rounded, out=out)
        lost = coefficients - rounded
        if lost @ (gram @ lost) > _ROUNDING**2 * (coefficients @ (gram @ coefficients)):
            out.addmv_(rows.t(), lost.float())
    else:
        wide = torch.zeros_like(out, dtype=torch.float64)
        for columns, row_range, block in _wide_blocks(rows):
            wide[columns].addmv_(block.t(), coefficients[row_range])
        out.copy_(wide)


def _wide_blocks(rows: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """(columns, rows, block) over all of W, each block a float64 copy in one small buffer, used again and again."""
    size, width = rows.shape
    on_cpu = rows.device.type == "cpu"
    # Long runs of columns keep the widening copy contiguous, which on a CPU is most of its speed.
    block_width = max(1, min(width, _CPU_BLOCK_COLUMNS if on_cpu else _GPU_BLOCK // size))
    block_size = min(size, max(1, (_CPU_BLOCK if on_cpu else _GPU_BLOCK) // block_width))
    buffer = torch.empty(block_size * block_width, dtype=torch.float64, device=rows.device)
    for left in range(0, width, block_width):
        columns = slice(left, min(left + block_width, width))
        for top in range(0, size, block_size):
            source = rows[top : top + block_size, columns]
            block = buffer[: source.numel()].view(source.shape)
            yield columns, slice(top, top + source.shape[0]), block.copy_(source)


# For torch.compile both passes are opaque: a graph must not unroll the loop over blocks.
_gram_row_op = torch.library.custom_op("torch_ggt::gram_row", _gram_row, mutates_args=())
_expand_op = torch.library.custom_op("torch_ggt::expand", _expand, mutates_args=("out",))


@_gram_row_op.register_fake
def _(rows: Tensor, row: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], dtype=torch.float64)


@_expand_op.register_fake
def _(rows: Tensor, coefficients: Tensor, gram: Tensor, out: Tensor) -> None:
    return None
