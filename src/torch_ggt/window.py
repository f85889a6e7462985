"""The ring of recent gradients, its Gram, and its age weights: everything GGT remembers of its full matrices.

Symbols, as in the paper: rows w_i of W (r × d), as stored; K = W Wᵀ; D the diagonal of decay weights β₂^age; G = Wᵀ D
(d × r); M = GᵀG = D K D. W is never rescaled, and each entry of K is computed once, when the younger of its two rows
comes in: nothing drifts.

A window may hold several full matrices, each over columns of its own: then everything but the rows has a leading
dimension, one entry per matrix, and all of them are served together.
"""

import copy
import itertools
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from torch_ggt import inverse_root, products
from torch_ggt.kernels import gpu_kernels
from torch_ggt.sharding import Local, Sharding, reduce_together

__all__ = ["GramRow", "Window", "mend_gram"]


class GramRow(NamedTuple):
    """What a row not yet in the window measures against it; float64."""

    sums: Tensor
    """(W v, v·v), shape (..., r + 1)."""

    @property
    def products(self) -> Tensor:
        """W v, shape (..., r): inner products with the rows that are there."""
        return self.sums[..., :-1]

    @property
    def square(self) -> Tensor:
        """v·v, shape (...)."""
        return self.sums[..., -1]


class Window:
    """The last r rows, the oldest overwritten first.

    Args:
        size: r.
        columns: d.
        borders: for several full matrices: the first column of each, and d; length B + 1. All shapes below then have B
            where they have "...". None: one matrix, and nothing where they have "...".
        dtype: of the stored rows: float32, bfloat16 or float64.
        device: where all of it lives.
        sharding: sums over columns that are elsewhere, too.
        replicas: (columns, n) for runs of neighbouring columns that are held by n processes each, of which this one
            is one; with ``borders`` one run per matrix. None: all columns are held here alone.

    Attributes:
        rows: W, shape (r, d). The Gram is that of the rows *as stored*, rounding included.
        gram: K = W Wᵀ, shape (..., r, r), float64.
        decay: β₂ once per step of age, shape (..., r), float64; 0 for rows not yet written. Kept as state, so that
            betas may change at every step.
        momentum: the same for β₁.
        position: the slot that is written next, int64, shape (...). Position and count are tensors so that a step
            needs no synchronization with the host.
        count: how many rows are filled, int64, shape (...).

    Example:
        >>> window = Window(3, 2, dtype=torch.float64)
        >>> row = torch.tensor([3.0, 4.0], dtype=torch.float64)
        >>> window.push(row, window.measure(row), betas=(0.0, 1.0))
        tensor([1., 0., 0.], dtype=torch.float64)
        >>> window.moment()[0, 0]
        tensor(25., dtype=torch.float64)
    """

    def __init__(
        self,
        size: int,
        columns: int,
        *,
        borders: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        sharding: Sharding | None = None,
        replicas: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        batch = () if borders is None else (len(borders) - 1,)
        self.borders = None if borders is None else tuple(borders)
        self.rows = torch.zeros(size, columns, dtype=dtype, device=device)
        self.gram = torch.zeros(*batch, size, size, dtype=torch.float64, device=device)
        self.decay = torch.zeros(*batch, size, dtype=torch.float64, device=device)
        self.momentum = torch.zeros(*batch, size, dtype=torch.float64, device=device)
        self.position = torch.zeros(batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(batch, dtype=torch.int64, device=device)
        self.sharding = sharding or Local()
        self._slots = torch.arange(size, device=device)
        self._runs = self.borders
        self._shares: Tensor | None = None
        if replicas is not None and any(n != 1 for _, n in replicas):
            if borders is None:  # neighbours alike are one run
                alike = itertools.groupby(replicas, lambda run: run[1])
                replicas = [(sum(length for length, _ in runs), n) for n, runs in alike]
            self._runs = (0, *itertools.accumulate(length for length, _ in replicas))
            self._shares = torch.tensor([[1 / n] for _, n in replicas], dtype=torch.float64, device=device)

    @property
    def size(self) -> int:
        """r, the number of rows."""
        return self.rows.shape[0]

    def measure(self, row: Tensor) -> GramRow:
        """The Gram row of a vector that may come in; reads the window once and writes nothing."""
        return GramRow(self.sharding.all_reduce(self.partial(row)))

    def partial(self, row: Tensor) -> Tensor:
        """What the columns that are here add to a Gram row, (..., r + 1): summed over all shards it is `measure`."""
        return self._sums(self.rows, row)

    def push(
        self,
        row: Tensor,
        gram_row: GramRow,
        *,
        betas: tuple[float, float],
        accept: Tensor | None = None,
        carry: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Age every row by one step and write ``row`` over the oldest.

        Args:
            row: v, shape (d,).
            gram_row: what `measure` returned for it.
            betas: (β₁, β₂) of this step.
            accept: bool, shape () or (...): where False nothing changes. A zero row into an empty window is never
                taken: it would be the same mathematically, and without it a dry-run step leaves no trace.
            carry: (target, source), both (d,): source is copied to target in the columns where a row was taken.

        Returns:
            e_newest, shape (..., r), float64: one at the slot just written, all zeros if the row was not taken.
        """
        kernels = self._kernels()
        if kernels is not None:
            return self._push_by_kernels(kernels, row, gram_row, betas, accept, carry)
        beta1, beta2 = betas
        taken = (self.count > 0) | (gram_row.square > 0)
        if accept is not None:
            taken = taken & accept
        newest = (self._slots == self.position[..., None]) & taken[..., None]

        for index, columns in self._matrices():
            _replace_row(self.rows[:, columns], self.position[index], row[columns], taken[index])
            if carry is not None:
                target, source = carry[0][columns], carry[1][columns]
                torch.where(taken[index], source, target, out=target)
        entries = torch.where(newest, gram_row.square[..., None], gram_row.products)
        gram = torch.where(newest[..., :, None], entries[..., None, :], self.gram)
        self.gram.copy_(torch.where(newest[..., None, :], entries[..., :, None], gram))
        for weights, beta in ((self.decay, beta2), (self.momentum, beta1)):
            weights.copy_(torch.where(newest, 1.0, torch.where(taken[..., None], beta * weights, weights)))
        self.position.add_(taken).remainder_(self.size)
        self.count.add_(taken).clamp_(max=self.size)
        return newest.double()

    def moment(self) -> Tensor:
        """M = D K D, shape (..., r, r), float64."""
        return self.decay[..., :, None] * self.gram * self.decay[..., None, :]

    def momentum_coefficients(self) -> Tensor:
        """The a for which G a = Σ β₁^age w_i: momentum, truncated to the window."""
        return torch.where(self.decay > 0, self.momentum / self.decay, 0.0)

    def coefficients(self, rhs: Tensor, *, eps: float, jitter: float, solver: str, tolerance: float) -> Tensor:
        """c = [(M + δI)^½ + εI]⁻¹ a, shape (..., r); see `inverse_root.coefficients`.

        ``solver="auto"`` is eigh on a CPU and for jitter = 0, cholesky elsewhere: nothing that waits for the device.
        """
        if solver == "auto":
            solver = "eigh" if rhs.device.type == "cpu" or jitter == 0 else "cholesky"
        kernels = self._kernels()
        if solver == "cholesky" and kernels is not None:
            r = self.size
            by_kernel: Tensor = kernels.coefficients(
                self.gram.view(-1, r, r),
                self.decay.view(-1, r),
                rhs.reshape(-1, r),
                eps=eps,
                jitter=jitter,
                tolerance=tolerance,
            )
            return by_kernel.view(rhs.shape)
        return inverse_root.coefficients(self.moment(), rhs, eps=eps, jitter=jitter, solver=solver, tolerance=tolerance)

    def expand(self, coefficients: Tensor, out: Tensor) -> Tensor:
        """G c = Wᵀ D c into ``out`` (d,), for float64 coefficients c (..., r)."""
        return products.expand(self.rows, self.decay * coefficients, self.gram, out, self.borders)

    def singular_values(self) -> Tensor:
        """The singular values of G, descending, shape (..., r), float64."""
        eigenvalues: Tensor = torch.linalg.eigvalsh(self.moment())
        return eigenvalues.flip(-1).clamp_min(0).sqrt()

    def matrices(self) -> "list[Window]":
        """Each of its full matrices as a window of its own: views, which see what this one does."""
        if self.borders is None:
            return [self]
        parts = []
        for (index,), columns in self._matrices():
            part = copy.copy(self)
            part.borders = None
            part._runs = None if self._shares is None else (0, columns.stop - columns.start)
            part._shares = None if self._shares is None else self._shares[index : index + 1]
            part.rows = self.rows[:, columns]
            for name in ("gram", "decay", "momentum", "position", "count"):
                setattr(part, name, getattr(self, name)[index])
            parts.append(part)
        return parts

    def reset(self) -> None:
        """Forget every row, in place: the hard window of the paper's theory."""
        for tensor in (self.rows, self.gram, self.decay, self.momentum, self.position, self.count):
            tensor.zero_()

    def _sums(self, rows: Tensor, row: Tensor) -> Tensor:
        sums = products.gram_row(rows, row, self._runs)
        if self._shares is None:
            return sums
        sums = sums * self._shares
        return sums if self.borders is not None else sums.sum(0)

    def runs(self) -> list[tuple[slice, float]]:
        """Columns, and the weight of their sums: 1/n where n processes hold them, and all of them add theirs."""
        if self._shares is None or self._runs is None:
            return [(slice(0, self.rows.shape[1]), 1.0)]
        return list(zip(products.column_slices(self._runs), self._shares[:, 0].tolist(), strict=True))

    def squares(self) -> Tensor:
        """What the columns that are here add to the diagonal of K, (..., r)."""
        return torch.stack([self._sums(row[None], row)[..., -1] for row in self.rows], -1)

    def _matrices(self) -> list[tuple[tuple[int, ...], slice]]:
        """The index of each matrix into the small state, and its columns."""
        if self.borders is None:
            return [((), slice(None))]
        return [((b,), columns) for b, columns in enumerate(products.column_slices(self.borders))]

    def _kernels(self) -> ModuleType | None:
        # A compiler fuses the plain version by itself, and cannot look into ours.
        return None if torch.compiler.is_compiling() else gpu_kernels(self.rows.device)

    def _push_by_kernels(
        self,
        kernels: ModuleType,
        row: Tensor,
        gram_row: GramRow,
        betas: tuple[float, float],
        accept: Tensor | None,
        carry: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        accept = torch.ones((), dtype=torch.bool, device=row.device) if accept is None else accept
        state = (self.gram, self.decay, self.momentum, self.position, self.count)
        newest, slots = kernels.admit(gram_row.sums.view(-1, self.size + 1), accept, state, betas)
        kernels.write(self.rows, row, slots, products.spans_of(self.rows, self.borders), carry)
        result: Tensor = newest.view(self.decay.shape)
        return result


def mend_gram(windows: Sequence[Window]) -> bool:
    """Recompute K where it is not the Gram of the rows, as when part of a state was lost; else leave its bits.

    Args:
        windows: the shards of one window, one per device.

    Returns:
        whether it had to.
    """
    first = windows[0]
    ((found, *_),) = reduce_together(first.sharding, [[window.squares() for window in windows]])
    if torch.allclose(found, first.gram.diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=0.0):
        return False
    partials = [[window.partial(window.rows[i])[..., :-1] for window in windows] for i in range(first.size)]
    for i, sums in enumerate(reduce_together(first.sharding, partials)):
        for window, products_of_row in zip(windows, sums, strict=True):
            window.gram[..., i, :].copy_(products_of_row)
    return True


def _replace_row(rows: Tensor, slot: Tensor, row: Tensor, taken: Tensor) -> None:
    slot = slot[None]
    kept = rows.index_select(0, slot).squeeze(0)
    rows.index_copy_(0, slot, torch.where(taken, row.to(rows.dtype), kept, out=kept)[None])
