"""Where the columns of a window live: all in this process (`Local`), or split over ranks (`Sharded`).

The Gram matrix is a sum over columns. So any split of the columns costs one all-reduce in a step, of r + 1 numbers for
each matrix; all other work is local to its columns. Where several ranks hold one piece of a parameter, each of them
adds its sums divided by their number, so that a number that is not finite on *any* rank reaches all of them.

A rank whose set of gradients has changed sends NaN, and a one in the last number: every rank skips that step. If all
ranks have changed, they agree anew and go on; if only some have, those raise (`Sharded.changed`). A rank that raises
for another reason leaves its peers to the timeout of the process group, as every torch optimizer does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import increment_version

from torch_ggt.distributed.agreement import Claim, agree, waiting
from torch_ggt.distributed.gathering import Gathering
from torch_ggt.distributed.lending import Loan
from torch_ggt.distributed.owners import Box, Owners
from torch_ggt.distributed.pieces import Piece, is_dtensor, piece_of_dtensor, slice_of, whole

__all__ = ["Columns", "Local", "Sharded", "choose", "existing_group"]

_ONLY_SOME = (
    "torch_ggt: ranks disagree: this rank has gradients for other parameters than in the step before, other dtypes, or "
    "another state, and another rank goes on as before. All ranks must have gradients for the same parameters, of "
    "the same dtypes, and load the same state. Every rank has skipped this step; nothing was changed."
)


class Local:
    """All columns are in this process.

    ``alone`` says whether all columns are in this process; this is rank ``rank`` of ``ranks``.
    """

    alone = True
    rank, ranks = 0, 1

    def sum(self, blocks: Sequence[Any]) -> Tensor:
        """Add up the sums of every block over all ranks; whether this step is taken, for all blocks alike.

        It is decided before anything is written. The square of a row is not finite exactly if an element of the row is
        not, or if the square overflows float64.
        """
        largest = []
        for block in blocks:
            square = block.sums[..., -1]
            largest.append(square.amax() if square.dim() else square)  # NaN, if there is one
        if len(largest) == 1:
            taken: Tensor = largest[0] < torch.inf
            return taken
        home = largest[0].device
        return torch.stack([square.to(home) for square in largest]).amax() < torch.inf

    def total(self, partial: Tensor) -> Tensor:
        """The sum of ``partial`` over all ranks, the same bits on each."""
        return partial

    def piece(self, parameter: Tensor) -> Piece:
        """What of ``parameter`` has its columns here."""
        return whole(parameter)

    def weight(self, parameter: Tensor) -> float:
        """One divided by the number of ranks that hold this very piece."""
        return 1.0

    def gradient(self, parameter: Tensor, piece: Piece) -> Tensor:
        """The piece of a gradient, real. A gradient that is split otherwise than its parameter is split anew."""
        gradient: Any = parameter.grad
        if is_dtensor(gradient) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
            gradient = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
            parameter.grad = gradient  # a sink may write into it
        return piece.local(gradient)

    def restore(self, piece: Piece, value: Any) -> Tensor:  # noqa: ANN401 - a Tensor or a DTensor
        """The piece of a saved tensor (..., *piece.shape), which may be plain, or split in any way."""
        here: Tensor
        if piece.presents(value):
            here = value.to_local()
        else:
            here = piece.cut(value.full_tensor() if is_dtensor(value) else value)
        return here

    def agree(self, claim: Callable[[], Claim]) -> None:
        """Raise on all ranks unless all are about to do one thing; what ``claim`` raises is raised."""
        claim()

    def changed(self, length: int, device: torch.device) -> None:
        """Join the all-reduce of a step that this rank cannot make."""

    def bring(self, block: Any, places: Sequence[int]) -> dict[int, Tensor]:  # noqa: ANN401 - a Block
        """The whole steps of the parameters at ``places``, each on the one rank that finishes it: all here."""
        return {place: block.row_views[place] for place in places}

    def give_back(self, block: Any, places: Sequence[int], steps: dict[int, Tensor]) -> None:  # noqa: ANN401
        """Put what became of the steps of `bring` into the flat step of every rank."""
        for place in places:
            if steps[place] is not block.row_views[place]:
                block.row_views[place].copy_(steps[place])

    def share(self, blocks: Sequence[Any]) -> None:
        """Give all ranks the pieces that each of them has changed."""


class Sharded(Local):
    """The columns are split over the ranks of a process group.

    DTensors stay split as they are. Plain parameters are alike on all ranks before and after a step.

    Args:
        group: all the ranks that hold a part of any parameter.
        split: cut plain parameters, too: each rank keeps the window of its part alone, makes the step there, and the
            parts are gathered. Otherwise every rank makes the whole step of a plain parameter.
    """

    alone = False

    def __init__(self, group: Any, *, split: bool) -> None:  # noqa: ANN401 - a ProcessGroup
        _check_alive(group)
        self.group = group
        self.split = split
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("torch_ggt: this process is not part of the process_group it was given")
        self._meshes: dict[str, Any] = {}
        self._boxes: dict[Tensor, list[Box]] = {}
        self._gathering = Gathering(group)
        self._owners = Owners(group)

    def sum(self, blocks: Sequence[Any]) -> Tensor:
        """Add up the sums of all blocks and ranks by one all-reduce; whether this step is taken."""
        home = blocks[0].sums.device
        parts = [block.sums.reshape(-1).to(home) for block in blocks]
        nobody_has_changed = torch.zeros(1, dtype=torch.float64, device=home)
        flat = self.total(torch.cat([*parts, nobody_has_changed]))
        for block, part in zip(blocks, torch.split(flat[:-1], [part.numel() for part in parts]), strict=True):
            block.sums = part.view(block.sums.shape).to(block.sums.device)
        return super().sum(blocks)

    def total(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each."""
        _check_alive(self.group)
        total = partial.clone()
        with waiting(self.group, "a sum over all ranks"):
            Loan(dist.all_reduce, total, group=self.group).settle()
        return total

    def changed(self, length: int, device: torch.device) -> None:
        """Send NaN in the all-reduce of a step, and count the ranks that do; this waits for the device."""
        sums = torch.full((length + 1,), torch.nan, dtype=torch.float64, device=device)
        sums[-1] = 1.0
        if int(self.total(sums)[-1]) != self.ranks:
            raise RuntimeError(_ONLY_SOME)

    def piece(self, parameter: Tensor) -> Piece:
        """A DTensor's own shard; of a plain parameter the part of this rank if we split, else all."""
        if is_dtensor(parameter):
            return piece_of_dtensor(parameter)
        if not self.split:
            return whole(parameter)
        kind = parameter.device.type
        if kind not in self._meshes:
            from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415

            self._meshes[kind] = DeviceMesh.from_group(self.group, kind)
        return slice_of(parameter, self.rank, self.ranks, self._meshes[kind])

    def weight(self, parameter: Tensor) -> float:
        """One divided by the number of ranks that hold this very piece: known since the ranks agreed."""
        piece = self.piece(parameter)
        return 1 / self._boxes[parameter].count((piece.offsets, piece.sizes))

    def agree(self, claim: Callable[[], Claim]) -> None:
        """Compare what all ranks are about to do, and learn who holds which piece."""
        _check_alive(self.group)
        self._boxes.update(agree(self.group, claim, self.piece))

    def bring(self, block: Any, places: Sequence[int]) -> dict[int, Tensor]:  # noqa: ANN401 - a Block
        """The whole steps that this rank finishes."""
        with waiting(self.group, "the exchange of steps that are finished as a whole"):
            return self._owners.bring(block, places, [self._boxes[block.parameters[place]] for place in places])

    def give_back(self, block: Any, places: Sequence[int], steps: dict[int, Tensor]) -> None:  # noqa: ANN401
        """Send the finished steps to all ranks that hold a part of them."""
        boxes = [self._boxes[block.parameters[place]] for place in places]
        with waiting(self.group, "the exchange of steps that are finished as a whole"):
            self._owners.give_back(block, places, boxes, steps)

    def share(self, blocks: Sequence[Any]) -> None:
        """Gather the parts of plain tensors that we split; autograd is told of the shards that we changed."""
        changed = [block.sink.changed(p) for block in blocks for _, p in block.allotted if p.grad is not None]
        increment_version([tensor for tensor in changed if is_dtensor(tensor)])
        if self.split and self.ranks > 1:
            with waiting(self.group, "the exchange of changed parameters (they may differ between ranks now)"):
                self._gathering.share([tensor for tensor in changed if not is_dtensor(tensor)])


