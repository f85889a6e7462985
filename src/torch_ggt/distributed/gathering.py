"""The all-gather at the end of a step under DDP: each rank has changed a part of every tensor, and sends it."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_ggt.distributed.lending import Loan, start_all_gather
from torch_ggt.distributed.pieces import best_cut, slice_of, whole
from torch_ggt.layout import as_real

__all__ = ["Gathering"]

# About how many elements one all-gather moves: enough to fill a network, and few compared with a window.
_BUCKET = 2**24


class Gathering:
    """Makes plain tensors whole again on the ranks of ``group``. One bucket travels while another is unpacked."""

    def __init__(self, group: Any) -> None:  # noqa: ANN401 - a ProcessGroup
        self._group = group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._made_for: list[Any] = []
        self._buckets: list[Bucket] = []

    def share(self, tensors: list[Tensor]) -> None:
        """Gather the parts of ``tensors`` (parameters or gradients) from all ranks."""
        kinds = [(t.device, t.dtype, t.shape, t.stride()) for t in tensors]
        if self._made_for != kinds:
            self._buckets = [Bucket(tensors, alike, self._rank, self._ranks) for alike in _in_buckets(tensors)]
            self._made_for = kinds
        reals = [as_real(t) for t in tensors]
        waiting: list[tuple[Bucket, Tensor, Loan]] = []
        for bucket in self._buckets:
            waiting.append((bucket, *start_all_gather(bucket.pack(reals), self._group)))
            if len(waiting) > 1:
                _finish(*waiting.pop(0), reals)
        for gathering in waiting:
            _finish(*gathering, reals)


def _finish(bucket: "Bucket", received: Tensor, loan: Loan, reals: list[Tensor]) -> None:
    loan.settle()
    bucket.unpack(received, reals)


class Bucket:
    """Tensors of one device and dtype whose parts travel together in an all-gather.

    Every rank sends a vector of ``length`` elements: its part of each tensor, with room for the largest part of any
    rank. All ranks send a scalar, and the value of the first rank counts. Strides are computed once, for the tensors of
    every step that are like ``tensors``. A step makes two or three views of each tensor, for any number of ranks.
    Vectors travel as bytes, because backends differ in the dtypes that they know.
    """

    def __init__(self, tensors: list[Tensor], indices: list[int], rank: int, ranks: int) -> None:
        parameters = [tensors[index] for index in indices]
        lengths = [math.prod(slice_of(p, 0, ranks, None).sizes) for p in parameters]  # no rank has more than the first
        self.length = sum(lengths)
        # (the index of a tensor, a view of the tensor, the view of the vector that belongs to it)
        self._sent: list[tuple[int, _ViewOf, _ViewOf]] = []
        self._received: list[tuple[int, _ViewOf, _ViewOf]] = []
        received = torch.empty(ranks, self.length, device="meta")
        spans = torch.split(received, lengths, 1)
        for index, parameter, places in zip(indices, parameters, spans, strict=True):
            full = as_real(parameter)
            mine = slice_of(parameter, rank, ranks, None).cut(full)
            place = places[0, : mine.numel()].view(mine.shape)
            self._sent.append((index, _like(mine, full), _like(place, received)))
            full = full if full.dim() else full.view(1)  # a scalar is one part, which the first rank has
            for part, place in _pairs(full, places, cut=best_cut(whole(parameter).shape, ranks) or 0):
                self._received.append((index, _like(part, full), _like(place, received)))

    def pack(self, reals: list[Tensor]) -> Tensor:
        """The vector that this rank sends of its parts of ``reals``, as bytes."""
        sent = reals[self._sent[0][0]].new_zeros(self.length)
        torch._foreach_copy_([place(sent) for _, _, place in self._sent], [part(reals[i]) for i, part, _ in self._sent])
        return sent.view(torch.uint8)

    def unpack(self, received: Tensor, reals: list[Tensor]) -> None:
        """Copy the vectors of all ranks, one after the other in ``received``, into ``reals``."""
        received = received.view(reals[self._sent[0][0]].dtype)
        parts = [part(reals[i]) for i, part, _ in self._received]
        if parts:  # parameters without elements have no parts
            torch._foreach_copy_(parts, [place(received) for _, _, place in self._received])


_ViewOf = Callable[[Tensor], Tensor]


def _like(view: Tensor, base: Tensor) -> _ViewOf:
    """A function that views other tensors as ``view`` views ``base``; it keeps neither of the two."""
    size, stride, offset = view.shape, view.stride(), int(view.storage_offset()) - int(base.storage_offset())
    return lambda tensor: tensor.as_strided(size, stride, int(tensor.storage_offset()) + offset)


def _pairs(parameter: Tensor, places: Tensor, cut: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of a parameter and of ``places`` (ranks, length): one pair for all equal parts, one for a smaller part."""
    size = parameter.shape[cut]
    part = max(1, -(-size // places.shape[0]))
    equal, rest = divmod(size, part)
    if equal:
        parts = torch.unflatten(parameter.narrow(cut, 0, equal * part), cut, (equal, part)).movedim(cut, 0)
        yield parts, places[:equal].view(parts.shape)
    if rest:
        last = parameter.narrow(cut, equal * part, rest)
        yield last, places[equal, : last.numel()].view(last.shape)


def _in_buckets(tensors: list[Tensor]) -> list[list[int]]:
    """The indices of tensors of one device and dtype, in lists that hold about `_BUCKET` elements each."""
    kinds: dict[Any, list[list[int]]] = defaultdict(lambda: [[]])
    for index, tensor in enumerate(tensors):
        alike = kinds[tensor.device, tensor.dtype]
        if sum(tensors[i].numel() for i in alike[-1]) >= _BUCKET:
            alike.append([])
        alike[-1].append(index)
    return [bucket for alike in kinds.values() for bucket in alike]
