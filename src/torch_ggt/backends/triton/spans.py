"""How the columns of a window are cut into pieces for the kernels of a GPU.

A window may hold several full matrices side by side, each with its own columns (scope="parameter"). A piece never
crosses the border of two matrices, so that one launch serves all matrices.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

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

    Args:
        borders: the first column of each matrix, and one past the last column of all: length B + 1.
        rows: r, the number of rows.
        device: the device of the tables.

    Attributes:
        count: B, the number of matrices.
        pieces: how many pieces there are.
        longest: how many columns the longest piece has.
        aligned: whether every border is a multiple of `ALIGNMENT`.
        starts: the first column of each piece, int64.
        ends: one past the last column of each piece, int64.
        owners: the matrix of each piece, int32.
        firsts: the first piece of each matrix, and one past the last piece: (B + 1,) int32.
        first_pieces: ``firsts`` as a list on the host.
        origins: ``borders`` as a tensor, int64.

    Example:
        >>> spans = Spans([0, 5000, 13000], rows=8, device="cpu")
        >>> spans.starts.tolist(), spans.ends.tolist(), spans.owners.tolist(), spans.firsts.tolist()
        ([0, 4096, 5000, 9096], [4096, 5000, 9096, 13000], [0, 0, 1, 1], [0, 2, 4])
    """

    def __init__(self, borders: Sequence[int], rows: int, device: torch.device | str) -> None:
        tiles = -(-rows // _ROWS_PER_PROGRAM)
        length = -(-borders[-1] // max(1, _PROGRAMS // tiles))
        length = max(_SHORTEST, -(-length // _SHORTEST) * _SHORTEST)
        table: list[tuple[int, int, int]] = []
        firsts = [0]
        for owner, (left, right) in enumerate(itertools.pairwise(borders)):
            table += [(start, min(start + length, right), owner) for start in range(left, right, length)]
            firsts.append(len(table))
        self.borders = tuple(borders)
        self.count = len(borders) - 1
        self.pieces = len(table)
        self.longest = max((end - start for start, end, _ in table), default=0)
        self.aligned = all(border % ALIGNMENT == 0 for border in borders)
        self.starts, self.ends = (_tensor([piece[i] for piece in table], torch.int64, device) for i in (0, 1))
        self.owners = _tensor([owner for *_, owner in table], torch.int32, device)
        self.first_pieces = firsts
        self.firsts = _tensor(firsts, torch.int32, device)
        self.origins = _tensor(list(borders), torch.int64, device)


def _tensor(values: list[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)
