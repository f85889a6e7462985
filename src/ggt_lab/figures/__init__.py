"""Figures: they read results and never train."""

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["drawn"]

_T = TypeVar("_T")


def drawn(draw: Callable[[], Sequence[_T]]) -> Sequence[_T]:
    """What ``draw`` returns; nothing, with a warning, on a machine without matplotlib."""
    try:
        return draw()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        warnings.warn(
            "matplotlib is not installed: no figures. Run the same command where it is installed to draw them.",
            stacklevel=2,
        )
        return []
