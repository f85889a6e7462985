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
    """The real and imaginary parts of a complex tensor; a real tensor does not change.

    It is a view. Only a conjugate that torch has not computed yet, as autograd makes them, is computed for it.
    """
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


class Layout:
    """Which columns of a flat vector belong to which parameter, in the order of the parameters.

    A complex parameter owns two columns per element. Every parameter starts at a multiple of ``alignment`` columns. The
    columns between parameters belong to no parameter and stay zero, which changes no inner product.
    """

    def __init__(self, parameters: Sequence[Tensor], alignment: int = 1) -> None:
        self._shapes = [as_real(p).shape for p in parameters]
        self.numels = [shape.numel() for shape in self._shapes]  #: The number of real elements of each parameter.
        self.numel = sum(self.numels)  #: d, the number of elements of all parameters.
        #: The first column of each parameter, and the number of all columns.
        self.borders = [0, *itertools.accumulate(-(-numel // alignment) * alignment for numel in self.numels)]
        self.columns = self.borders[-1]  #: The length of a flat vector.

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat`` (..., columns), one per parameter, of shape (..., *parameter.shape)."""
        return [
            flat[..., start : start + shape.numel()].view((*flat.shape[:-1], *shape))
            for start, shape in zip(self.borders, self._shapes, strict=False)
        ]