Columns = Local
"""Sums over all the columns of a window, wherever they are, and what each rank has of a parameter."""


def choose(process_group: Any, parameters: Sequence[Any]) -> Columns:  # noqa: ANN401 - a ProcessGroup or None
    """The columns of these parameters: over the group that was given, over the ranks of DTensors, or all here."""
    flat = any(getattr(parameter, "_fsdp_flattened", False) for parameter in parameters)
    if flat and dist.is_initialized() and dist.get_world_size() > 1:
        raise TypeError(
            "torch_ggt: parameters of FullyShardedDataParallel (FSDP1) do not say what of the model is on which rank. "
            "Use fully_shard (FSDP2), or DistributedDataParallel with process_group='world'"
        )
    if process_group is not None:
        return Sharded(process_group, split=True)
    meshes = [parameter.device_mesh for parameter in parameters if is_dtensor(parameter)]
    return Sharded(_group_of(meshes), split=False) if meshes else Local()


def existing_group(process_group: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """The process group that was given; "world" is the group of all ranks. Raise unless it exists."""
    if process_group == "world" and dist.is_available():
        _check_alive(None)
        return dist.group.WORLD
    if not dist.is_available() or not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            "torch_ggt: process_group must be a torch.distributed.ProcessGroup, 'world' or None, got "
            f"{process_group!r}; e.g. torch.distributed.group.WORLD after init_process_group(), or "
            "device_mesh.get_group()"
        )
    _check_alive(process_group)
    return process_group


def _check_alive(group: Any) -> None:  # noqa: ANN401 - a ProcessGroup
    try:
        dist.get_backend(group)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RuntimeError(
            "torch_ggt: its process group does not exist: torch.distributed is not initialized, or the group was "
            "destroyed. Call torch.distributed.init_process_group(), make a new optimizer after it, and load its "
            "state_dict."
        ) from error


def _group_of(meshes: list[Any]) -> Any:  # noqa: ANN401 - a ProcessGroup
    """A group of all the ranks of these meshes that exists already."""
    ranks = {rank for mesh in meshes for rank in mesh.mesh.flatten().tolist()}
    for mesh in meshes:
        if mesh.ndim == 1 and set(mesh.mesh.tolist()) == ranks:
            return mesh.get_group()
    if ranks == set(range(dist.get_world_size())):
        return dist.group.WORLD
    raise ValueError(
        f"torch_ggt: the parameters are DTensors on ranks {sorted(ranks)}, and there is no process group of exactly "
        "these; give process_group=torch.distributed.new_group(ranks)"
    )
