"""One exchange before ranks act together: it checks that all ranks are about to do one thing.

It happens when state is made or loaded, and never in a steady step. A rank that cannot go on says so here. Then all
ranks raise, and no rank waits for another.
"""

import contextlib
import hashlib
import math
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from torch_ggt.distributed.lending import start_all_gather
from torch_ggt.distributed.owners import Box
from torch_ggt.distributed.pieces import Piece

__all__ = ["Claim", "agree", "digest", "waiting"]


class Claim(NamedTuple):
    """What a rank is about to do."""

    options: Any  #: What must be equal on all ranks.
    parameters: Sequence[tuple[str, Tensor]] = ()  #: The parameters with their names, in order.
    gradients: Sequence[tuple[str, bool]] = ()  #: The names of parameters, and whether each has a gradient.


@contextlib.contextmanager
def waiting(group: Any, what: str) -> Iterator[None]:  # noqa: ANN401 - a ProcessGroup
    """Add to an error of torch.distributed which rank this is, and in what it was left alone."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(
            f"torch_ggt: rank {dist.get_rank(group)} of {dist.get_world_size(group)} was in {what}, which every rank "
            "must join, and another rank has failed, has ended, or does something else. Look for the first error of "
            "the other ranks; docs/distributed.md says which calls all ranks must make."
        )
        raise


def _meet(group: Any) -> None:  # noqa: ANN401 - a ProcessGroup
    """With gloo, wait for all ranks in a way that names those that do not come."""
    if dist.get_backend(group) == "gloo":
        timeout = group._get_backend(torch.device("cpu")).options._timeout  # the barrier has a default of its own
        dist.monitored_barrier(group, timeout=timeout, wait_all_ranks=True)


def agree(group: Any, claim: Callable[[], Claim], piece_of: Callable[[Tensor], Piece]) -> dict[Tensor, list[Box]]:  # noqa: ANN401
    """Compare the claims of all ranks; for each parameter, the boxes that the ranks hold.

    If ``claim`` raises on one rank, every rank raises. ``piece_of`` gives the piece of a parameter on this rank.
    """
    given, held, error, words = Claim(None), [], None, None
    try:
        given = claim()
        held = [(name, parameter, piece_of(parameter)) for name, parameter in given.parameters]
    except Exception as problem:
        error, words = problem, f"{type(problem).__name__}: {problem}"
    parameters = [(name, piece.shape, str(parameter.dtype)) for name, parameter, piece in held]
    mine = {"error": words, "options": given.options, "gradients": list(given.gradients), "parameters": parameters}
    # The claims of a thousand ranks are long, and mostly equal. So ranks compare hashes first.
    fingerprint = hashlib.sha256(repr(mine).encode()).digest()
    with waiting(group, "the exchange when state is made or loaded"):
        _meet(group)
        everyone = _gathered(group, (fingerprint, [(piece.offsets, piece.sizes) for _, _, piece in held]))
    if any(theirs != everyone[0][0] for theirs, _ in everyone) or error is not None:
        claims = _gathered(group, mine)
        if error is not None:
            raise error
        _compare(claims)
    found = {parameter: [boxes[index] for _, boxes in everyone] for index, (_, parameter, _) in enumerate(held)}
    for name, parameter, piece in held:
        _check_whole(name, piece, found[parameter])
    return found


def digest(tensors: Sequence[Tensor]) -> int:
    """A checksum of the bits of these tensors: other bits most probably give another number."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist()), found)
    return found


def _gathered(group: Any, value: Any) -> list[Any]:  # noqa: ANN401 - anything that can be pickled
    """The values of all ranks. torch's all_gather_object lends tensors that we could not wait for (`lending`)."""
    device = dist.get_backend_config(group).split(":")[0]  # "cpu:gloo,cuda:nccl"
    mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    lengths = _all_gathered(group, torch.tensor([len(mine)], device=device))
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(mine)] = mine
    everyone = bytes(_all_gathered(group, padded))
    starts = range(0, len(everyone), len(padded))
    return [pickle.loads(everyone[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def _all_gathered(group: Any, sent: Tensor) -> list[int]:  # noqa: ANN401 - a ProcessGroup
    received, loan = start_all_gather(sent, group)
    loan.settle()
    return received.tolist()


def _compare(everyone: list[dict[str, Any]]) -> None:
    """Raise one error on every rank if the claims of the ranks differ."""
    failed = [f"rank {rank}: {claim['error']}" for rank, claim in enumerate(everyone) if claim["error"] is not None]
    if failed:
        raise RuntimeError(f"torch_ggt: another rank of the process group has failed. {'; '.join(failed)}")
    first = everyone[0]
    for rank, claim in enumerate(everyone):
        for (name, one), (other_name, other) in zip(first["gradients"], claim["gradients"], strict=False):
            if name == other_name and one != other:
                has, has_not = (0, rank) if one else (rank, 0)
                raise ValueError(
                    f"torch_ggt: ranks disagree: rank {has} has a gradient for {name}, and rank {has_not} has none. "
                    "All ranks must have gradients for the same parameters; a gradient of zeros will do."
                )
        if claim["options"] != first["options"]:
            raise ValueError(
                f"torch_ggt: ranks disagree: rank 0 has {first['options']}, rank {rank} has {claim['options']}. All "
                "ranks must make the same optimizer, load the same state, and have gradients for the same parameters."
            )
        for one, other in zip(first["parameters"], claim["parameters"], strict=True):
            if one != other:
                ours, theirs = ("{} of shape {} and dtype {}".format(*parameter) for parameter in (one, other))
                raise ValueError(
                    f"torch_ggt: ranks disagree on a parameter: rank 0 has {ours}, rank {rank} has {theirs}. "
                    "All ranks must give the same list in the same order."
                )


def _check_whole(name: str, piece: Piece, boxes: list[Box]) -> None:
    """The boxes of all ranks together must be the whole parameter."""
    held = sum(math.prod(sizes) for _, sizes in set(boxes))
    if held != piece.numel:
        raise ValueError(
            f"torch_ggt: the ranks of the process group hold {held} of the {piece.numel} elements of {name}; set "
            "process_group to the group of all ranks that hold a part of it"
        )
