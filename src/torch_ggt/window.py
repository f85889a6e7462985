"""The ring of recent gradients, its Gram, and its age weights: everything GGT remembers of one full matrix.

Symbols, as in the paper: rows w_i of W (r × d), as stored; K = W Wᵀ; D the diagonal of decay weights β₂^age; G = Wᵀ D
(d × r); M = GᵀG = D K D. W is never rescaled, and each entry of K is computed once, when the younger of its two rows
comes in: nothing drifts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torch_ggt import products
from torch_ggt.sharding import Local, Sharding

__all__ = ["GramRow", "Window"]


class GramRow(NamedTuple):
    """What a row not yet in the window measures against it; float64."""

    products: Tensor
    """W v, shape (r,): inner products with the rows that are there."""
    square: Tensor
    """v·v, shape ()."""


class Window:
    """The last r rows, the oldest overwritten first.

    Args:
        size: r.
        columns: d.
        dtype: of the stored rows: float32, bfloat16 or float64.
        device: where all of it lives.
        sharding: sums over columns that are elsewhere, too.

    Attributes:
        rows: W, shape (r, d). The Gram is that of the rows *as stored*, rounding included.
        gram: K = W Wᵀ, shape (r, r), float64.
        decay: β₂ once per step of age, shape (r,), float64; 0 for rows not yet written. Kept as state, so that betas
            may change at every step.
        momentum: the same for β₁.
        position: the slot that is written next, int64. Position and count are tensors so that a step needs no
            synchronization with the host.
        count: how many rows are filled, int64.

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
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        sharding: Sharding | None = None,
    ) -> None:
        self.rows = torch.zeros(size, columns, dtype=dtype, device=device)
        self.gram = torch.zeros(size, size, dtype=torch.float64, device=device)
        self.decay = torch.zeros(size, dtype=torch.float64, device=device)
        self.momentum = torch.zeros(size, dtype=torch.float64, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.sharding = sharding or Local()
        self._slots = torch.arange(size, device=device)

    @property
    def size(self) -> int:
        """r, the number of rows."""
        return self.rows.shape[0]

    def measure(self, row: Tensor) -> GramRow:
        """The Gram row of a vector that may come in; reads the window once and writes nothing."""
        total = self.sharding.all_reduce(products.gram_row(self.rows, row.to(self.rows.dtype)))
        return GramRow(total[:-1], total[-1])

    def push(
        self, row: Tensor, gram_row: GramRow, *, betas: tuple[float, float], accept: Tensor | None = None
    ) -> Tensor:
        """Age every row by one step and write ``row`` over the oldest.

        Args:
            row: v, shape (d,).
            gram_row: what `measure` returned for it.
            betas: (β₁, β₂) of this step.
            accept: bool, shape (): where False nothing changes. A zero row into an empty window is never taken: it
                would be the same mathematically, and without it a dry-run step leaves no trace.

        Returns:
            e_newest, shape (r,), float64: one at the slot just written, all zeros if the row was not taken.
        """
        beta1, beta2 = betas
        taken = (self.count > 0) | (gram_row.square > 0)
        if accept is not None:
            taken = taken & accept
        slot = self.position[None]
        newest = (self._slots == self.position) & taken

        kept = self.rows.index_select(0, slot).squeeze(0)
        self.rows.index_copy_(0, slot, torch.where(taken, row.to(self.rows.dtype), kept, out=kept)[None])
        entries = torch.where(newest, gram_row.square, gram_row.products)
        gram = torch.where(newest[:, None], entries[None, :], self.gram)
        self.gram.copy_(torch.where(newest[None, :], entries[:, None], gram))
        for weights, beta in ((self.decay, beta2), (self.momentum, beta1)):
            weights.copy_(torch.where(newest, 1.0, torch.where(taken, beta * weights, weights)))
        self.position.add_(taken).remainder_(self.size)
        self.count.add_(taken).clamp_(max=self.size)
        return newest.double()

    def moment(self) -> Tensor:
        """M = D K D, shape (r, r), float64."""
        return self.decay[:, None] * self.gram * self.decay

    def momentum_coefficients(self) -> Tensor:
        """The a for which G a = Σ β₁^age w_i: momentum, truncated to the window."""
        return torch.where(self.decay > 0, self.momentum / self.decay, 0.0)

    def expand(self, coefficients: Tensor, out: Tensor) -> Tensor:
        """G c = Wᵀ D c into ``out`` (d,), for float64 coefficients c (r,)."""
        return products.expand(self.rows, self.decay * coefficients, self.gram, out)

    def singular_values(self) -> Tensor:
        """The singular values of G, descending, shape (r,), float64."""
        eigenvalues: Tensor = torch.linalg.eigvalsh(self.moment())
        return eigenvalues.flip(-1).clamp_min(0).sqrt()

    def mend_gram(self) -> None:
        """Recompute K if it is not the Gram of the rows, as when part of a state was lost; else leave its bits."""
        found = torch.stack([products.gram_row(row[None], row)[-1] for row in self.rows])
        if not torch.allclose(found, self.gram.diagonal(), rtol=1e-9, atol=0.0):
            self.gram.copy_(torch.stack([products.gram_row(self.rows, row)[:-1] for row in self.rows]))

    def reset(self) -> None:
        """Forget every row, in place: the hard window of the paper's theory."""
        for tensor in (self.rows, self.gram, self.decay, self.momentum, self.position, self.count):
            tensor.zero_()
