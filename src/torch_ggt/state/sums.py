"""Sums by which a saved state is recognised: one 32-bit number for each element of a parameter.

The number of an element adds up the bits of everything that the state holds for it: its column of the window, its
momentum, its squares. Each word of 32 bits is multiplied by an odd number of its own, so that a sign, a swap of rows or
a cast shows. The numbers start from a salt, the digest of what a parameter has once: its place among the parameters,
the parameters that have state, and the small tensors of its matrix.

A factor has 17 bits and a word has 31 and a sign. So the sum of 32 products is an integer below 2⁵³, which a product in
float64 finds exactly, in any order and on every device.

A sum belongs to an element. So the sums are split over ranks as the parameter is, torch's tools split them again with
the state, and no rank needs another one to make or to compare them. They take the room of one float32 row.
"""

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torch_ggt.distributed.agreement import digest

__all__ = ["SUMS_KEY", "salt_of", "sums_of"]

SUMS_KEY = "sums"
_WIDTH = 2**16  # elements whose sums are made together: long runs of few words, which stay in the cache
_TOGETHER = 32  # words whose products are added in float64


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
    numel = torch.Size(shape).numel()
    words = [part for key in sorted(tensors) for part in _words(tensors[key], numel)]
    device = words[0].device if words else torch.device("cpu")
    factors = _factors(sum(map(len, words))).to(device)
    found = torch.empty(numel, dtype=torch.int32, device=device)
    room = torch.empty(max(map(len, words), default=0) * min(_WIDTH, numel), dtype=torch.float64, device=device)
    for start in range(0, numel, _WIDTH):
        out = found[start : start + _WIDTH]
        total = torch.full_like(out, salt, dtype=torch.int64)
        first = 0
        for part in words:
            block = room[: part.shape[0] * len(out)].view(part.shape[0], len(out))
            block.copy_(part[:, start : start + _WIDTH])
            total += torch.mv(block.t(), factors[first : first + len(part)]).long()
            first += len(part)
        out.copy_(total.bitwise_xor_(total >> 32))
    return found.view(tuple(shape))


def _words(tensor: Tensor, numel: int) -> Iterator[Tensor]:
    """The bits of each element as integers of at most 32 bits, (words, elements), at most 32 words at a time."""
    flat = tensor.detach().contiguous().reshape(tensor.numel() // max(numel, 1), numel)
    bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int32}[flat.element_size()])
    halves = [bits] if bits.shape[1] == numel else [bits[:, 0::2], bits[:, 1::2]]
    for half in halves:
        yield from torch.split(half, _TOGETHER)


def _factors(number: int) -> Tensor:
    """Odd numbers below 2¹⁷ without a pattern, float64: multiples of one number would add up to zero for some signs.

    No two of the first 65,536 are equal, because an odd factor and a shifted exclusive or can be undone.
    """
    mixed = torch.arange(1, number + 1, device="cpu")
    for odd, shift in ((0x9E6D, 7), (0xC2B3, 9), (0xA3D1, 8)):
        mixed = (mixed * odd) & 0xFFFF
        mixed ^= mixed >> shift
    return (2 * mixed + 1).double()
