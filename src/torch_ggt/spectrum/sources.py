"""Where a `SpectrumRecorder` reads its window: from a GGT, or from its own window beside any other optimizer.

A source gives full matrices (`Matrix`), one or several for an optimizer. The recorder calls ``before`` with the
arguments of ``optimizer.step``, and ``moved`` after the step. A source writes to nothing that the optimizer reads.
"""

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.distributed.columns import Columns
from torch_ggt.layout import Layout
from torch_ggt.memory import readable, window_bytes
from torch_ggt.options import OPTIONS
from torch_ggt.parameters import Group
from torch_ggt.scopes import SCOPES
from torch_ggt.state.block import Block
from torch_ggt.state.live import LiveState
from torch_ggt.step import FullMatrixOptimizer
from torch_ggt.window import Window

__all__ = ["Matrix", "OwnWindow", "WindowOfGGT"]

Call = tuple[tuple[Any, ...], dict[str, Any]]

# The options of a default GGT without momentum: the rows are the gradients themselves. The Gram matrix does not depend
# on the sign of a column, so it does not matter whether the optimizer maximizes.
_OPTIONS: Group = {
    **{name: option.default for name, option in OPTIONS.items()},
    "history": "gradient",
    "betas": (0.0, 1.0),
}


@dataclass(frozen=True)
class Matrix:
    """One full matrix, and what its spectrum needs."""

    window: Window
    """The window of this matrix alone."""
    options: Group
    """The param group whose options hold for this matrix."""
    parameters: list[Tensor]
    """The parameters that this matrix spans."""
    columns: Columns
    """Where the columns of this matrix are."""

    @property
    def numel(self) -> int:
        """d, the number of elements; a complex element counts twice."""
        return Layout(self.parameters).numel

    @property
    def has_gradient(self) -> bool:
        """Whether any parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters)


def _matrices(block: Block) -> list[Matrix]:
    return [
        Matrix(window, block.options, [parameter for _, parameter in matrix], block.columns)
        for window, matrix in zip(block.window.matrices(), block.allotted_matrices, strict=True)
    ]


class WindowOfGGT:
    """The windows of a GGT, which it keeps without a recorder, too."""

    def __init__(self, optimizer: FullMatrixOptimizer) -> None:
        self._optimizer = optimizer
        self._skipped = 0

    @property
    def options(self) -> Group:
        """The options of the first param group."""
        group: Group = self._optimizer.param_groups[0]
        return group

    @property
    def cost(self) -> str:
        """What recording costs, in words."""
        matrices = len(self.matrices()) or 1
        each = "" if matrices == 1 else f" for each of {matrices} matrices"
        size = self.options["window"]
        problem = f"the eigenvalues of {size} × {size}{each} per record"
        return f"no window of its own (the optimizer's is read), and {problem}"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, wanted: bool) -> Call | None:
        """If a record is ``wanted``, note the number of skipped steps: it shows later whether this step was skipped."""
        if wanted:
            self._skipped = self._optimizer.skipped
        return None

    def moved(self) -> dict[int, Matrix]:
        """The matrices that got a row in this step."""
        if self._optimizer.skipped != self._skipped:
            return {}
        return {i: matrix for i, matrix in self.matrices().items() if matrix.has_gradient and matrix.window.count > 0}

    def matrices(self) -> dict[int, Matrix]:
        """The matrices that have a window, by their index in the order of the parameters."""
        order = SCOPES[self.options["scope"]](self._optimizer.param_groups)
        places = {id(p): place for place, parameters in enumerate(order) for p in parameters}
        found = [matrix for block in self._optimizer.attached_blocks() for matrix in _matrices(block)]
        return dict(sorted((places[id(matrix.parameters[0])], matrix) for matrix in found))


class OwnWindow:
    """The recorder's own window, which holds the gradients of any other optimizer."""

    def __init__(self, optimizer: Optimizer, size: int, dtype: torch.dtype) -> None:
        self._optimizer = optimizer
        self.options: Group = {**_OPTIONS, "window": size, "window_dtype": dtype}
        self._state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        self._live = LiveState()
        self._newest: Tensor | None = None

    @property
    def cost(self) -> str:
        """What recording costs, in words."""
        size, dtype = self.options["window"], self.options["window_dtype"]
        allotted = [parameter for block in self._live.blocks for _, parameter in block.allotted]
        columns = Layout(allotted or [p for p in self._parameters() if p.requires_grad]).numel
        name = str(dtype).removeprefix("torch.")
        memory = readable(window_bytes(size, columns, dtype))
        return f"a window of its own: {size} × {columns:,} {name} = {memory} (and a row), and one pass over it per step"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, wanted: bool) -> Call | None:
        """Push the gradients. With a closure, return the arguments of a step whose closure pushes them."""
        self._newest = None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._read_gradients()
            return None
        # The gradients of this step exist only after the closure was called.
        reading = self._reading_after(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": reading}
        return (args[0], reading, *args[2:]), kwargs

    def moved(self) -> dict[int, Matrix]:
        """The matrix, if the gradient of this step entered its window."""
        return self.matrices() if self._newest is not None and bool(self._newest.any()) else {}

    def matrices(self) -> dict[int, Matrix]:
        """The matrix, once it has a window."""
        attached = self._live.attached([self.options], self._state) if self._state else []
        return dict(enumerate(matrix for block in attached for matrix in _matrices(block)))

    def _reading_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def evaluate() -> Any:  # noqa: ANN401 - whatever the closure returns
            loss = closure()
            if self._newest is None:  # a line search calls the closure several times
                self._read_gradients()
            return loss

        return evaluate

    @torch.no_grad()
    def _read_gradients(self) -> None:
        self.options["params"] = self._parameters()
        _check_dense([p for p in self.options["params"] if p.grad is not None])
        for block in self._live.ready([self.options], self._state):
            block.rule.gather(block)
            scale = getattr(
                self._optimizer, "grad_scale", None
            )  # set by a GradScaler that leaves unscaling to the step
            if scale is not None:
                block.row /= scale.to(block.row.device)
            gram_row = block.window.measure(block.row)
            accept = gram_row.square.isfinite()
            self._newest = block.window.push(block.row, gram_row, betas=self.options["betas"], accept=accept)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]


def _check_dense(parameters: list[Tensor]) -> None:
    devices = list(dict.fromkeys(p.device for p in parameters))
    if len(devices) > 1:
        raise RuntimeError(
            f"SpectrumRecorder: the gradients are on several devices ({', '.join(map(str, devices))}), but its "
            "window is on one device; use one optimizer and one recorder for each device"
        )
    for parameter in parameters:
        if parameter.grad is not None and (parameter.grad.is_sparse or hasattr(parameter.grad, "device_mesh")):
            kind = "sparse" if parameter.grad.is_sparse else "sharded"
            raise RuntimeError(
                f"SpectrumRecorder: the gradient of a parameter of shape {tuple(parameter.shape)} is {kind}, but the "
                "window takes only dense and local gradients; close() the recorder to train without it"
            )
