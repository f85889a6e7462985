"""The verbs of a step in plain torch: gather, measure, push, coefficients, expand. They specify every other backend.

Two of them are passes over the window, W v and Wᵀ c. A Gram matrix that is wrong by float32 rounding is indefinite for
collinear rows, and its inverse square root then explodes; so W v is summed in float64 whatever the rows are. Neither
pass makes a temporary of the size of W: rows are widened to float64 a block at a time.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ggt import solver as solvers
from torch_ggt.formats import BLOCK, Coded
from torch_ggt.shrinkage import noise_share, shrunk

__all__ = ["HostBackend", "Scratch", "TorchBackend", "column_slices", "expand", "gram_row"]

# Elements of the float64 block. On a CPU, 2 MiB hold the window of a small model in one block; rows longer than the
# largest width get 8 MiB, a few rows at a time. A GPU needs enough to fill it.
_CPU_BLOCK = 262_144
_CPU_WIDTH = 131_072
_CPU_CODED_WIDTH = 32_768  # to read integers takes temporaries, which must stay in the cache
_CPU_LONG_ROWS = 8
_GPU_BLOCK = 16 * 1_048_576

# Σ ‖c_i w_i‖² divided by ‖Wᵀ c‖² beyond which sums are made in float64: float32 is then off by 6e-6 of the step.
_CANCELLATION = 1e4
# Coefficients beyond this come with rows near the end of float32, and are better not rounded to it.
_LARGEST = 1e30


def gram_row(
    rows: Tensor | Coded, row: Tensor, borders: Sequence[int] | None = None, scratch: "Scratch | None" = None
) -> Tensor:
    """(W v, v·v): the inner products of ``row`` (d,) with every row of ``rows`` (r, d) and with itself, in float64.

    Shape (r + 1,): what a Gram matrix needs to know of a row, in one pass. With ``borders`` (B + 1,) the columns
    belong to B matrices, and the shape is (B, r + 1). v is first rounded as it would be stored.
    """
    if borders is not None:
        return torch.stack([gram_row(rows[:, part], row[part]) for part in column_slices(borders)])
    if isinstance(rows, Coded):
        return gram_row_by_blocks(rows, row, scratch)
    row = row.to(rows.dtype)
    if rows.dtype == torch.float64:
        return torch.cat([torch.mv(rows, row), torch.dot(row, row)[None]])
    return gram_row_by_blocks(rows, row, scratch)


def gram_row_by_blocks(rows: Tensor | Coded, row: Tensor, scratch: "Scratch | None" = None) -> Tensor:
    """`gram_row` for one matrix; a block of rows is widened to float64 at a time, and of v where it must be rounded."""
    scratch = Scratch() if scratch is None else scratch
    if scratch.buffer is None:
        scratch.fit(rows)
    size, columns = rows.shape
    if scratch.whole is not None:  # the window of a small model: its step is the time of calls like these
        products = scratch.whole.new_empty(size + 1)
        piece = (rows.stored(row) if isinstance(rows, Coded) else row).double()
        block = rows.read(scratch.whole) if isinstance(rows, Coded) else scratch.whole.copy_(rows)
        torch.mv(block, piece, out=products[:-1])
        products[-1] = torch.dot(piece, piece)
        return products
    products = torch.zeros(size + 1, dtype=torch.float64, device=rows.device)
    for left in range(0, columns, scratch.width):
        width = min(scratch.width, columns - left)
        piece = row.narrow(0, left, width)
        piece = (rows.stored(piece) if isinstance(rows, Coded) else piece).double()
        for top in range(0, size, scratch.height):
            height = min(scratch.height, size - top)
            source = rows.narrow(0, top, height).narrow(1, left, width)
            block = scratch.buffer.narrow(0, 0, height * width).view(height, width)  # type: ignore[union-attr]
            block = source.read(block) if isinstance(source, Coded) else block.copy_(source)
            products.narrow(0, top, height).addmv_(block, piece)
        products.select(0, size).add_(torch.dot(piece, piece))
    return products


def expand(
    rows: Tensor | Coded,
    coefficients: Tensor,
    gram: Tensor,
    out: Tensor,
    borders: Sequence[int] | None = None,
    *,
    wide: bool = False,
    kept: Tensor | None = None,
) -> Tensor:
    """Wᵀ c into ``out`` (d,), for float64 coefficients c (r,); ``gram`` is W Wᵀ.

    With ``borders`` c is (B, r) and ``gram`` (B, r, r); columns before the first border are left alone. ``wide`` asks
    for sums in float64 whatever the rows are. ``kept`` is κ, float64, shape () or (B,), for rows of integers alone:
    Wᵀ c + κ·out. Where κ is zero, what ``out`` holds does not count, even if it is not finite.
    """
    if borders is not None:
        for index, part in enumerate(column_slices(borders)):
            share = None if kept is None else kept[index]
            expand(rows[:, part], coefficients[index], gram[index], out[part], wide=wide, kept=share)
    elif isinstance(rows, Coded):
        expand_by_blocks(rows, coefficients, out, kept)
    elif rows.dtype == torch.float64:
        torch.mv(rows.t(), coefficients, out=out)
    elif wide or rows.dtype != torch.float32 or rows.device.type != "cpu":
        expand_by_blocks(rows, coefficients, out)
    else:
        # Rows that are nearly collinear come with large coefficients of opposite sign. Then Σ ‖c_i w_i‖² is much larger
        # than ‖Wᵀ c‖², and what float32 takes from the terms shows in the sum. K tells that without the rows.
        terms, whole = coefficients.square() @ gram.diagonal(), coefficients @ (gram @ coefficients)
        terms, whole, largest = torch.stack((terms, whole, coefficients.abs().max())).tolist()
        if terms > _CANCELLATION * whole or largest > _LARGEST:
            expand_by_blocks(rows, coefficients, out)
        else:
            torch.mv(rows.t(), coefficients.float(), out=out)
    return out


def expand_by_blocks(rows: Tensor | Coded, coefficients: Tensor, out: Tensor, kept: Tensor | None = None) -> None:
    scratch = Scratch()
    scratch.fit(rows)
    for left in range(0, rows.shape[1], scratch.width):
        columns = slice(left, left + scratch.width)
        if kept is None:
            piece = torch.zeros_like(out[columns], dtype=torch.float64)
        else:
            piece = out[columns].double().mul_(kept).masked_fill_(kept == 0, 0.0)  # 0·NaN is no zero
        for top in range(0, rows.shape[0], scratch.height):
            source = rows[top : top + scratch.height, columns]
            block = scratch.buffer[: source.numel()].view(source.shape)  # type: ignore[index]
            block = source.read(block) if isinstance(source, Coded) else block.copy_(source)
            piece.addmv_(block.t(), coefficients[top : top + scratch.height])
        out[columns] = piece


def column_slices(borders: Sequence[int]) -> list[slice]:
    """The columns of each matrix."""
    return [slice(left, right) for left, right in itertools.pairwise(borders)]


class Scratch:
    """Room for one widened block. A window keeps its own: to ask for new memory in each step costs as much as a pass.

    Attributes:
        buffer: float64, flat; None before `fit`.
        width: columns of a block.
        height: rows of a block.
        whole: the buffer in the shape of the rows if one block holds them all, else None.
    """

    buffer: Tensor | None = None
    whole: Tensor | None = None
    width = height = 1

    def fit(self, rows: Tensor | Coded) -> None:
        """Make room for blocks of ``rows``."""
        size, columns = rows.shape
        if rows.device.type == "cpu":
            widest = _CPU_CODED_WIDTH if isinstance(rows, Coded) else _CPU_WIDTH
            self.width = max(1, min(columns, widest))
            fewest = _CPU_LONG_ROWS if columns >= widest else _CPU_LONG_ROWS // 2
            self.height = min(size, max(fewest, _CPU_BLOCK // self.width))
        else:
            self.width = max(1, min(columns, max(BLOCK, _GPU_BLOCK // size // BLOCK * BLOCK)))
            self.height = min(size, max(1, _GPU_BLOCK // self.width))
        self.buffer = torch.empty(self.height * self.width, dtype=torch.float64, device=rows.device)
        self.whole = self.buffer.view(size, columns) if self.height * self.width == rows.numel() else None


class TorchBackend:
    """Every verb on any device. None of them waits for the device: what was not taken is masked, not branched on."""

    sees_numbers = False
    """Whether the host may look at a number without waiting for a device."""

    def gather(self, block: Any, *, buffer: str | None = None, beta: float = 0.0, ahead: bool = False) -> None:  # noqa: ANN401
        """row ← g, or with ``buffer`` b: row ← g + β b; with ``ahead`` row ← g + β (g + β b). Writes no state.

        Where a parameter has no gradient, the row is zero and the buffer stays. What becomes of the buffer if the step
        is taken is left in the block: ``carry`` is the whole buffer and its new value, ``pending`` are such pairs for
        single parameters.
        """
        targets, gradients, negated = [], [], []
        for index, (group, parameter) in enumerate(block.allotted):
            gradient = parameter.grad
            if gradient is None:
                continue
            if not block.all_here:
                gradient = block.columns.gradient(parameter, block.pieces[index])
            targets.append(block.row_views[index])
            gradients.append(gradient)
            if group["maximize"]:
                negated.append(targets[-1])
        block.complete, block.active = len(targets) == len(block.allotted), None
        if not block.complete:
            block.note_missing()
        if not block.complete or block.lends_row:  # a row that was lent has no zeros between parameters, either
            block.row.zero_()
        torch._foreach_copy_(targets, gradients)
        if negated:
            torch._foreach_neg_(negated)
        block.carry, block.pending = None, []
        if buffer is not None and block.complete and not ahead:
            block.carry = block.buffers[buffer][0], block.row.add_(block.buffers[buffer][0], alpha=beta)
        elif buffer is not None:
            _add_buffer(block, targets, buffer, beta, ahead)

    measure = staticmethod(gram_row)
    expand = staticmethod(expand)
    descend: Any = None
    """Wᵀ c and the parameters in one pass, where a backend can: function(block, c, taken) → whether it did."""

    def push(
        self,
        window: Any,  # noqa: ANN401 - a Window, which stands above
        row: Tensor,
        sums: Tensor,
        betas: tuple[float, float],
        accept: Tensor | None,
        carry: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Age every row, write ``row`` over the oldest, and copy what is carried; see `Window.push`."""
        square, products = sums[..., -1], sums[..., :-1]
        taken = (window.count > 0) | (square > 0)
        if accept is not None:
            taken = taken & accept
        newest = (window.slots == window.position[..., None]) & taken[..., None]
        for index, part in window.parts:
            columns = slice(None) if index is None else slice(*window.borders[index : index + 2])
            own = taken if index is None else taken[index]
            _replace_row(part.rows, part.position, row[columns], own)
            if carry is not None:
                target, source = carry[0][columns], carry[1][columns]
                torch.where(own, source, target, out=target)
        entries = torch.where(newest, square[..., None], products)
        gram = torch.where(newest[..., :, None], entries[..., None, :], window.gram)
        window.gram.copy_(torch.where(newest[..., None, :], entries[..., :, None], gram))
        for weights, beta in ((window.decay, betas[1]), (window.momentum, betas[0])):
            weights.copy_(torch.where(newest, 1.0, torch.where(taken[..., None], beta * weights, weights)))
        window.position.add_(taken).remainder_(window.size)
        window.count.add_(taken).clamp_(max=window.size)
        return newest.to(torch.float64)  # type: ignore[no-any-return]

    def commit(self, pairs: Sequence[tuple[Tensor, Tensor]], taken: Tensor) -> None:
        """Copy the second of each pair to the first, where ``taken``."""
        for target, source in pairs:
            torch.where(taken, source, target, out=target)

    def coefficients(
        self,
        window: Any,  # noqa: ANN401 - a Window, which stands above
        rhs: Tensor,
        *,
        eps: float,
        jitter: float,
        solver: str,
        tolerance: float,
        shrinkage: float | str = 0.0,
        shift: float = 0.0,
    ) -> Tensor:
        """c = [(M + δI)^½ + εI]⁻¹ a for the window's M; "auto" is eigh on a CPU, and cholesky where eigh would wait.

        ``shift`` is added to the diagonal of M first.
        """
        if solver == "auto":
            solver = "eigh" if self.sees_numbers or jitter == 0 else "cholesky"
        moment: Tensor = window.moment()
        if shrinkage != 0:
            moment = shrunk(moment, noise_share(window.gram) if isinstance(shrinkage, str) else shrinkage)
        if shift != 0:
            moment.diagonal(dim1=-2, dim2=-1).add_(shift)
        return solvers.solve(moment, rhs, eps=eps, jitter=jitter, solver=solver, tolerance=tolerance)


