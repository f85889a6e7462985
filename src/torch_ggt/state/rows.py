"""Rows of integers and scales (`formats.BlockFormat`) in a state: as they are, or as numbers.

A parameter that is whole in one process saves its integers and scales. A parameter that is split over ranks saves
numbers, integer times scale in float32: a block belongs to the columns of one rank, and torch's tools may split the
state anew. Numbers of blocks that are split as before become the integers that they were, bit for bit. Otherwise they
are rounded once more, and the Gram matrix is computed anew.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ggt.distributed.pieces import whole
from torch_ggt.formats import BlockFormat, Format, format_of, scale_key
from torch_ggt.parameters import Group, Member
from torch_ggt.rules import RULES
from torch_ggt.state.block import Block

__all__ = ["Forms", "expected_rows", "integers_here", "numbers_of"]

Forms = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""By key, the shape and dtype of a tensor of the state."""


def numbers_of(group: Group, entry: dict[str, Any], shape: Sequence[int]) -> dict[str, Tensor]:
    """By window, the rows (r, *shape) that an entry of the state has as integers and scales, as numbers."""
    found = {}
    for name in ("window", *RULES[group["history"]].windows):
        if name in entry and scale_key(name) in entry:
            stored = format_of(group["window_dtype"])
            assert isinstance(stored, BlockFormat)  # only such a format has scales
            found[name] = stored.numbers(entry[name], entry[scale_key(name)], shape)
    return found


def expected_rows(member: Member, stored: Format, entry: dict[str, Any]) -> Forms:
    """What must hold the rows of a parameter in a saved entry, in the form that the entry has."""
    group, parameter = member
    shape, size = tuple(whole(parameter).shape), group["window"]
    found: Forms = {}
    for name in ("window", *RULES[group["history"]].windows):
        as_numbers = stored.coded and getattr(entry.get(name), "dtype", None) == stored.wide
        found |= {name: ((size, *shape), stored.wide)} if as_numbers else stored.state(name, size, shape)
    return found


def integers_here(
    block: Block, index: int, entry: dict[str, Any], local: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """By key, the integers and scales of the columns of a parameter that are here.

    Args:
        block: of the parameter ``allotted[index]``.
        index: its place.
        entry: its state, in either form.
        local: cuts numbers (r, *shape) to what is here.
    """
    found: dict[str, Tensor] = {}
    for name, window in block.windows.items():
        if not isinstance(window.format, BlockFormat) or name not in entry:
            continue
        keys = name, scale_key(name)
        if keys[1] not in entry:
            numbers = entry[name]
        elif all(entry[key].shape == block.window_views[key][index].shape for key in keys):
            found |= {key: entry[key] for key in keys}
            continue
        else:
            numbers = numbers_of(block.allotted[index][0], entry, block.pieces[index].shape)[name]
        found |= dict(zip(keys, window.format.integers(local(numbers)), strict=True))
    return found
