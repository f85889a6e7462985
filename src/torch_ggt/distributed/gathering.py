"""The all-gather at the end of a step under DDP: each rank has changed a part of every parameter, and sends it."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from torch_ggt.distributed.pieces import best_cut, slice_of
from torch_ggt.layout import as_real

__all__ = ["Gathering"]

# About how many elements one all-gather moves: enough to fill a network, and few compared with a window.
_BUCKET = 2**24


class Gathering:
    """Makes plain parameters whole again, bucket by bucket. One bucket travels while another is unpacked.

    Args:
        group: the ranks that have changed their parts.
    """

    def __init__(self, group: Any) -> None:  # noqa: ANN401 - a ProcessGroup
        self._group = group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._made_for: list[Any] = []
        self._buckets: list[Bucket] = []

    def share(self, parameters: list[Tensor]) -> None:
        """Gather the parts of ``parameters`` from all ranks."""
        kinds = [(id(p), p.device, p.dtype, p.shape, p.stride()) for p in parameters]
        if self._made_for != kinds:
            self._buckets = [Bucket(part, self._rank, self._ranks) for part in _in_buckets(parameters)]
            self._made_for = kinds
        waiting: list[tuple[Any, Bucket, Tensor]] = []
        for bucket in self._buckets:
            sent = bucket.pack()
            received = sent.new_empty(self._ranks * bucket.length)
            # We send bytes, because backends differ in the dtypes that they know.
            work = _all_gather(received.view(torch.uint8), sent.view(torch.uint8), group=self._group, async_op=True)
            waiting.append((work, bucket, received))
            if len(waiting) > 1:
                _finish(*waiting.pop(0))
        for gathering in waiting:
            _finish(*gathering)


class Bucket:
    """Parameters of one device and dtype whose parts travel together in an all-gather.

    Every rank sends a vector of ``length`` elements: its part of each parameter, with room for the largest part of any
    rank. All ranks send a scalar, and the value of the first rank counts. Strides are computed once. A step makes two
    or three views of each parameter, for any number of ranks.

    Args:
        parameters: real or complex parameters, all of one device and dtype.
        rank: the index of this rank.
        ranks: the number of ranks.
    """

    def __init__(self, parameters: Sequence[Tensor], rank: int, ranks: int) -> None:
        self.parameters = list(parameters)
        self._out: list[tuple[int, _Strides, _Strides]] = []
        self._in: list[tuple[int, _Strides, _Strides]] = []
        pieces = [slice_of(p, rank, ranks, None) for p in self.parameters]
        cuts = [best_cut(piece.shape, ranks) for piece in pieces]
        lengths = [_part_length(piece.shape, cut, ranks) for piece, cut in zip(pieces, cuts, strict=True)]
        self.length = sum(lengths)
        received = torch.empty(ranks, self.length, device="meta")
        offset = 0
        for index, (piece, cut, length) in enumerate(zip(pieces, cuts, lengths, strict=True)):
            like = as_real(self.parameters[index])
            like = torch.empty_strided(like.shape, like.stride(), device="meta")
            sent = received[0, offset : offset + math.prod(piece.sizes)].view(piece.sizes)
            self._out.append((index, _Strides.of(sent), _Strides.of(piece.cut(like))))
            for target, source in _both_sides(like, received[:, offset : offset + length], cut, ranks):
                self._in.append((index, _Strides.of(target), _Strides.of(source)))
            offset += length

    def pack(self) -> Tensor:
        """The vector that this rank sends."""
        reals = [as_real(p) for p in self.parameters]
        sent = reals[0].new_zeros(self.length)
        _copy([place.view(sent) for _, place, _ in self._out], [part.view(reals[i]) for i, _, part in self._out])
        return sent

    def unpack(self, received: Tensor) -> None:
        """Copy the vectors of all ranks, one after the other in ``received``, into the parameters."""
        reals = [as_real(p) for p in self.parameters]
        _copy([place.view(reals[i]) for i, place, _ in self._in], [part.view(received) for _, _, part in self._in])


class _Strides(NamedTuple):
    """The geometry of a view, for a tensor that does not exist yet."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> "_Strides":
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def view(self, tensor: Tensor) -> Tensor:
        return tensor.as_strided(self.size, self.stride, int(tensor.storage_offset()) + self.offset)


def _part_length(shape: tuple[int, ...], cut: int | None, ranks: int) -> int:
    """The number of elements of the largest part."""
    if cut is None:
        return 1
    return math.prod(shape[:cut]) * -(-shape[cut] // ranks) * math.prod(shape[cut + 1 :])


def _both_sides(whole_one: Tensor, received: Tensor, cut: int | None, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (part of a parameter, part of ``received`` (ranks, length)): one for all equal parts, one for the rest."""
    if cut is None:
        yield whole_one, received[0].view(())
        return
    shape = list(whole_one.shape)
    part = -(-shape[cut] // ranks)
    equal, left = divmod(shape[cut], part) if part else (0, 0)
    if equal:
        targets = whole_one.narrow(cut, 0, equal * part).view(*shape[:cut], equal, part, *shape[cut + 1 :])
        yield targets.movedim(cut, 0), received[:equal].view(equal, *shape[:cut], part, *shape[cut + 1 :])
    if left:
        sizes = (*shape[:cut], left, *shape[cut + 1 :])
        yield whole_one.narrow(cut, equal * part, left), received[equal, : math.prod(sizes)].view(sizes)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def _in_buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Lists of parameters of one device and dtype, each list with about `_BUCKET` elements."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for alike in kinds.values():
        bucket: list[Tensor] = []
        elements = 0
        for parameter in alike:
            bucket.append(parameter)
            elements += parameter.numel()
            if elements >= _BUCKET:
                yield bucket
                bucket, elements = [], 0
        if bucket:
            yield bucket


def _all_gather(received: Tensor, sent: Tensor, **options: Any) -> Any:  # noqa: ANN401 - a Work
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    return gather(received, sent, **options)


def _finish(work: Any, bucket: Bucket, received: Tensor) -> None:  # noqa: ANN401 - a Work
    work.wait()
    bucket.unpack(received)
