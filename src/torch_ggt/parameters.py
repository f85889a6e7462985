"""What a parameter is called in an error, which parameters cannot be stepped, and whose line a warning names."""

import sys
import warnings
from collections.abc import MutableMapping
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

__all__ = ["Group", "Member", "State", "check_dense", "common_device", "describe", "not_a_model", "warn"]

Group = dict[str, Any]
"""A param group: its options, and its parameters under "params"."""
Member = tuple[Group, Tensor]
"""A parameter with the param group that it belongs to."""
State = MutableMapping[Tensor, dict[str, Any]]
"""The state of an optimizer: a dictionary for each parameter."""


def describe(group: Group, parameter: Tensor, *, shape: bool = True) -> str:
    """A parameter in words: by its name if the optimizer was given names, else by its place in its group."""
    named = "param_names" in group
    index = next((i for i, p in enumerate(group.get("params", ())) if p is parameter), None)
    words = f"parameter {group['param_names'][index]!r}" if named else f"parameter {index} of its group"
    if not shape or is_lazy(parameter):
        return words
    return f"{words} of shape {tuple(parameter.shape)}" if named else f"{words}, of shape {tuple(parameter.shape)},"


def not_a_model(params: Any) -> Any:  # noqa: ANN401 - whatever a user gives for the parameters
    """What was given, unless it is a model or an optimizer: torch's words for these do not lead on."""
    if isinstance(params, torch.nn.Module):
        raise TypeError(f"torch_ggt: give the parameters of the {type(params).__name__}, as in model.parameters()")
    if isinstance(params, torch.optim.Optimizer):
        raise TypeError(f"torch_ggt: to whiten the {type(params).__name__}, write whiten(optimizer)")
    return params


def check_dense(group: Group, parameter: Tensor) -> None:
    """Raise if the gradient of ``parameter`` is sparse."""
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise RuntimeError(
            f"torch_ggt does not support sparse gradients, and {describe(group, parameter)} has one. Use "
            "sparse=False in the embedding, or give that parameter to torch.optim.SparseAdam."
        )


def common_device(members: list[Member]) -> torch.device:
    """The one device of these parameters; raise if there are several, or if no step can be made on it."""
    device = members[0][1].device
    devices = {parameter.device.type for _, parameter in members}
    for group, parameter in members:
        if parameter.device != device and "meta" not in devices:
            raise RuntimeError(
                f"torch_ggt: one full matrix must be on one device, but {describe(*members[0])} is on {device} and "
                f"{describe(group, parameter)} is on {parameter.device}. Give each device a param group of its own "
                "and use scope='group', use scope='parameter', or make one optimizer for each device."
            )
    if "meta" in devices:
        raise RuntimeError(
            "torch_ggt: parameters are on the meta device and have no values to step; materialize the model first, "
            "e.g. model.to_empty(device=...)"
        )
    if "mps" in devices:
        raise RuntimeError("torch_ggt: the Gram matrix is float64, which the mps device does not have; use the CPU")
    return device


def warn(message: str) -> None:
    """Warn, and name the nearest line that is neither of torch nor of this package.

    How many frames lie between depends on the scheduler, the hooks and the scaler that surround a step.
    """
    level, frame = 2, cast(FrameType | None, sys._getframe(1))
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "torch_ggt"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
