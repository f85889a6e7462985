"""How the columns of a window are cut into pieces for the kernels of a GPU.

A window may hold several full matrices side by side, each with its own columns (scope="parameter"). A piece never
crosses the border of two matrices, so that one launch serves all matrices.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_ggt.backends.triton.launch import ceil_div
from torch_ggt.layout import ALIGNMENT

__all__ = ["Spans"]

# The number of programs of one pass: a few waves on the largest GPU. It is a constant and does not follow the number of
# processors, because the order of the sums, and so their last bit, must not depend on the card.
_PROGRAMS = 16384
_ROWS_PER_PROGRAM = 4
# The shortest piece: two rounds of 2048 columns. With shorter pieces, small windows took several times as long, mostly
# to start programs (d = 1e6, r = 10: W v took 0.07 ms, and its memory traffic takes 0.01 ms).
_SHORTEST = 4096


class Spans:
    """The pieces of columns of a window, as tables on the device.

    ``borders`` are the first column of each matrix, and one past the last column of all: length B + 1.

    Example:
        >>> spans = Spans([0, 5000, 13000], rows=8, device="cpu")
        >>> [table.tolist() for table in spans.tables], spans.first_pieces
        ([[0, 4096, 5000, 9096], [4096, 5000, 9096, 13000], [0, 0, 1, 1]], [0, 2, 4])
    """

    def __init__(self, borders: Sequence[int], rows: int, device: torch.device | str) -> None:
        length = ceil_div(borders[-1], max(1, _PROGRAMS // ceil_div(rows, _ROWS_PER_PROGRAM)))
        length = max(_SHORTEST, ceil_div(length, _SHORTEST) * _SHORTEST)
        pieces: list[tuple[int, int, int]] = []
        self.first_pieces = [0]  #: The first piece of each matrix, and one past the last piece.
        for owner, (left, right) in enumerate(itertools.pairwise(borders)):
            pieces += [(start, min(start + length, right), owner) for start in range(left, right, length)]
            self.first_pieces.append(len(pieces))
        self.count, self.pieces = len(borders) - 1, len(pieces)
        self.longest = max((end - start for start, end, _ in pieces), default=0)  #: In columns.
        self.aligned = all(border % ALIGNMENT == 0 for border in borders)
        starts, ends = (torch.tensor([piece[i] for piece in pieces], dtype=torch.int64, device=device) for i in (0, 1))
        #: The first column of each piece, one past its last column, and its matrix.
        self.tables = starts, ends, torch.tensor([piece[2] for piece in pieces], dtype=torch.int32, device=device)
        self.firsts = torch.tensor(self.first_pieces, dtype=torch.int32, device=device)
        self.origins = torch.tensor(list(borders), dtype=torch.int64, device=device)

    def aligned_in(self, *tensors: Tensor) -> bool:
        """Whether a kernel can read and write pieces of all these tensors 16 bytes at a time."""
        return self.aligned and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
