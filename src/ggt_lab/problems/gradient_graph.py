"""A step's forward and backward pass as one CUDA graph."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["GradientGraph"]

_Forward = Callable[..., tuple[Tensor, Tensor, tuple[Tensor, ...]]]


class GradientGraph:
    """The gradients of inputs that keep their shapes: the host starts them with one call in place of thousands.

    Gradients stay where they are now: they are written over, not added to, and must not be set to None.

    Args:
        forward: inputs to what is to be differentiated, the loss to report, and what the next step goes on from. It
            must have run before, for libraries choose algorithms then.
        inputs: of the first step; nothing is computed with them yet.
        parameters: whose gradients are taken.
    """

    def __init__(self, forward: _Forward, inputs: Sequence[Tensor], parameters: Iterable[nn.Parameter]) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        for parameter in parameters:
            parameter.grad = None
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            objective, self._loss, self._carried = forward(*self._inputs)
            objective.backward()  # type: ignore[no-untyped-call]

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Take the gradients of ``inputs``; the loss and what is carried on, to be read before the next call."""
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._loss, self._carried
