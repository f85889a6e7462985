"""Where the columns of a window live. Every collective of the library belongs in this module and nowhere else.

The Gram of a window is a sum over columns, so that any split of the columns costs one all-reduce of a Gram row, r + 1
numbers, per step; all other work is local to its columns. The object that knows the split is handed in:

`Local`: all columns are in this process, on one device or several. `Sharded`: they are split over the ranks of a
process group, by DTensors that are there already or by us.

A piece of a parameter may be held by several ranks (replicas of a hybrid split, parameters that are not split). Each of
them adds its sums divided by the number of them, and the sum runs over all ranks. That is the sum over the split
dimensions of a mesh alone, and more: a number that is not finite on *any* rank reaches all of them, and all of them get
the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import increment_version

from torch_ggt.pieces import Piece, is_dtensor, piece_of_dtensor, slice_of, whole

__all__ = ["Claim", "Local", "Sharded", "Sharding", "check_group", "choose", "reduce_together"]

# Elements that one all-gather brings in: enough to fill a network, and little beside a window.
_BUCKET = 2**24

Claim = tuple[Any, list[tuple[str, Tensor]]]
"""What a rank is about to do: options that must agree, and named parameters in order."""


class Sharding(Protocol):
    """Sums over all the columns of a window, wherever they are, and what each rank has of a parameter."""

    @property
    def alone(self) -> bool:
        """Whether all columns are in this process."""
        ...

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum of ``partial`` over every shard of the columns, alike on all of them."""
        ...

    def piece(self, parameter: Tensor) -> Piece:
        """What of ``parameter`` has its columns here."""
        ...

    def replicas(self, parameter: Tensor) -> int:
        """How many ranks hold that very piece."""
        ...

    def gradient(self, parameter: Tensor, piece: Piece) -> Tensor:
        """The piece of a parameter's gradient, real."""
        ...

    def restore(self, piece: Piece, value: Tensor) -> Tensor:
        """The piece of a saved tensor (..., *piece.shape)."""
        ...

    def agree(self, claim: Callable[[], Claim]) -> None:
        """Raise on all ranks, unless all are about to do the same."""
        ...

    def share(self, parameters: Sequence[Tensor]) -> None:
        """Give all ranks the pieces of ``parameters`` that each of them has changed."""
        ...


class Local:
    """All columns are in this process."""

    alone = True

    def all_reduce(self, partial: Tensor) -> Tensor:
        """``partial`` itself."""
        return partial

    def piece(self, parameter: Tensor) -> Piece:
        """All of it."""
        if is_dtensor(parameter):
            raise RuntimeError("a DTensor needs a sharding that knows its ranks; Local has none")
        return whole(parameter)

    def replicas(self, parameter: Tensor) -> int:
        """One: this process."""
        return 1

    def gradient(self, parameter: Tensor, piece: Piece) -> Tensor:
        """All of it."""
        assert parameter.grad is not None
        return piece.local(parameter.grad)

    def restore(self, piece: Piece, value: Tensor) -> Tensor:
        """``value`` itself, or all of it if it was saved in pieces."""
        whole_value: Tensor = value.full_tensor() if is_dtensor(value) else value  # type: ignore[attr-defined]
        return whole_value

    def agree(self, claim: Callable[[], Claim]) -> None:
        """There is nobody to disagree with; what ``claim`` raises is raised."""
        claim()

    def share(self, parameters: Sequence[Tensor]) -> None:
        """Nobody else needs them."""


