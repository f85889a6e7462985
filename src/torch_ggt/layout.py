"""A list of parameters as spans of one flat vector."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "Layout", "as_real"]

ALIGNMENT = 64
"""Rows, and the columns of each parameter, start at multiples of this many elements. Zeros fill the gaps. Then a GPU
loads 16 bytes of bfloat16 at a time, in whole sectors of memory. Kernels with other starts are correct but slower."""


def as_real(tensor: Tensor) -> Tensor:
    """A view of a complex tensor as its real and imaginary parts; a real tensor does not change."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Layout:
    """Which columns of a flat vector belong to which parameter, in the order of the parameters.

    Args:
        parameters: the owners of the columns. A complex parameter owns two columns per element.
        alignment: every parameter starts at a multiple of this many columns. Columns between parameters belong to
            no parameter and stay zero, which changes no inner product.

    Attributes:
        parameters: the given parameters.
        numels: the number of real elements of each parameter.
        borders: the first column of each parameter, and the number of all columns.
    """

    def __init__(self, parameters: Sequence[Tensor], alignment: int = 1) -> None:
        self.parameters = list(parameters)
        self._shapes = [as_real(p).shape for p in self.parameters]
        self.numels = [shape.numel() for shape in self._shapes]
        self.borders = [0, *itertools.accumulate(-(-numel // alignment) * alignment for numel in self.numels)]

    @property
    def numel(self) -> int:
        """d, the number of elements of all parameters."""
        return sum(self.numels)

    @property
    def columns(self) -> int:
        """The length of a flat vector."""
        return self.borders[-1]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat`` (..., columns), one per parameter, of shape (..., *parameter.shape)."""
        return [
            flat[..., start : start + shape.numel()].view((*flat.shape[:-1], *shape))
            for start, shape in zip(self.borders, self._shapes, strict=False)
        ]
