"""Where the columns of a window live. Every collective of the library belongs in this module and nowhere else.

The Gram of a window is a sum over columns, so that any split of the columns costs one all-reduce of a Gram row, r + 1
numbers, per step; all other work is local to its columns. The object that knows the split is handed in:

`Local`: all columns are in this process, on one device or several. `Sharded`: they are split over the ranks of a
process group, by DTensors that are there already or by us.

A piece of a parameter may be held by several ranks (replicas of a hybrid split, parameters that are not split). Each of
them adds its sums divided by the number of them, and the sum runs over all ranks. That is the sum over the split
dimensions of a mesh alone, and more: a number that is not finite on *any* rank reaches all of them, and all of them get
the same bits.

No rank may wait for one that has given up. So every step is exactly one all-reduce, of a length that was agreed before,
whether a rank can take the step or not. One that cannot sends NaN, so that none takes it, and says so in the last two
numbers (`Sharding.attempt`, `Sharding.gather_all`); what is new (parameters with a first gradient, another set of
gradients, loaded state) is compared in full before anybody acts on it (`Sharding.agree`).
"""

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import increment_version

from torch_ggt.pieces import Bucket, Piece, is_dtensor, piece_of_dtensor, slice_of, whole

__all__ = [
    "Claim",
    "Local",
    "Sharded",
    "Sharding",
    "check_group",
    "choose",
    "digest",
    "reduce_step",
    "reduce_together",
]

_ANOTHER_FAILED = (
    "GGT: another rank of the process group has failed in this step, and its error says why. Nothing was changed here."
)
_ONLY_SOME = (
    "GGT: ranks disagree: {who} has gradients for other parameters than in the step before, other dtypes, or another "
    "state, and {others} goes on as before. All ranks must have gradients for the same parameters, of the same dtypes, "
    "and load the same state. "
    "Nothing was changed."
)
# Elements that one all-gather brings in: enough to fill a network, and little beside a window.
_BUCKET = 2**24
_SIGNS = 2  # at the end of the sums of a step: how many ranks wait for the others, how many have failed