class Sharded:
    """The columns are split over the ranks of a process group.

    DTensors stay split as they are. Plain parameters are the same on all ranks before and after a step.

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
            raise ValueError("GGT: this process is not part of the process_group it was given")
        self._meshes: dict[str, Any] = {}
        self._replicas: dict[Tensor, int] = {}

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each."""
        _check_alive(self.group)
        total = partial.clone()
        dist.all_reduce(total, group=self.group)
        return total

    def piece(self, parameter: Tensor) -> Piece:
        """A DTensor's own shard; of a plain parameter this rank's part if we split, else all."""
        if is_dtensor(parameter):
            return piece_of_dtensor(parameter)
        if not self.split:
            return whole(parameter)
        return slice_of(parameter, self.rank, self.ranks, self._mesh(parameter.device.type))

    def replicas(self, parameter: Tensor) -> int:
        """How many ranks hold this rank's piece; known since they agreed."""
        return self._replicas[parameter]

    def gradient(self, parameter: Tensor, piece: Piece) -> Tensor:
        """The piece of the gradient; one that is split otherwise than its parameter is split anew."""
        gradient: Any = parameter.grad
        if is_dtensor(gradient) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
            gradient = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
        return piece.local(gradient)

    def restore(self, piece: Piece, value: Any) -> Tensor:  # noqa: ANN401 - a Tensor or a DTensor
        """The piece of a saved tensor, plain or split in any way."""
        if piece.presents(value):
            here: Tensor = value.to_local()
            return here
        return piece.cut(value.full_tensor() if is_dtensor(value) else value)

    def agree(self, claim: Callable[[], Claim]) -> None:
        """Compare what all ranks are about to do, and count who holds which piece.

        An error on one rank is an error on every rank: none of them waits for one that has given up.
        """
        _check_alive(self.group)
        options, error = None, None
        named: list[tuple[str, Tensor]] = []
        try:
            options, named = claim()
            pieces = [self.piece(parameter) for _, parameter in named]
        except Exception as problem:
            pieces, error = [], problem
        mine = {
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "options": options,
            "parameters": [
                (name, piece.shape, str(parameter.dtype))
                for (name, parameter), piece in zip(named, pieces, strict=True)
            ],
            "boxes": [(piece.offsets, piece.sizes) for piece in pieces],
        }
        everyone: list[Any] = [None] * self.ranks
        dist.all_gather_object(everyone, mine, group=self.group)
        if error is not None:
            raise error
        _compare(everyone)
        for index, ((_, parameter), piece) in enumerate(zip(named, pieces, strict=True)):
            boxes = [ranks_claim["boxes"][index] for ranks_claim in everyone]
            _check_tiling(named[index][0], piece, boxes)
            self._replicas[parameter] = boxes.count((piece.offsets, piece.sizes))

    def share(self, parameters: Sequence[Tensor]) -> None:
        """Gather the parts of plain parameters that we split, in buckets: one travels while another is unpacked."""
        increment_version([p for p in parameters if is_dtensor(p)])  # autograd has not seen their shards change
        if not self.split or self.ranks == 1:
            return
        waiting: list[tuple[Any, Callable[[], None]]] = []
        for bucket in _buckets([p for p in parameters if not is_dtensor(p)]):
            waiting.append(self._start_gathering(bucket))
            if len(waiting) > 1:
                _finish(waiting.pop(0))
        for gathering in waiting:
            _finish(gathering)

    def _start_gathering(self, parameters: list[Tensor]) -> tuple[Any, Callable[[], None]]:
        # Of a scalar all ranks send what they have, and the first one's counts.
        pieces = [[slice_of(p, rank, self.ranks, None) for p in parameters] for rank in range(self.ranks)]
        lengths = [max(_numel(of_rank[i].sizes) for of_rank in pieces) for i in range(len(parameters))]
        sent = parameters[0].real.new_zeros(sum(lengths))
        received = sent.new_empty(self.ranks * sent.numel())
        mine = [piece.local(p) for p, piece in zip(parameters, pieces[self.rank], strict=True)]
        _copy([_read(part, into) for part, into in zip(torch.split(sent, lengths), mine, strict=True)], mine)
        # As bytes: backends differ in the dtypes they know.
        work = _all_gather(received.view(torch.uint8), sent.view(torch.uint8), group=self.group, async_op=True)

        def unpack() -> None:
            targets, sources = [], []
            for rank, flat in enumerate(received.chunk(self.ranks)):
                for parameter, piece, part in zip(parameters, pieces[rank], torch.split(flat, lengths), strict=True):
                    if rank != self.rank and (rank == 0 or piece.placements):
                        targets.append(piece.local(parameter))
                        sources.append(_read(part, targets[-1]))
            _copy(targets, sources)

        return work, unpack

    def _mesh(self, device_type: str) -> Any:  # noqa: ANN401 - a DeviceMesh
        if device_type not in self._meshes:
            from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415

            self._meshes[device_type] = DeviceMesh.from_group(self.group, device_type)
        return self._meshes[device_type]


def choose(process_group: Any, parameters: Sequence[Any]) -> Sharding:  # noqa: ANN401 - a ProcessGroup or None
    """The sharding for these parameters: over the group that was given, over the ranks of DTensors, or none."""
    if process_group is not None:
        return Sharded(process_group, split=True)
    meshes = [parameter.device_mesh for parameter in parameters if is_dtensor(parameter)]
    return Sharded(_group_of(meshes), split=False) if meshes else Local()


