"""A step's forward and backward pass as one CUDA graph."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["GradientGraph"]

_Forward = Callable[..., tuple[Tensor, Tensor, tuple[Tensor, ...]]]


class GradientGraph:
    """Gradients for inputs whose shapes do not change: the host makes one call instead of thousands.

    The gradients keep their memory. Each step writes over them, and nobody may set them to None.

    Args:
        forward: a function of the inputs. It returns the objective (its gradient is taken), the loss to report, and the
            tensors from which the next step goes on. It must have run before, for libraries choose algorithms then.
        inputs: the inputs of the first step; nothing is computed with them yet.
        parameters: the parameters whose gradients are taken.
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
        """Take the gradients for ``inputs``. The result, loss and carried tensors, is valid until the next call."""
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._loss, self._carried
