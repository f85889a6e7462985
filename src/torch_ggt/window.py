"""The ring of recent rows, its Gram matrix, and its age weights: all that a full matrix remembers.

Symbols, as in the paper: rows w_i of W (r × d), as stored; K = W Wᵀ; D the diagonal of decay weights β₂^age; G = Wᵀ D
(d × r); M = GᵀG = D K D. W is never rescaled, and each entry of K is computed once, when the younger of its two rows
comes in: nothing drifts.

A window may hold several full matrices, each over columns of its own. Then everything but the rows has a leading
dimension, one entry for each matrix, and one call serves them all.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_ggt import backends
from torch_ggt.backends.host_rows import HostRows, HostRowsBackend
from torch_ggt.backends.plain import Scratch, TorchBackend, column_slices
from torch_ggt.formats import Coded, format_of

__all__ = ["GramRow", "Window"]


class GramRow(NamedTuple):
    """What a row not yet in the window measures against it: (W v, v·v), float64, shape (..., r + 1)."""

    sums: Tensor

    @property
    def products(self) -> Tensor:
        """W v, shape (..., r): inner products with the rows that are there."""
        return self.sums[..., :-1]

    @property
    def square(self) -> Tensor:
        """v·v, shape (...)."""
        return self.sums[..., -1]


@dataclass(frozen=True, slots=True)
class Part:
    """What a window holds of one matrix: views."""

    rows: Tensor | Coded | HostRows
    gram: Tensor
    decay: Tensor
    momentum: Tensor
    position: Tensor
    count: Tensor


class Window:
    """The last r rows; a new row overwrites the oldest.

    Args:
        size: r.
        columns: d.
        borders: for several full matrices: the first column of each, and d; length B + 1. All shapes below then have B
            where they have "...". None: one matrix, and nothing where they have "...".
        dtype: how rows are stored: a dtype, or the name of a format (`formats.FORMATS`).
        device: where all of it lives; but rows of a format "…@host" are in host memory.
        backend: what carries out the two passes; None: the one for ``device``.

    Attributes:
        rows: W, shape (r, d): a tensor, integers with scales, or one of these in host memory. The Gram matrix belongs
            to the rows *as stored*, rounding included.
        store: the tensor, or the integers with scales, wherever they are.
        gram: K = W Wᵀ, shape (..., r, r), float64.
        decay, momentum: β₂ and β₁, once for each step of age, shape (..., r), float64; 0 for rows not yet written. They
            are state, so that betas may change at every step.
        position, count: the slot that is written next, and how many rows are filled, int64, shape (...). They are
            tensors, so that a step does not have to wait for a device.

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
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        backend: TorchBackend | None = None,
    ) -> None:
        batch = () if borders is None else (len(borders) - 1,)
        self.format = format_of(dtype)
        if backend is None:
            backend = backends.choose(torch.device(device))
        self.backend = HostRowsBackend(backend) if self.format.host else backend
        self.borders = None if borders is None else tuple(borders)
        if self.format.host:
            self.rows: Any = HostRows.allocate(self.format, size, columns, torch.device(device))
            self.store = self.rows.store
        else:
            self.store = self.rows = self.format.allocate(size, columns, device)
        self.gram = torch.zeros(*batch, size, size, dtype=torch.float64, device=device)
        self.decay = torch.zeros(*batch, size, dtype=torch.float64, device=device)
        self.momentum = torch.zeros(*batch, size, dtype=torch.float64, device=device)
        self.position = torch.zeros(batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(batch, dtype=torch.int64, device=device)
        self.slots = torch.arange(size, device=device)
        self.scratch = Scratch()
        self.runs = self.borders  #: Borders of the runs of columns whose sums are weighed alike; None means one run.
        self.weights: Tensor | None = None
        self.size = size
        self._find_parts()

    def _find_parts(self) -> None:
        """Set ``parts``: for each matrix its index into the small state (None: there is one), and views of its own."""
        rows, *small = (getattr(self, name) for name in Part.__slots__)
        self.parts: list[tuple[int | None, Part]] = [(None, Part(rows, *small))]
        if self.borders is not None:
            self.parts = [
                (index, Part(rows[:, columns], *(tensor[index] for tensor in small)))
                for index, columns in enumerate(column_slices(self.borders))
            ]

    def weigh(self, runs: Sequence[tuple[int, float]]) -> None:
        """Multiply the sums over some columns by a weight: of columns that n processes hold, each adds 1/n.

        ``runs`` are (columns, weight) for runs of neighbouring columns; with ``borders`` one or more for each matrix.
        """
        if all(weight == 1 for _, weight in runs):
            self.runs, self.weights = self.borders, None
            return
        ends = list(itertools.accumulate(length for length, _ in runs))
        kept = [  # neighbours of one matrix that are weighed alike are one run
            (end, weight)
            for index, (end, (_, weight)) in enumerate(zip(ends, runs, strict=True))
            if index + 1 == len(runs) or runs[index + 1][1] != weight or end in (self.borders or ())
        ]
        self.runs = (0, *(end for end, _ in kept))
        self.weights = torch.tensor([[weight] for _, weight in kept], dtype=torch.float64, device=self.rows.device)
        owners = [sum(border < end for border in (self.borders or (0,))) - 1 for end, _ in kept]
        self._owners = torch.tensor(owners, device=self.rows.device)

    def measure(self, row: Tensor) -> GramRow:
        """The Gram row of a vector that may come in; reads the window once and writes nothing."""
        sums = self.backend.measure(self.rows, row, self.runs, self.scratch)
        return GramRow(sums if self.weights is None else self._weighed(sums))  # a call less in most steps

    def products(self, vector: Tensor) -> Tensor:
        """W p, shape (..., r), for a vector p that is not to be stored.

        `measure` rounds p as it would be stored. So what rounding has cut off is measured as well.
        """
        found = self.measure(vector).products
        if self.format.coded or self.format.dtype.itemsize < 4:
            found = found + self.measure(vector - self._as_stored(vector)).products
        return found

    def _as_stored(self, vector: Tensor) -> Tensor:
        """A vector after the rounding of `measure`."""
        one = vector.to(self.format.dtype) if isinstance(self.rows, Tensor) else self.rows.stored(vector)
        return one.to(vector.dtype)

    def row(self, slot: int) -> Tensor:
        """A stored row (d,) as numbers."""
        one = self.rows[slot : slot + 1]
        return (one if isinstance(one, Tensor) else one.numbers())[0]

    def squares(self) -> Tensor:
        """What the columns that are here add to the diagonal of K, (..., r)."""
        sums = []
        for slot in range(self.size):
            one = self.backend.measure(self.rows[slot : slot + 1], self.row(slot), self.runs)
            sums.append(self._weighed(one))
        return torch.stack([own[..., -1] for own in sums], -1)

    def _weighed(self, sums: Tensor) -> Tensor:
        if self.weights is None:
            return sums
        sums = sums * self.weights
        if self.borders is None:
            return sums.sum(0)
        if sums.shape[0] == len(self.borders) - 1:
            return sums
        return sums.new_zeros(len(self.borders) - 1, sums.shape[1]).index_add_(0, self._owners, sums)

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
                taken: it would change nothing in the mathematics, and without it a dry-run step leaves no trace.
            carry: (target, source), both (d,): source is copied to target in the columns where a row was taken.

        Returns:
            e_newest, shape (..., r), float64: one at the slot just written, all zeros if the row was not taken.
        """
        return self.backend.push(self, row, gram_row.sums, betas, accept, carry)

    def moment(self) -> Tensor:
        """M = D K D, shape (..., r, r), float64."""
        return (self.decay.unsqueeze(-1) * self.gram).mul_(self.decay.unsqueeze(-2))

    def squared_norm(self, coefficients: Tensor) -> Tensor:
        """‖G c‖² = cᵀ M c, shape (...), for c (..., r): it needs no pass over the rows."""
        return (self.moment() @ coefficients[..., None]).squeeze(-1).mul_(coefficients).sum(-1)

    def momentum_coefficients(self) -> Tensor:
        """The a for which G a = Σ β₁^age w_i: momentum, truncated to the window."""
        return torch.where(self.decay > 0, self.momentum / self.decay, 0.0)

    def expand(self, coefficients: Tensor, out: Tensor) -> Tensor:
        """G c = Wᵀ D c into ``out`` (d,), for float64 coefficients c (..., r)."""
        return self.backend.expand(self.rows, self.decay * coefficients, self.gram, out, self.borders)

    def shorten(self, step: Tensor, longest: Tensor, total: Callable[[Tensor], Tensor]) -> None:
        """Scale the flat ``step`` of each matrix, in place, so that it is no longer than ``longest`` (...).

        ``total`` sums over all ranks that hold columns.
        """
        squares = total(self._weighed(self.backend.measure(step[None], step, self.runs)))[..., -1]
        factors = (longest / squares.sqrt()).nan_to_num_(1.0).clamp_(max=1.0)
        pieces = [step] if self.borders is None else [step[part] for part in column_slices(self.borders)]
        torch._foreach_mul_(pieces, factors.reshape(-1).unbind())

    def keep_whole_row(self, coefficients: Tensor, newest: Tensor) -> tuple[Tensor, Tensor]:
        """(c - κ e_newest, κ): with κ v they make the step G c + κ (v - w), where w is v as stored.

        κ = (G c)·w/(w·w) is the share of the newest row in G c. So what rounding has cut off from v is in the step: a
        coordinate that is too small for its block still moves. The step becomes longer by at most ‖v - w‖/‖w‖.

        Args:
            coefficients: c, shape (..., r).
            newest: e_newest, shape (..., r), all zeros where no row was taken. There κ is zero.

        Returns:
            Float64, shapes (..., r) and (...).
        """
        moment = self.moment()
        product = ((moment @ coefficients[..., None]).squeeze(-1) * newest).sum(-1)
        square = (moment.diagonal(dim1=-2, dim2=-1) * newest).sum(-1)
        share = torch.where(square > 0, product / square, 0.0)
        return coefficients - share[..., None] * newest, share

    def singular_values(self) -> Tensor:
        """The singular values of G, descending, shape (..., r), float64."""
        eigenvalues: Tensor = torch.linalg.eigvalsh(self.moment())
        return eigenvalues.flip(-1).clamp_min(0).sqrt()

    def matrices(self) -> "list[Window]":
        """Each of its full matrices as a window of its own: views, which see what this one does."""
        if self.borders is None:
            return [self]
        parts = []
        for columns, (_, own) in zip(column_slices(self.borders), self.parts, strict=True):
            part = copy.copy(self)
            part.borders, part.runs, part.weights, part.scratch = None, None, None, Scratch()
            vars(part).update({name: getattr(own, name) for name in Part.__slots__})
            part._find_parts()
            if self.weights is not None:
                part.weigh([(run.stop - run.start, weight) for run, weight in self.weighed_runs(columns)])
            parts.append(part)
        return parts

    def weighed_runs(self, columns: slice = slice(None)) -> list[tuple[slice, float]]:
        """Runs of columns inside ``columns``, and the weight of their sums."""
        left, right, _ = columns.indices(self.rows.shape[1])
        if self.weights is None or self.runs is None:
            return [(slice(left, right), 1.0)]
        runs = zip(column_slices(self.runs), self.weights[:, 0].tolist(), strict=True)
        return [(run, weight) for run, weight in runs if left <= run.start and run.stop <= right]