class Claim(NamedTuple):
    """What a rank is about to do."""

    options: Any
    """Must be the same on all ranks."""
    parameters: Sequence[tuple[str, Tensor]] = ()
    """Named, in order."""
    gradients: Sequence[tuple[str, bool]] = ()
    """Which parameters have one."""


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

    def attempt(self, length: int, device: torch.device) -> AbstractContextManager[None]:
        """Code that may fail on one rank, before the all-reduce of a step; then the step fails on all."""
        ...

    def gather_all(self, length: int, device: torch.device) -> None:
        """Instead of a step's all-reduce: return if all ranks call this, raise on all if some go on with the step."""
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

    def attempt(self, length: int, device: torch.device) -> AbstractContextManager[None]:
        """Nobody else has to know."""
        return contextlib.nullcontext()

    def gather_all(self, length: int, device: torch.device) -> None:
        """All are here."""

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
        self._buckets: tuple[list[Any], list[Bucket]] | None = None

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
        given, error = Claim(None), None
        pieces: list[Piece] = []
        try:
            given = claim()
            pieces = [self.piece(parameter) for _, parameter in given.parameters]
        except Exception as problem:
            given, pieces, error = Claim(None), [], problem
        named = given.parameters
        mine = {
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "options": given.options,
            "gradients": list(given.gradients),
            "parameters": [
                (name, piece.shape, str(parameter.dtype))
                for (name, parameter), piece in zip(named, pieces, strict=True)
            ],
        }
        # A thousand ranks have a lot to say, and mostly the same: words travel only where they differ.
        boxes = [(piece.offsets, piece.sizes) for piece in pieces]
        everyone = self._gather((hashlib.sha256(repr(mine).encode()).digest(), boxes))
        if any(fingerprint != everyone[0][0] for fingerprint, _ in everyone) or error is not None:
            claims = self._gather(mine)
            if error is not None:
                raise error
            _compare(claims)
        for index, ((name, parameter), piece) in enumerate(zip(named, pieces, strict=True)):
            of_ranks = [their_boxes[index] for _, their_boxes in everyone]
            _check_tiling(name, piece, of_ranks)
            self._replicas[parameter] = of_ranks.count((piece.offsets, piece.sizes))

    def _gather(self, value: Any) -> list[Any]:  # noqa: ANN401 - anything that can be pickled
        everyone: list[Any] = [None] * self.ranks
        dist.all_gather_object(everyone, value, group=self.group)
        return everyone

    @contextlib.contextmanager
    def attempt(self, length: int, device: torch.device) -> Iterator[None]:
        """What fails here is raised here, after the other ranks were told."""
        try:
            yield
        except Exception:
            with contextlib.suppress(RuntimeError):  # a group that is broken has nobody to be told
                self._absent(length, device, failed=True)
            raise

    def gather_all(self, length: int, device: torch.device) -> None:
        """See whether all ranks have something new to agree on."""
        waiting, failed = self._absent(length, device, failed=False)
        if failed:
            raise RuntimeError(_ANOTHER_FAILED)
        if waiting != self.ranks:
            raise RuntimeError(_ONLY_SOME.format(who="this rank", others="another"))

    def _absent(self, length: int, device: torch.device, *, failed: bool) -> list[int]:
        """Take part in the all-reduce of a step without taking it."""
        sums = torch.full((length + _SIGNS,), torch.nan, dtype=torch.float64, device=device)
        sums[-_SIGNS:] = torch.tensor([1.0, float(failed)])
        return [int(count) for count in self.all_reduce(sums)[-_SIGNS:].tolist()]

    def share(self, parameters: Sequence[Tensor]) -> None:
        """Gather the parts of plain parameters that we split, in buckets: one travels while another is unpacked."""
        increment_version([p for p in parameters if is_dtensor(p)])  # autograd has not seen their shards change
        if self.split and self.ranks > 1:
            self.gather_parts([p for p in parameters if not is_dtensor(p)])

    def gather_parts(self, parameters: list[Tensor]) -> None:
        """Make parameters whole of which each rank has changed its part."""
        waiting: list[tuple[Any, Bucket, Tensor]] = []
        for bucket in self._buckets_of(parameters):
            sent = bucket.pack()
            received = sent.new_empty(self.ranks * bucket.length)
            # As bytes: backends differ in the dtypes they know.
            work = _all_gather(received.view(torch.uint8), sent.view(torch.uint8), group=self.group, async_op=True)
            waiting.append((work, bucket, received))
            if len(waiting) > 1:
                _finish(*waiting.pop(0))
        for gathering in waiting:
            _finish(*gathering)

    def _buckets_of(self, parameters: list[Tensor]) -> list[Bucket]:
        kinds = [(id(p), p.device, p.dtype, p.shape, p.stride()) for p in parameters]
        if self._buckets is None or self._buckets[0] != kinds:
            self._buckets = kinds, [Bucket(part, self.rank, self.ranks) for part in _in_buckets(parameters)]
        return self._buckets[1]

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


def reduce_step(
    sharding: Sharding, partials: Sequence[Sequence[Tensor]], device: torch.device
) -> tuple[list[list[Tensor]], Callable[[], None]]:
    """`reduce_together` for the sums of a step, with a check that no rank was absent.

    Args:
        sharding: over which ranks.
        partials: as for `reduce_together`; of the length that was agreed.
        device: of the first of them.

    Returns:
        the sums, NaN if a rank was absent, and a call that raises then; it waits for the device.
    """
    if sharding.alone:
        return reduce_together(sharding, partials), lambda: None
    signs = torch.zeros(_SIGNS, dtype=torch.float64, device=device)
    *sums, (found,) = reduce_together(sharding, [*partials, [signs]])

    def check() -> None:
        waiting, failed = found.tolist()
        if failed:
            raise RuntimeError(_ANOTHER_FAILED)
        if waiting:
            raise RuntimeError(_ONLY_SOME.format(who="another rank", others="this one"))

    return sums, check


def digest(tensors: Sequence[Tensor]) -> int:
    """A number that differs where the bits of these tensors do, most probably."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist()), found)
    return found


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
        for (name, one), (other_name, other) in zip(first["gradients"], claim["gradients"], strict=False):
            if name == other_name and one != other:
                has, has_not = (0, rank) if one else (rank, 0)
                raise ValueError(
                    f"GGT: ranks disagree: rank {has} has a gradient for {name}, and rank {has_not} has none. All "
                    "ranks must have gradients for the same parameters; a gradient of zeros will do."
                )
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


def _in_buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one device and dtype, of about `_BUCKET` elements together."""
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


def _finish(work: Any, bucket: Bucket, received: Tensor) -> None:  # noqa: ANN401 - a Work
    work.wait()
    bucket.unpack(received)
