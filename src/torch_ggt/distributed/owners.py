"""Tensors made whole for a finish that needs them so: each of them on one rank, its owner.

The parts of a step travel to the owner of their tensor, and the finished parts travel back to every rank that holds
them, together with the small tensors that the finish remembers. These are two all-to-alls for each block. Every element
of a step travels once to its owner, whatever the window; so all ranks get one result, bit for bit.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_ggt.distributed.lending import Loan

__all__ = ["Box", "Owners"]

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""(offsets, sizes) of the part of a tensor that a rank holds."""
_PLANS = 16  # how many are kept: parameters without a gradient make another plan


class Owners:
    """Brings steps to the ranks of ``group`` that finish them, and back."""

    def __init__(self, group: Any) -> None:  # noqa: ANN401 - a ProcessGroup
        self._group = group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._plans: dict[Any, Plan] = {}

    def bring(self, block: Any, places: Sequence[int], boxes: Sequence[Sequence[Box]]) -> dict[int, Tensor]:  # noqa: ANN401
        """The whole steps that this rank owns, by place.

        Args:
            block: a Block; its flat step is sent.
            places: of the parameters in the block, one list for all ranks.
            boxes: for each of them, the boxes of all ranks.
        """
        plan = self._plan(block, places, boxes)
        parts = [
            block.row_views[places[index]].reshape(-1)
            for owner in range(self._ranks)
            for index in plan.owned[owner]
            if self._rank in plan.senders[index]
        ]
        sent = [
            sum(math.prod(boxes[index][self._rank][1]) for index in owned if self._rank in plan.senders[index])
            for owned in plan.owned
        ]
        arriving = [(rank, index) for rank in range(self._ranks) for index in plan.owned[self._rank]]
        arriving = [(rank, index) for rank, index in arriving if rank in plan.senders[index]]
        lengths = [math.prod(boxes[index][rank][1]) for rank, index in arriving]
        found = {places[i]: block.row.new_empty(block.pieces[places[i]].shape) for i in plan.owned[self._rank]}
        received = self._exchange(block.row, parts, sent, [rank for rank, _ in arriving], lengths)
        for (rank, index), part in zip(arriving, received, strict=True):
            _cut(found[places[index]], boxes[index][rank]).copy_(part.view(boxes[index][rank][1]))
        return found

    def give_back(
        self,
        block: Any,  # noqa: ANN401 - a Block
        places: Sequence[int],
        boxes: Sequence[Sequence[Box]],
        steps: dict[int, Tensor],
    ) -> None:
        """Send what became of the ``steps`` of `bring` to all that hold a part, and the small tensors to everybody."""
        plan = self._plan(block, places, boxes)
        parts, sent = [], []
        for rank in range(self._ranks):
            own: list[Tensor] = []
            for index in plan.owned[self._rank]:
                place = places[index]
                own.append(_cut(steps[place], boxes[index][rank]).reshape(-1).to(block.row.dtype))
                own += [small.reshape(-1).to(block.row.dtype) for small in block.small[place].values()]
            parts += own
            sent.append(sum(part.numel() for part in own))
        targets, owners = [], []
        for owner in range(self._ranks):
            for index in plan.owned[owner]:
                new = [block.row_views[places[index]], *block.small[places[index]].values()]
                targets += new
                owners += [owner] * len(new)
        received = self._exchange(block.row, parts, sent, owners, [target.numel() for target in targets])
        for target, part in zip(targets, received, strict=True):
            target.copy_(part.view(target.shape))

    def _exchange(
        self, like: Tensor, parts: list[Tensor], sent: list[int], sources: list[int], lengths: list[int]
    ) -> Sequence[Tensor]:
        """Send ``parts``, ``sent`` elements of them to each rank; the parts of ``lengths`` that ``sources`` send."""
        incoming = [0] * self._ranks
        for source, length in zip(sources, lengths, strict=True):
            incoming[source] += length
        received = like.new_empty(sum(incoming))
        leaving = torch.cat(parts) if parts else like.new_empty(0)
        splits = {"output_split_sizes": incoming, "input_split_sizes": sent}
        Loan(dist.all_to_all_single, received, leaving, **splits, group=self._group).settle()
        return torch.split(received, lengths)

    def _plan(self, block: Any, places: Sequence[int], boxes: Sequence[Sequence[Box]]) -> "Plan":  # noqa: ANN401
        key = id(block.pieces), tuple(places)
        if key not in self._plans:
            while len(self._plans) >= _PLANS:
                del self._plans[next(iter(self._plans))]
            shapes = [block.pieces[place].shape for place in places]
            self._plans[key] = Plan(block.pieces, shapes, boxes, self._ranks)
        return self._plans[key]


class Plan:
    """Who finishes which tensor, and who sends which part of it; the same on all ranks.

    Attributes:
        owned: for each rank, the indices of its tensors.
        senders: for each tensor, the ranks that send their part: one of those that hold it, the owner if it does.
    """

    def __init__(
        self, pieces: object, shapes: Sequence[tuple[int, ...]], boxes: Sequence[Sequence[Box]], ranks: int
    ) -> None:
        self.pieces = pieces  # kept, so that its id stays its own
        self.owned: list[list[int]] = [[] for _ in range(ranks)]
        self.senders: list[set[int]] = [set() for _ in shapes]
        load = [0] * ranks
        for index in sorted(range(len(shapes)), key=lambda i: -_work(shapes[i])):
            owner = load.index(min(load))
            load[owner] += _work(shapes[index])
            self.owned[owner].append(index)
            for box in dict.fromkeys(boxes[index]):
                holders = [rank for rank in range(ranks) if boxes[index][rank] == box]
                self.senders[index].add(owner if owner in holders else holders[index % len(holders)])


def _work(shape: tuple[int, ...]) -> int:
    """The operations of a polar factor, up to a factor: elements times the shorter side."""
    numel = math.prod(shape)
    return numel * min(shape[0], numel // max(1, shape[0])) if shape else 1


def _cut(tensor: Tensor, box: Box) -> Tensor:
    for dim, (offset, size) in enumerate(zip(*box, strict=True)):
        if size != tensor.shape[dim]:
            tensor = tensor.narrow(dim, min(offset, tensor.shape[dim]), size)
    return tensor
