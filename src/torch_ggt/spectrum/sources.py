"""Where a `SpectrumRecorder` reads its window: from a GGT, or from its own window beside any other optimizer.

A source gives full matrices (`Matrix`) by their index. The recorder calls ``before`` with the arguments of
``optimizer.step``, and ``moved`` after the step. A source writes to nothing that the optimizer reads.
"""

import functools
from collections import defaultdict
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

__all__ = ["Call", "Matrix", "OwnWindow", "WindowOfGGT"]

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Matrix:
    """One full matrix, and what its spectrum needs."""

    window: Window  #: The window of this matrix alone.
    options: Group  #: The param group whose options hold for this matrix.
    parameters: list[Tensor]  #: The parameters that this matrix spans.
    columns: Columns  #: Where the columns of this matrix are.


def _by_index(blocks: list[Block], groups: list[Group]) -> dict[int, Matrix]:
    """The matrices of ``blocks``, by their index in the order of the parameters."""
    order = SCOPES[groups[0]["scope"]](groups)
    places = {id(p): place for place, parameters in enumerate(order) for p in parameters}
    found = {}
    for block in blocks:
        for window, members in zip(block.window.matrices(), block.allotted_matrices, strict=True):
            parameters = [parameter for _, parameter in members]
            found[places[id(parameters[0])]] = Matrix(window, block.options, parameters, block.columns)
    return dict(sorted(found.items()))


class WindowOfGGT:
    """The windows of a GGT, which it keeps without a recorder, too."""

    def __init__(self, optimizer: FullMatrixOptimizer) -> None:
        self._optimizer = optimizer
        self._skipped = 0

    @property
    def options(self) -> Group:
        """The options of the first param group."""
        return self._optimizer.param_groups[0]

    @property
    def cost(self) -> str:
        """What recording costs, in words."""
        count, size = len(self.matrices()), self.options["window"]
        problem = f"the eigenvalues of {size} × {size}" + (f" for each of {count} matrices" if count > 1 else "")
        return f"no window of its own (the optimizer's is read), and {problem} per record"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, wanted: bool) -> Call | None:
        """If a record is ``wanted``, note the number of skipped steps: it shows later whether this step was skipped."""
        if wanted:
            self._skipped = self._optimizer.skipped
        return None

    def moved(self) -> dict[int, Matrix]:
        """The matrices that got a row in this step."""
        if self._optimizer.skipped != self._skipped:
            return {}
        return {
            index: matrix
            for index, matrix in self.matrices().items()
            if any(p.grad is not None for p in matrix.parameters) and matrix.window.count > 0
        }

    def matrices(self) -> dict[int, Matrix]:
        """The matrices that have a window."""
        return _by_index(self._optimizer.attached_blocks(), self._optimizer.param_groups)


class OwnWindow:
    """The recorder's own window, which holds the gradients of any other optimizer."""

    def __init__(self, optimizer: Optimizer, size: int, dtype: torch.dtype) -> None:
        self._optimizer = optimizer
        # A default GGT without momentum: the rows are the gradients themselves. The Gram matrix does not depend on the
        # sign of a column, so it does not matter whether the optimizer maximizes.
        self.options: Group = {name: option.default for name, option in OPTIONS.items()}
        self.options |= {"history": "gradient", "betas": (0.0, 1.0), "window": size, "window_dtype": dtype}
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

        @functools.wraps(closure)
        def reading() -> Any:  # noqa: ANN401 - whatever the closure returns
            loss = closure()  # the gradients of this step exist only now
            if self._newest is None:  # a line search calls the closure several times
                self._read_gradients()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": reading}
        return (args[0], reading, *args[2:]), kwargs

    def moved(self) -> dict[int, Matrix]:
        """The matrix, if the gradient of this step entered its window."""
        return self.matrices() if self._newest is not None and bool(self._newest.any()) else {}

    def matrices(self) -> dict[int, Matrix]:
        """The matrix, once it has a window."""
        groups = [self.options]
        return _by_index(self._live.attached(groups, self._state), groups) if self._state else {}

    @torch.no_grad()
    def _read_gradients(self) -> None:
        self.options["params"] = self._parameters()
        _check_dense([p.grad for p in self.options["params"] if p.grad is not None])
        for block in self._live.ready([self.options], self._state):
            block.rule.gather(block)
            # A GradScaler that leaves unscaling to the step has set this.
            scale = getattr(self._optimizer, "grad_scale", None)
            if scale is not None:
                block.row /= scale.to(block.row.device)
            gram_row = block.window.measure(block.row)
            accept = gram_row.square.isfinite()
            self._newest = block.window.push(block.row, gram_row, betas=self.options["betas"], accept=accept)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]


def _check_dense(gradients: list[Tensor]) -> None:
    devices = list(dict.fromkeys(str(gradient.device) for gradient in gradients))
    if len(devices) > 1:
        raise RuntimeError(
            f"SpectrumRecorder: the gradients are on several devices ({', '.join(devices)}), but its "
            "window is on one device; use one optimizer and one recorder for each device"
        )
    for gradient in gradients:
        if gradient.is_sparse or hasattr(gradient, "device_mesh"):
            kind = "sparse" if gradient.is_sparse else "sharded"
            raise RuntimeError(
                f"SpectrumRecorder: the gradient of a parameter of shape {tuple(gradient.shape)} is {kind}, but the "
                "window takes only dense and local gradients; close() the recorder to train without it"
            )
