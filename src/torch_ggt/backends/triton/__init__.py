"""The verbs of a step in Triton, for NVIDIA GPUs. `backends.plain` is their specification.

Gradients in and parameters out are one launch each where all tensors of a model are as they mostly are: of one dtype,
contiguous, and each with a gradient. Where they are not, plain torch gathers and applies.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from torch_ggt.backends.plain import Scratch, TorchBackend
from torch_ggt.backends.triton import coded, noise, passes, ring, root, tensors
from torch_ggt.backends.triton.spans import Spans
from torch_ggt.formats import Coded

__all__ = ["TritonBackend", "check"]


def check(device: torch.device) -> None:
    """Raise whatever goes wrong when a kernel is built and run: no C compiler, a driver that is too old."""
    with torch.no_grad():
        passes.gram_row(torch.ones(1, 1, device=device), torch.ones(1, device=device), Spans([0, 1], 1, device))


class TritonBackend(TorchBackend):
    """Every verb as one or two launches. None of them waits for the device."""

    def gather(self, block: Any, *, buffer: str | None = None, beta: float = 0.0, ahead: bool = False) -> None:  # noqa: ANN401
        """As `TorchBackend.gather`; in one launch where the gradients can be read by a table of addresses."""
        table = self.table(block, "gradients", block.gradients())
        negate = {group["maximize"] for group, _, _ in block.runs}
        if table is None or len(negate) > 1:
            super().gather(block, buffer=buffer, beta=beta, ahead=ahead)
            return
        block.complete, block.active = True, None
        momentum = None if buffer is None else block.buffers[buffer][0]
        updated = torch.empty_like(block.row) if ahead and momentum is not None else None
        spans = spans_of(block.window.rows, block.borders)
        tensors.gather(table, spans, block.row, momentum=momentum, beta=beta, updated=updated, negate=negate.pop())
        block.carry = None if momentum is None else (momentum, block.row if updated is None else updated)
        block.pending = []

    @staticmethod
    def measure(
        rows: Tensor | Coded, row: Tensor, borders: Sequence[int] | None = None, scratch: Scratch | None = None
    ) -> Tensor:
        """As `plain.gram_row`."""
        spans = spans_of(rows, borders)
        sums = coded.gram_row(rows, row, spans) if isinstance(rows, Coded) else passes.gram_row(rows, row, spans)
        return sums[0] if borders is None else sums

    def push(
        self, window: Any, row: Tensor, sums: Tensor, betas: tuple[float, float],  # noqa: ANN401 - a Window
        accept: Tensor | None, carry: tuple[Tensor, Tensor] | None,
    ) -> Tensor:  # fmt: skip
        """As `TorchBackend.push`: one launch for the small state, one for the row."""
        accept = torch.ones((), dtype=torch.bool, device=row.device) if accept is None else accept
        state = (window.gram, window.decay, window.momentum, window.position, window.count)
        newest, slots = ring.admit(sums.view(-1, window.size + 1), accept, state, betas)
        write = coded.write if isinstance(window.rows, Coded) else ring.write
        write(window.rows, row, slots, spans_of(window.rows, window.borders), carry)
        return newest.view(window.decay.shape)

    def coefficients(self, window: Any, rhs: Tensor, **how: Any) -> Tensor:  # noqa: ANN401 - a Window
        """As `TorchBackend.coefficients`; the shifted solves are one launch, and so is the noise in the window."""
        if how["solver"] == "eigh" or how["jitter"] == 0:
            return super().coefficients(window, rhs, **how)
        r = window.size
        grams, decays = window.gram.view(-1, r, r), window.decay.view(-1, r)
        share = how.get("shrinkage", 0.0)
        found = root.coefficients(
            grams, decays, rhs.reshape(-1, r), eps=how["eps"], jitter=how["jitter"], tolerance=how["tolerance"],
            share=noise.noise_share(grams) if isinstance(share, str) else share, shift=how.get("shift", 0.0),
        )  # fmt: skip
        return found.view(rhs.shape)

    @staticmethod
    def expand(
        rows: Tensor | Coded,
        coefficients: Tensor,
        gram: Tensor,
        out: Tensor,
        borders: Sequence[int] | None = None,
        *,
        wide: bool = True,
        kept: Tensor | None = None,
    ) -> Tensor:
        """As `plain.expand`; all sums are in float64."""
        c, spans = coefficients.view(-1, rows.shape[0]), spans_of(rows, borders)
        if isinstance(rows, Coded):
            return coded.expand(rows, c, spans, out, kept=kept)
        return passes.expand(rows, c, spans, out)

    def descend(self, block: Any, coefficients: Tensor, taken: Tensor) -> bool:  # noqa: ANN401 - a Block
        """p ← (1 - lr·weight_decay) p - lr·u, or g ← u, in the pass that makes u; False if that cannot be.

        u is G c, and for rows of integers G c + κ v.
        """
        if not block.complete:
            return False
        kind, targets = block.targets()
        table = self.table(block, kind, targets)
        if table is None:
            return False
        window, replace = block.window, kind == "gradients"
        weights, spans = (window.decay * coefficients).view(-1, window.size), spans_of(window.rows, block.borders)
        kept = None if block.kept is None else (block.kept, block.row)
        # A gradient is replaced with the same numbers in every group, so that one launch serves them all.
        for group, first, last in [(None, 0, len(targets))] if replace else block.runs:
            lr, weight_decay = (0.0, 0.0) if group is None else (group["lr"], group["weight_decay"])
            tensors.update(
                window.rows, weights, table, spans, (first, last), matrix_of=block.matrix_of,
                lr=lr.reshape(()).to(block.row.device) if isinstance(lr, Tensor) else lr,
                weight_decay=weight_decay, taken=taken, replace=replace, kept=kept,
            )  # fmt: skip
        increment_version(targets)  # autograd has not seen them change
        return True

    def table(self, block: Any, kind: str, found: Sequence[Tensor | None]) -> tensors.Addresses | None:  # noqa: ANN401
        """The addresses of all gradients or of all parameters, on the device; None if there can be no table."""
        if block.row.dtype != torch.float32 or any(tensor is None for tensor in found):
            return None
        if kind not in block.addresses:
            block.addresses[kind] = tensors.Addresses(block.numels, block.row.device)
        table: tensors.Addresses = block.addresses[kind]
        return table if table.hold(found) else None  # type: ignore[arg-type]


def spans_of(rows: Tensor | Coded, borders: Sequence[int] | None) -> Spans:
    """The pieces in which a GPU takes the columns; made once for every shape."""
    whole = (0, rows.shape[1]) if borders is None else tuple(borders)
    return _spans(whole, rows.shape[0], rows.device)


@functools.cache  # never dropped: a CUDA graph may hold its address
def _spans(borders: tuple[int, ...], rows: int, device: torch.device) -> Spans:
    return Spans(borders, rows, device)
