"""A saved optimizer: what a ``state_dict`` holds, how it is checked, and how it comes back unchanged.

``torch.optim.Optimizer.load_state_dict`` casts every state tensor to the dtype of its parameter, integers included. A
bfloat16 window, a float64 Gram matrix and int64 counters must come back as they were, so they travel past that cast in
a wrapper (`Carried`). The version of the format stands in every param group, which all tools of torch keep.
"""

from typing import Any

import torch
from torch import Tensor

from torch_ggt.distributed.columns import Columns
from torch_ggt.distributed.pieces import is_dtensor
from torch_ggt.formats import scale_key
from torch_ggt.options import OPTIONS, plain
from torch_ggt.parameters import Group
from torch_ggt.state.block import parameter_keys
from torch_ggt.state.checks import FORMAT_KEY, FORMAT_VERSION, OPTIONS_KEY, PART_KEY, digest_of_options, numbered, sums
from torch_ggt.state.rows import numbers_of
from torch_ggt.state.sums import SUMS_KEY

__all__ = ["carry", "complete", "consolidated", "snapshot"]


class Carried:
    """A tensor that `Optimizer.load_state_dict` does not recognize as one, and so leaves alone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def carry(state_dict: dict[str, Any], groups: list[Group]) -> dict[str, Any]:
    """``state_dict`` with every state tensor wrapped, and the callables of ``groups`` in place of their names."""
    state = {
        index: {key: Carried(value) if isinstance(value, Tensor) else value for key, value in entry.items()}
        for index, entry in state_dict["state"].items()
    }
    saved_groups = [
        {**theirs, "finish": ours["finish"]} if callable(ours["finish"]) else theirs
        for theirs, ours in zip(state_dict["param_groups"], groups, strict=False)
    ]
    return {**state_dict, "state": state, "param_groups": [*saved_groups, *state_dict["param_groups"][len(groups) :]]}


def complete(state: dict[Any, dict[str, Any]], groups: list[Group]) -> None:
    """Take the wrappers off a state that torch has loaded, and give its param groups the options that it lacks."""
    for entry in state.values():
        entry.pop(SUMS_KEY, None)  # they belong to a file: a step would make them untrue
        for key, value in entry.items():
            if isinstance(value, Carried):
                entry[key] = value.tensor
    for group in groups:
        group.pop(OPTIONS_KEY, None)
        group[FORMAT_KEY] = FORMAT_VERSION
        for name, option in OPTIONS.items():
            group.setdefault(name, option.default)


# ---- saving --------------------------------------------------------------------------------------------------------


def snapshot(
    state_dict: dict[str, Any], groups: list[Group], columns: Columns, chosen: set[int] | None = None
) -> dict[str, Any]:
    """What torch has packed, consistent in all its parts; with ``chosen``, the state of parameters with these ids only.

    On a CPU, and where columns are split, everything is a copy. On one GPU everything refers to the live tensors, as
    the state_dict of every torch optimizer does; it has no sums then, which the next step would make untrue. Where
    columns are split, the parts are DTensors.
    """
    tensors = [value for entry in state_dict["state"].values() for value in entry.values()]
    copies = not columns.alone or any(isinstance(t, Tensor) and t.device.type == "cpu" for t in tensors)
    state = {}
    order = list(numbered(state_dict["param_groups"], groups))
    places = [place for place, (index, _, _) in enumerate(order) if "window" in state_dict["state"].get(index, {})]
    for place, (index, group, parameter) in enumerate(order):
        entry = state_dict["state"].get(index)
        if entry is None or (chosen is not None and id(parameter) not in chosen):
            continue
        if copies:
            entry = {key: _copied(value) for key, value in entry.items()}
            piece = columns.piece(parameter)
            parts = {key: entry[key] for key in parameter_keys(group, parameter) if key in entry}
            numbers = numbers_of(group, entry, piece.sizes)
            if place in places:
                own_sums = sums(place, places, (group, parameter), entry, parts | numbers)
            if piece.mesh is not None:  # blocks end where this rank ends: see `rows`
                parts |= numbers
                entry = {key: value for key, value in entry.items() if key not in map(scale_key, numbers)}
            if place in places:
                parts[SUMS_KEY] = own_sums
            entry |= {key: piece.present(part) for key, part in parts.items()}
        state[index] = entry
    named = [{**group, "finish": plain(group["finish"])} for group in state_dict["param_groups"]]
    if copies:  # a scheduler changes a tensor lr in place
        named = [{k: v.clone() if isinstance(v, Tensor) else v for k, v in group.items()} for group in named]
    if copies and state:
        named = [{**group, OPTIONS_KEY: digest_of_options(group)} for group in named]
    found = {**state_dict, "state": state, "param_groups": named}
    if not columns.alone and state:
        found[PART_KEY] = {"rank": columns.rank, "ranks": columns.ranks}
    return found


def consolidated(state_dict: dict[str, Any], *, keep: bool) -> dict[str, Any] | None:
    """The parts of all ranks put together, as plain tensors on the CPU; every rank must call this.

    Args:
        state_dict: what `snapshot` returned on this rank.
        keep: whether this rank wants the result; the others get None.
    """
    state: dict[Any, dict[str, Any]] = {}
    for index, entry in state_dict["state"].items():
        for key, value in entry.items():  # one at a time: memory holds one whole tensor beside the parts
            put_together = value.full_tensor() if is_dtensor(value) else value
            if keep:
                is_tensor = isinstance(put_together, Tensor)
                state.setdefault(index, {})[key] = put_together.cpu() if is_tensor else put_together
    return {"state": state, "param_groups": state_dict["param_groups"]} if keep else None


def _copied(value: Any) -> Any:  # noqa: ANN401 - a tensor, or what a user has put there
    # Contiguous, because torch's broadcast_from_rank0 with gloo sends the bytes of a view in another order than they
    # are received (torch 2.13).
    return value.detach().clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value
