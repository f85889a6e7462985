"""What a saved GGT looks like, and how it comes back unchanged.

``torch.optim.Optimizer.load_state_dict`` casts every state tensor to its parameter's dtype, integers included. A
bfloat16 window, a float64 Gram and int64 counters must come back as they were, so they travel past that cast in a
wrapper (`Carried`). The format's version stands in every param group, the one place that all of torch's tools keep.
"""

from typing import Any

import torch
from torch import Tensor

from torch_ggt.block import WHOLE_BLOCK_KEYS
from torch_ggt.members import partition
from torch_ggt.sharding import digest

__all__ = ["FORMAT_KEY", "FORMAT_VERSION", "Carried", "carry", "check_loadable", "in_one_piece", "summary", "unpack"]

FORMAT_KEY = "ggt_format"
FORMAT_VERSION = 1

# What the saved tensors were made with: another value here cannot continue them.
_STRUCTURE = ("window", "window_dtype", "history", "scope")


class Carried:
    """A tensor that `Optimizer.load_state_dict` does not recognize as one, and so leaves alone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def carry(state_dict: dict[str, Any]) -> dict[str, Any]:
    """``state_dict`` with every state tensor wrapped."""
    state = {
        index: {key: Carried(value) if isinstance(value, Tensor) else value for key, value in entry.items()}
        for index, entry in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def unpack(entry: dict[str, Any]) -> None:
    """Take the wrappers off one parameter's state, in place."""
    for key, value in entry.items():
        if isinstance(value, Carried):
            entry[key] = value.tensor


def check_loadable(state_dict: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Raise ValueError unless ``state_dict`` can continue in an optimizer with these param groups.

    Checked before anything is touched. A different layout of groups is left to torch's own check.
    """
    saved_groups = state_dict["param_groups"]
    if [len(g["params"]) for g in saved_groups] != [len(g["params"]) for g in groups]:
        return
    for number, (saved, live) in enumerate(zip(saved_groups, groups, strict=True)):
        if FORMAT_KEY not in saved:
            raise ValueError(
                "GGT: this is not the state of a GGT optimizer (its param groups carry no "
                f"{FORMAT_KEY!r}); options found: {sorted(saved)}"
            )
        if saved[FORMAT_KEY] > FORMAT_VERSION:
            raise ValueError(
                f"GGT: this state has format {saved[FORMAT_KEY]}, and this version of torch-ggt reads up to "
                f"{FORMAT_VERSION}; upgrade torch-ggt"
            )
        for key in _STRUCTURE:
            if saved[key] != live[key]:
                raise ValueError(
                    f"GGT: the saved state was made with {key}={saved[key]!r} and this optimizer has "
                    f"{key}={live[key]!r} (param group {number}); make the optimizer with {key}={saved[key]!r} to "
                    "continue it, or start afresh without loading"
                )
        for index, parameter in zip(saved["params"], live["params"], strict=True):
            _check_shapes(state_dict["state"].get(index, {}), parameter, saved["window"], index)
    for members in partition(saved_groups):
        entries = [state_dict["state"].get(index, {}) for _, index in members]
        complete = [entry for entry in entries if all(key in entry for key in WHOLE_BLOCK_KEYS)]
        if any("window" in entry for entry in entries) and len(complete) != 1:
            raise ValueError(
                f"GGT: the saved state is incomplete: it holds rows of a window, but {len(complete)} parameters hold "
                f"all of {', '.join(WHOLE_BLOCK_KEYS)}, and exactly one must"
            )


def in_one_piece(state: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """``state`` with contiguous copies of views on a CPU.

    torch's ``broadcast_from_rank0`` with gloo sends the bytes of a view in another order than they are received (torch
    2.13); nccl refuses a view, and a copy from a GPU is none.
    """
    return {
        index: {
            key: value.contiguous() if isinstance(value, Tensor) and value.device.type == "cpu" else value
            for key, value in entry.items()
        }
        for index, entry in state.items()
    }


def summary(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What ranks that load a state together must have in common, small enough to compare."""
    entries = [entry for entry in state_dict["state"].values() if "count" in entry]
    small = [entry[key] for entry in entries for key in WHOLE_BLOCK_KEYS if isinstance(entry.get(key), Tensor)]
    return {
        "parameters in the saved groups": [len(group["params"]) for group in state_dict["param_groups"]],
        "saved rows": [int(entry["count"]) for entry in entries],
        "digest of the state": digest(small),
    }


def _check_shapes(entry: dict[str, Any], parameter: Tensor, size: int, index: int) -> None:
    shape = (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)
    expected_shapes = {
        **{"window": (size, *shape), "momentum_buffer": shape, "gram": (size, size), "decay": (size,)},
        **{"momentum": (size,), "position": (), "count": (), "skipped": ()},
    }
    for key, expected in expected_shapes.items():
        if key not in entry:
            continue
        found = tuple(entry[key].shape) if isinstance(entry[key], torch.Tensor) else entry[key]
        if found != expected:
            raise ValueError(
                f"GGT: saved state of parameter {index}: {key!r} of shape {found}, but the parameter needs {expected}: "
                "is this the state of another model?"
            )
