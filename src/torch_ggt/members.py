"""Parameters as members of full matrices: which belong together, what one is called, and which cannot be stepped."""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["Group", "State", "check_dense", "common_device", "describe", "partition"]

Group = dict[str, Any]
State = MutableMapping[Tensor, dict[str, Any]]


def partition(groups: list[Group]) -> list[list[tuple[Group, Any]]]:
    """The (param group, parameter) pairs of each full matrix; of saved groups, the pairs with saved indices."""
    by_group = [[(group, p) for p in group["params"]] for group in groups]
    members = [member for part in by_group for member in part]
    parts = {"model": [members], "group": by_group, "parameter": [[member] for member in members]}
    return [part for part in parts[groups[0]["scope"]] if part]


def describe(group: Group, parameter: Tensor, *, shape: bool = True) -> str:
    """A parameter in words: by name if the optimizer was given names, else by its place in its group."""
    named = "param_names" in group
    index = next((i for i, p in enumerate(group.get("params", ())) if p is parameter), None)
    words = f"parameter {group['param_names'][index]!r}" if named else f"parameter {index} of its group"
    if not shape:
        return words
    return f"{words} of shape {tuple(parameter.shape)}" if named else f"{words}, of shape {tuple(parameter.shape)},"


def check_dense(members: list[tuple[Group, Tensor]]) -> None:
    """Raise if a gradient is sparse."""
    for group, parameter in members:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            raise RuntimeError(
                f"GGT does not support sparse gradients, and {describe(group, parameter)} has one. Use "
                "sparse=False in the embedding, or give that parameter to torch.optim.SparseAdam."
            )


def common_device(parameters: list[Tensor]) -> torch.device:
    """The device of these parameters, which must be one on which steps can be made."""
    devices = list(dict.fromkeys(p.device for p in parameters))
    if len(devices) > 1:
        raise RuntimeError(
            f"GGT: parameters that were on one device are on several now ({', '.join(map(str, devices))}). Move the "
            "model before the optimizer is made, or make a new optimizer and load the old one's state_dict()."
        )
    if devices[0].type == "meta":
        raise RuntimeError(
            "GGT: parameters are on the meta device and have no values to step; materialize the model first, "
            "e.g. model.to_empty(device=...)"
        )
    if devices[0].type == "mps":
        raise RuntimeError("GGT: the Gram matrix is float64, which the mps device does not have; use the CPU")
    return devices[0]
