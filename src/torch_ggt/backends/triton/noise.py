"""The noise in a window on a GPU, in one kernel. `shrinkage.noise_share` is its specification.

One program takes one matrix. It factorizes the correlations of the rows, C = L Lᵀ, as the programs of `root` do. An
identity below C becomes L⁻ᵀ, and the squares of its rows add up to the diagonal of C⁻¹.
"""
# ruff: noqa: ANN001, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_ggt.backends.triton.launch import ceil_div, launch, power_of_2
from torch_ggt.backends.triton.root import eliminate
from torch_ggt.shrinkage import RIDGE

__all__ = ["noise_share"]


def noise_share(gram: Tensor, *, warps: int = 4, panel: int = 128, block: int = 16) -> Tensor:
    """Compute `shrinkage.noise_share` of K, float64, shape (B, r, r), contiguous: float64, shape (B,).

    A program updates ``panel`` rows and eliminates ``block`` columns at a time.
    """
    batch, size = gram.shape[0], gram.shape[-1]
    padded = ceil_div(size, block) * block
    # Each program has L, L⁻ᵀ below it, and one row for the lengths of the rows of the window.
    scratch = torch.empty(batch, 2 * padded + 1, padded, dtype=torch.float64, device=gram.device)
    shares = torch.empty(batch, dtype=torch.float64, device=gram.device)
    launch(
        _noise, (batch,), gram, _ridge(gram.device), shares, scratch, size, padded,
        SIZE=power_of_2(size), BLOCK=block, PANEL=panel, num_warps=warps,
    )  # fmt: skip
    return shares


@functools.cache  # never dropped: a CUDA graph may hold its address
def _ridge(device: torch.device) -> Tensor:
    """The ridge is a tensor because a float argument is float32."""
    return torch.tensor([RIDGE], dtype=torch.float64, device=device)


@triton.jit
def _noise(
    gram, ridge, shares, scratch,  # pointers
    size, padded,  # numbers
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PANEL: tl.constexpr,
):  # fmt: skip
    matrix = tl.program_id(0).to(tl.int64)
    K = gram + matrix * size * size
    L = scratch + matrix * (2 * padded + 1) * padded
    lengths = L + 2 * padded * padded
    i = tl.arange(0, SIZE)
    squares = tl.load(K + i.to(tl.int64) * (size + 1), mask=i < size, other=0.0)
    there = squares > 0
    tl.store(lengths + i, tl.where(there, 1 / tl.sqrt(tl.where(there, squares, 1.0)), 0.0), mask=i < size)
    tl.debug_barrier()
    diagonal = tl.load(ridge)  # a row that is not there has no more than this, and touches no other row
    for left in range(0, padded, BLOCK):
        eliminate(K, lengths, K, L, left, size, padded, 2 * padded, 1.0, 1.0, diagonal, True, BLOCK, PANEL)
    total = tl.zeros((SIZE,), tl.float64)
    k = tl.arange(0, BLOCK)
    for left in range(0, padded, BLOCK):
        inverse = tl.load(L + (padded + i)[:, None] * padded + left + k[None, :], mask=(i < size)[:, None], other=0.0)
        total += tl.sum(inverse * inverse, 1)
    failed = tl.sum(tl.where((i < size) & ~(total < float("inf")), 1, 0), 0) > 0  # rounding: C was not definite
    mean = tl.sum(tl.where(there, 1 / tl.where(there, total, 1.0), 0.0), 0)
    mean = mean / tl.maximum(tl.sum(there.to(tl.int32), 0), 1)
    tl.store(shares + matrix, tl.where(failed, 0.0, tl.minimum(mean, 1.0)))
