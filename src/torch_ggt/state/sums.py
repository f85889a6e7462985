"""Sums by which a saved state is recognised: one 32-bit number for each element of a parameter.

The number of an element adds up the bits of everything that the state holds for it: its column of the window, its
momentum, its squares. Each word is multiplied by an odd number of its own, so that a sign, a swap of rows or a cast
shows. The numbers start from a salt, the digest of what a parameter has once: its place among the parameters, the
parameters that have state, and the small tensors of its matrix.

A sum belongs to an element. So the sums are split over ranks as the parameter is, torch's tools split them again with
the state, and no rank needs another one to make or to compare them. They take the room of one float32 row.
"""

import functools
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ggt.distributed.agreement import digest

__all__ = ["SUMS_KEY", "salt_of", "sums_of"]

SUMS_KEY = "sums"
_CHUNK = 2**16  # elements whose sums are made together: they stay in the cache


def salt_of(place: int, places: Sequence[int], small: dict[str, Tensor]) -> int:
    """A number for what a parameter has once.

    Args:
        place: of the parameter among all parameters.
        places: of all parameters that have state.
        small: the small tensors in its state, by key.
    """
    words = repr((place, list(places), sorted(small)))
    return zlib.crc32(words.encode(), digest([small[key] for key in sorted(small)]))


def sums_of(tensors: dict[str, Tensor], shape: Sequence[int], salt: int) -> Tensor:
    """The sums of the elements of a parameter, int32, of ``shape``.

    Args:
        tensors: by key, what the state holds for the elements, each (..., *shape).
        shape: of the part of the parameter that is here.
        salt: of `salt_of`.

    Example:
        >>> one, other = (sums_of({"window": sign * torch.ones(2, 3)}, (3,), salt=0) for sign in (1, -1))
        >>> bool((one != other).all())
        True
    """
    rows = [row for key in sorted(tensors) for row in _rows(tensors[key], shape)]
    device = rows[0].device if rows else torch.device("cpu")
    found = torch.empty(rows[0].numel() if rows else 0, dtype=torch.int32, device=device)
    for start in range(0, found.numel(), _CHUNK):
        out = found[start : start + _CHUNK]
        total = torch.full_like(out, salt, dtype=torch.int64)
        words = (word for row in rows for word in _words(row[start : start + _CHUNK]))
        for number, word in enumerate(words, 1):
            total.add_(word, alpha=_factor(number))
        out.copy_(total.bitwise_xor_(total >> 32))
    return found.view(tuple(shape))


def _rows(tensor: Tensor, shape: Sequence[int]) -> Any:  # noqa: ANN401 - a Tensor, or a list of one
    flat = tensor.detach().contiguous()
    return flat.reshape(flat.shape[0], -1) if flat.dim() > len(shape) else [flat.reshape(-1)]


def _words(row: Tensor) -> Iterator[Tensor]:
    """The bits of each element, as integers of at most 32 bits."""
    bits = row.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[row.element_size()])
    if bits.dtype == torch.int64:
        yield bits & 0xFFFFFFFF
        bits = bits >> 32
    yield bits


@functools.cache
def _factor(number: int) -> int:
    """An odd int64 that looks random: multiples of one number would add up to zero for some signs of the words."""
    spread = hashlib.blake2b(str(number).encode(), digest_size=8).digest()
    return int.from_bytes(spread, "little", signed=True) | 1