class HostBackend(TorchBackend):
    """On a CPU the host may look: a row that is not taken costs nothing, and one that is taken needs no mask."""

    sees_numbers = True

    def push(
        self,
        window: Any,  # noqa: ANN401 - a Window, which stands above
        row: Tensor,
        sums: Tensor,
        betas: tuple[float, float],
        accept: Tensor | None,
        carry: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Age every row, write ``row`` over the oldest, and copy what is carried; see `Window.push`."""
        newest = torch.zeros_like(window.decay)
        for index, part in window.parts:
            own, columns = (sums, None) if index is None else (sums[index], slice(*window.borders[index : index + 2]))
            accepted = accept is None or bool(accept[index] if accept.dim() else accept)
            filled = int(part.count)
            square = own[-1]
            if not accepted or not (filled > 0 or float(square) > 0):
                continue
            slot = int(part.position)
            own_row = row if columns is None else row[columns]
            if isinstance(part.rows, Tensor):
                part.rows[slot].copy_(own_row)
            else:
                part.rows.write(slot, own_row)
            if carry is not None:
                target, source = carry if columns is None else (carry[0][columns], carry[1][columns])
                target.copy_(source)
            entries = own[:-1]  # the sums have served their purpose
            entries[slot] = square
            part.gram.select(0, slot).copy_(entries)
            part.gram.select(1, slot).copy_(entries)
            for weights, beta in ((part.decay, betas[1]), (part.momentum, betas[0])):
                if beta != 1:
                    weights.mul_(beta)
                weights.select(0, slot).fill_(1.0)
            part.position.fill_((slot + 1) % window.size)
            if filled < window.size:
                part.count.add_(1)
            (newest if index is None else newest[index]).select(0, slot).fill_(1.0)
        return newest


def _add_buffer(block: Any, rows: list[Tensor], buffer: str, beta: float, ahead: bool) -> None:  # noqa: ANN401 - a Block
    """v = g + β b for rows g, in place, or g + β v with ``ahead``; v is what becomes of the buffer."""
    flat, views = block.buffers[buffer]
    buffers = (
        [flat] if block.complete else [v for v, (_, p) in zip(views, block.allotted, strict=True) if p.grad is not None]
    )
    rows = [block.row] if block.complete else rows  # one flat operation serves for all
    updated = rows
    if ahead:
        updated = list(torch._foreach_add(rows, buffers, alpha=beta))
    torch._foreach_add_(rows, updated if ahead else buffers, alpha=beta)
    if block.complete:
        block.carry = flat, updated[0]
    else:
        block.pending = list(zip(buffers, updated, strict=True))


def _replace_row(rows: Tensor | Coded, slot: Tensor, row: Tensor, taken: Tensor) -> None:
    if isinstance(rows, Coded):
        codes, scales = rows.format.encode(row)
        _replace_row(rows.codes, slot, codes, taken)
        _replace_row(rows.scales, slot, scales, taken)
        return
    slot = slot[None]
    kept = rows.index_select(0, slot).squeeze(0)
    rows.index_copy_(0, slot, torch.where(taken, row.to(rows.dtype), kept, out=kept)[None])
