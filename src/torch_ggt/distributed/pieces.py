"""The part of a parameter whose columns are on this rank. This is only geometry: nothing here talks to other ranks.

A part is always a box (offsets and sizes) that a DTensor can describe. So the state of a parameter that is split over
ranks is a DTensor, even if the parameter is a plain tensor. torch's tools can save it, load it and split it again.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_ggt.layout import as_real

__all__ = ["Piece", "best_cut", "is_dtensor", "piece_of_dtensor", "slice_of", "whole"]

# Parts may be unequal by this share if an early dimension is cut for it: parts of the first dimension are contiguous.
_UNEQUAL = 1 / 32


@dataclass(frozen=True)
class Piece:
    """A box of one parameter, and how torch's tools see a tensor of the state that holds this box."""

    shape: tuple[int, ...]  #: The shape of the whole parameter; a complex parameter has a last dimension of 2.
    offsets: tuple[int, ...]  #: Where the box starts.
    sizes: tuple[int, ...]  #: The sizes of the box; one of them is 0 if this rank holds nothing of the parameter.
    mesh: Any = None  #: The DeviceMesh over which the parameter is split; None if it is not split.
    placements: tuple[Any, ...] = ()  #: The placements of the parameter on that mesh.

    @property
    def numel(self) -> int:
        """The number of elements of the whole parameter."""
        return math.prod(self.shape)

    def cut(self, tensor: Tensor) -> Tensor:
        """A view of the box of a whole plain tensor (..., *shape)."""
        if self.sizes == self.shape:
            return tensor
        leading = tensor.dim() - len(self.shape)
        for dim, (full, offset, size) in enumerate(zip(self.shape, self.offsets, self.sizes, strict=True), leading):
            if size != full:
                tensor = tensor.narrow(dim, min(offset, full), size)
        return tensor

    def local(self, tensor: Any) -> Tensor:  # noqa: ANN401 - a Tensor or a DTensor
        """A view of the box of the parameter or of its gradient, as real numbers."""
        if not is_dtensor(tensor):
            return self.cut(as_real(tensor))
        here = tensor.to_local()
        return as_real(here.wait() if hasattr(here, "wait") else here)  # a kernel may use its address: it must be here

    def present(self, part: Tensor) -> Tensor:
        """The tensor (..., *shape) whose box is ``part`` (..., *sizes). It is a DTensor if the parameter is split."""
        if self.mesh is None:
            return part
        from torch.distributed.tensor import DTensor  # noqa: PLC0415 - takes most of a second, and few users need it
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # noqa: PLC0415

        shape = torch.Size((*part.shape[: part.dim() - len(self.shape)], *self.shape))
        meta = TensorMeta(shape, torch.empty(shape, device="meta").stride(), part.dtype)
        # fully_shard does it in this way. from_local would copy a tensor that is offloaded to the CPU to the device.
        spec = DTensorSpec(self.mesh, self._placements(part), tensor_meta=meta)
        return DTensor(part, spec, requires_grad=False)  # type: ignore[no-untyped-call]

    def presents(self, value: Any) -> bool:  # noqa: ANN401 - a Tensor or a DTensor
        """Whether ``value`` is a DTensor that is split as `present` would split it."""
        alike = is_dtensor(value) and self.mesh is not None and value.device_mesh == self.mesh
        return bool(alike and value.placements == self._placements(value))

    def _placements(self, tensor: Tensor) -> tuple[Any, ...]:
        """The placements of a tensor that may have more dimensions in front than the parameter."""
        return tuple(_moved(placement, tensor.dim() - len(self.shape)) for placement in self.placements)


def _moved(placement: Any, by: int) -> Any:  # noqa: ANN401 - a Placement
    """The placement of a tensor that has ``by`` more dimensions in front."""
    if by == 0 or not hasattr(placement, "dim"):
        return placement
    factor = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    return type(placement)(placement.dim + by, **factor)


def is_dtensor(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor. The check does not import DTensor, which is slow."""
    return type(tensor) is not torch.nn.Parameter and type(tensor) is not Tensor and hasattr(tensor, "device_mesh")


def whole(parameter: Tensor) -> Piece:
    """The piece that is a whole parameter."""
    shape = (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)
    return Piece(shape, (0,) * len(shape), shape)


def piece_of_dtensor(parameter: Any) -> Piece:  # noqa: ANN401 - a DTensor, whose type is not imported here
    """The shard of a DTensor on this rank."""
    if any(placement.is_partial() for placement in parameter.placements):
        raise ValueError(f"torch_ggt: a parameter with placements {parameter.placements} is an unfinished sum")
    (chunk,) = parameter.__create_chunk_list__()
    offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
    if parameter.is_complex():
        offsets, sizes = (*offsets, 0), (*sizes, 2)
    return Piece(whole(parameter).shape, offsets, sizes, parameter.device_mesh, tuple(parameter.placements))


def slice_of(parameter: Tensor, rank: int, ranks: int, mesh: Any) -> Piece:  # noqa: ANN401 - a DeviceMesh
    """The part that rank ``rank`` of ``ranks`` keeps of a parameter that all ranks hold. All ranks keep a scalar."""
    from torch.distributed.tensor import Shard  # noqa: PLC0415

    everything = whole(parameter)
    dim = best_cut(everything.shape, ranks)
    if dim is None:
        return everything
    full = everything.shape[dim]
    size = -(-full // ranks)
    start = min(rank * size, full)
    offsets, sizes = list(everything.offsets), list(everything.sizes)
    offsets[dim], sizes[dim] = start, min(size, full - start)
    return Piece(everything.shape, tuple(offsets), tuple(sizes), mesh, (Shard(dim),))


@functools.cache
def best_cut(shape: tuple[int, ...], ranks: int) -> int | None:
    """The dimension along which a tensor is cut for ``ranks`` ranks; None for a scalar.

    A part is ⌈s/ranks⌉ of the s slabs of that dimension, so that no rank has more than 1/ranks of the elements plus one
    slab. We cut the first dimension whose parts are equal or nearly equal. Without such a dimension, we cut the one
    with the most equal parts.

    Example:
        >>> best_cut((3, 64), 4), best_cut((64, 64), 4), best_cut((50257, 64), 4), best_cut((), 4)
        (1, 0, 0, None)
    """
    excess = {dim: ranks * -(-size // ranks) / max(1, size) - 1 for dim, size in enumerate(shape)}
    nearly = [dim for dim in excess if excess[dim] <= _UNEQUAL]
    return nearly[0] if nearly else min(excess, key=lambda dim: excess[dim], default=None)