def reduce_together(sharding: Sharding, partials: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Sum each inner list over its devices and over all ranks, with one all-reduce for everything.

    Args:
        sharding: over which ranks.
        partials: for each matrix (or batch of them) its sums, one tensor per device.

    Returns:
        the same nested lists, with the same total on each device of an inner list.
    """
    totals = []
    for by_device in partials:
        total = by_device[0]
        for other in by_device[1:]:
            total = total + other.to(total.device)
        totals.append(total)
    if totals and not sharding.alone:
        home = totals[0].device
        flat = sharding.all_reduce(torch.cat([total.reshape(-1).to(home) for total in totals]))
        parts = torch.split(flat, [total.numel() for total in totals])
        totals = [part.view(total.shape) for part, total in zip(parts, totals, strict=True)]
    return [
        [total.to(partial.device) for partial in by_device] for total, by_device in zip(totals, partials, strict=True)
    ]


def check_group(process_group: Any) -> None:  # noqa: ANN401 - anything a user passes
    """Raise unless this is a process group that exists."""
    if not dist.is_available() or not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            f"GGT: process_group must be a torch.distributed.ProcessGroup or None, got {process_group!r}; e.g. "
            "torch.distributed.group.WORLD after init_process_group(), or device_mesh.get_group()"
        )
    _check_alive(process_group)


def _check_alive(group: Any) -> None:  # noqa: ANN401 - a ProcessGroup
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "GGT: its process group does not exist: torch.distributed is not initialized, or was destroyed. Call "
            "torch.distributed.init_process_group() first, and make the optimizer after it."
        )
    try:
        dist.get_backend(group)
    except (ValueError, RuntimeError) as error:
        raise RuntimeError(
            "GGT: its process group was destroyed; make a new group and a new optimizer, and load its state_dict"
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
        f"GGT: the parameters are DTensors on ranks {sorted(ranks)}, and there is no process group of exactly these; "
        "give process_group=torch.distributed.new_group(ranks)"
    )


def _compare(everyone: list[dict[str, Any]]) -> None:
    """Raise, alike on every rank, where the claims of the ranks differ."""
    failed = [f"rank {rank}: {claim['error']}" for rank, claim in enumerate(everyone) if claim["error"] is not None]
    if failed:
        raise RuntimeError(f"GGT: another rank of the process group has failed. {'; '.join(failed)}")
    first = everyone[0]
    for rank, claim in enumerate(everyone):
        if claim["options"] != first["options"]:
            raise ValueError(
                f"GGT: ranks disagree: rank 0 has {first['options']}, rank {rank} has {claim['options']}. All ranks "
                "must make the same optimizer, load the same state, and have gradients for the same parameters."
            )
        for one, other in zip(first["parameters"], claim["parameters"], strict=True):
            if one != other:
                raise ValueError(
                    f"GGT: ranks disagree on a parameter: rank 0 has {_words(one)}, rank {rank} has {_words(other)}. "
                    "All ranks must give the same list in the same order."
                )


def _words(parameter: tuple[str, tuple[int, ...], str]) -> str:
    name, shape, dtype = parameter
    return f"{name} of shape {shape} and dtype {dtype}"


def _check_tiling(name: str, piece: Piece, boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    held = sum(_numel(sizes) for _, sizes in set(boxes))
    if held != piece.numel:
        raise ValueError(
            f"GGT: the ranks of the process group hold {held} of the {piece.numel} elements of {name}; give "
            "process_group the group of all ranks that hold a part of it"
        )


def _all_gather(received: Tensor, sent: Tensor, **options: Any) -> Any:  # noqa: ANN401 - a Work
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    return gather(received, sent, **options)


def _numel(sizes: tuple[int, ...]) -> int:
    return torch.Size(sizes).numel()


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one device and dtype, of about `_BUCKET` elements together."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for alike in kinds.values():
        bucket: list[Tensor] = []
        for parameter in alike:
            bucket.append(parameter)
            if sum(p.numel() for p in bucket) >= _BUCKET:
                yield bucket
                bucket = []
        if bucket:
            yield bucket


def _read(flat: Tensor, like: Tensor) -> Tensor:
    """The first elements of ``flat`` in the shape of ``like``."""
    return flat[: like.numel()].view(like.shape)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def _finish(gathering: tuple[Any, Callable[[], None]]) -> None:
    work, unpack = gathering
    work.wait()
    unpack()
