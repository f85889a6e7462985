"""Where the columns of a window live. Every collective of the library belongs in this module and nowhere else.

The Gram of a window is a sum over columns, so that any split of the columns costs one all-reduce of a Gram row, r + 1
numbers, per step; all other work is local to its columns. The object that knows the split is handed in.
"""

from typing import Protocol

from torch import Tensor

__all__ = ["Local", "Sharding"]


class Sharding(Protocol):
    """Sums over all the columns of a window, wherever they are."""

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum of ``partial`` over every shard of the columns, alike on all of them."""
        ...


class Local:
    """All columns are here."""

    def all_reduce(self, partial: Tensor) -> Tensor:
        """``partial`` itself."""
        return partial
