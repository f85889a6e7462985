"""A list of parameters as spans of one flat vector."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_ggt.kernels.spans import ALIGNMENT

__all__ = ["Layout", "as_real"]


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as its real and imaginary parts, a view; any other tensor as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Layout:
    """Which columns of a flat vector belong to which parameter, in the order of the parameters.

    Args:
        parameters: the owners of the columns. A complex parameter owns two columns per element.

    Attributes:
        parameters: as given.
        numel: d, the number of elements.
        columns: d, rounded up to a multiple of `ALIGNMENT`, so that every row of a window starts where the memory's
            sectors do. The columns at the end belong to nobody and stay zero.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self._shapes = [as_real(p).shape for p in self.parameters]
        self.numel = sum(shape.numel() for shape in self._shapes)
        self.columns = -(-self.numel // ALIGNMENT) * ALIGNMENT

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat`` (..., columns), one per parameter, of shape (..., *parameter.shape)."""
        spans = torch.split_with_sizes(flat[..., : self.numel], [shape.numel() for shape in self._shapes], dim=-1)
        return [span.view((*flat.shape[:-1], *shape)) for span, shape in zip(spans, self._shapes, strict=True)]
