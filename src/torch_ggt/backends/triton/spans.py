"""How the columns of a window are cut into pieces for the kernels of a GPU.

A window may hold several full matrices side by side, each with columns of its own (scope="parameter"). A piece never
reaches over the border of two of them, so that one launch serves them all.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_ggt.layout import ALIGNMENT

__all__ = ["Spans"]

# Programs that one pass is cut into: a few waves on the largest GPU there is. A constant, not the number of processors:
# the order of the sums, and so their last bit, must not depend on the card.
_PROGRAMS = 16384
_ROWS_PER_PROGRAM = 4
# Columns of a piece: two rounds of a program of 2048. Shorter ones took several times as long for small windows, most
# of it to start programs (d = 1e6, r = 10: 0.07 ms for W v, which is 0.01 ms of memory).
_SHORTEST = 4096


class Spans:
    """Pieces of columns, as tables on the device.

    Args:
        borders: first column of each matrix, and one past the last column of the last: length B + 1.
        rows: r.
        device: of the tables.

    Attributes:
        count: B, the number of matrices.
        pieces: how many pieces there are.
        longest: columns of the longest piece.
        aligned: whether every border is a multiple of `ALIGNMENT`.
        starts: first column of each piece, int64.
        ends: one past its last column, int64.
        owners: the matrix it belongs to, int32.
        firsts: the first piece of each matrix, and one past the last: (B + 1,) int32.
        first_pieces: the same on the host.
        origins: the first column of each matrix, int64.

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
