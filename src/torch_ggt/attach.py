"""Blocks made to hold what the optimizer's state says, on all ranks together.

State is new at the first step, after loading, when a parameter gets its first gradient, and when somebody has replaced
it. What is new is compared with the other ranks first, then made, and put in place once all of them have made it.
"""

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torch_ggt.block import WHOLE_BLOCK_KEYS, Block
from torch_ggt.members import Group, State, check_dense, common_device, describe
from torch_ggt.sharding import Claim, Sharding, digest
from torch_ggt.window import Window, mend_gram

__all__ = ["attach", "stale"]

# What ranks must have in common, beside their parameters.
_AGREED = (
    *("scope", "betas", "eps", "window", "window_dtype", "history", "sgd_scale", "jitter", "nesterov"),
    *("adjust_lr_fn", "solver", "nonfinite"),
)
_MENDED = (
    "GGT: the rows of the window in optimizer.state were changed, and their Gram matrix was computed anew. If that was "
    "not you, load the last checkpoint."
)
_DAMAGED = (
    "GGT: the rows in this state are not those that its Gram matrix was made of: they were damaged or lost on their "
    "way. The state was refused, and the optimizer has none now: load another one. Two ways that do this: "
    "broadcast_from_rank0 with tensors that are not contiguous (call .contiguous() on them, or load the state on every "
    "rank); and torch.save of one rank's state_dict(), which has its own part of a window alone (docs/distributed.md "
    "says how to save)."
)


def stale(
    matrices: list[list[Block]], state: State, *, allot: bool
) -> list[list[tuple[Block, list[tuple[Group, Tensor]]]]]:
    """The matrices whose flat tensors do not hold what ``state`` says: their blocks, with the members to be allotted.

    Args:
        matrices: full matrices, each as its blocks, one per device.
        state: the optimizer's state.
        allot: give columns to parameters that have a gradient and none yet.
    """
    wanted = [[(block, block.allotment(state, allot=allot)) for block in blocks] for blocks in matrices]
    return [
        parts
        for parts in wanted
        if not all(block.is_current(allotted, state) for block, allotted in parts) and any(a for _, a in parts)
    ]


def attach(
    matrices: list[list[Block]],
    state: State,
    sharding: Sharding,
    *,
    allot: bool,
    ask: bool = False,
    loaded: bool = False,
) -> bool:
    """Make the flat tensors of the blocks hold what ``state`` says.

    Args:
        matrices: full matrices, each as its blocks, one per device.
        state: the optimizer's state.
        sharding: that the blocks were made with.
        allot: give columns to parameters that have a gradient and none yet.
        ask: compare with other ranks even if nothing is to be made here.
        loaded: the state comes from a checkpoint: raise ValueError if rows and Gram do not belong together.

    Returns:
        whether there was something to compare or to make.
    """
    waiting = stale(matrices, state, allot=allot)
    if not waiting and not ask:
        return False
    drafts: list[list[tuple[Window, Callable[[], None]]]] = []

    def make() -> Claim:
        for parts in waiting:
            matrix = [member for _, allotted in parts for member in allotted]
            drafts.append([block.draft(allotted, matrix, state) for block, allotted in parts if allotted])
        return Claim("windows are made")

    sharding.agree(lambda: _claim(waiting, matrices, state))
    sharding.agree(make)  # there may not be memory for one of them
    for parts, drafted in zip(waiting, drafts, strict=True):
        matrix = [member for _, allotted in parts for member in allotted]
        if _resumed(matrix, state):
            complete = all("window" in state.get(p, {}) for block, _ in parts for _, p in block.members)
            if mend_gram([window for window, _ in drafted]) and complete:
                if loaded:
                    raise ValueError(_DAMAGED)
                warnings.warn(_MENDED, stacklevel=4)
    for parts, drafted in zip(waiting, drafts, strict=True):  # only now: a failure above leaves the state as it was
        for block, allotted in parts:
            if not allotted:
                block.forget()
        for _, commit in drafted:
            commit()
    return True


def _resumed(matrix: list[tuple[Group, Tensor]], state: State) -> bool:
    return any("gram" in state.get(parameter, {}) for _, parameter in matrix)


def _claim(
    waiting: list[list[tuple[Block, list[tuple[Group, Tensor]]]]], matrices: list[list[Block]], state: State
) -> Claim:
    """What all ranks must agree on before any of them makes a window."""
    options: list[Any] = []
    parameters: list[tuple[str, Tensor]] = []
    for parts in waiting:
        matrix = [member for _, allotted in parts for member in allotted]
        for _, parameter in matrix:
            common_device([parameter])
        check_dense(matrix)
        block = parts[0][0]
        entries = [state[p] for _, p in matrix if "gram" in state.get(p, {})]
        counts = [int(entry["count"]) for entry in entries if "count" in entry]
        small = [entry[key] for entry in entries for key in WHOLE_BLOCK_KEYS if key in entry]
        made_with = {key: block.options[key] for key in _AGREED if key in block.options}
        made_with |= {"parameters": len(matrix), "rows in the window": counts, "digest of the state": digest(small)}
        options.append(made_with)
        parameters += [(describe(group, parameter, shape=False), parameter) for group, parameter in matrix]
    members = [member for blocks in matrices for block in blocks for member in block.members]
    gradients = [(describe(group, parameter, shape=False), parameter.grad is not None) for group, parameter in members]
    if not waiting:  # no parameter is compared by itself
        options.append({"dtypes of all parameters": sorted({str(parameter.dtype) for _, parameter in members})})
    return Claim(options, parameters, gradients)
