"""The windows a `SpectrumRecorder` watches: those of a GGT, or one of its own beside any other optimizer.

What is watched are full matrices (`Matrix`), one or several per optimizer. Both have ``before``, called with the
arguments of ``optimizer.step``, and ``moved``, called after it; neither writes to anything that the optimizer reads.
"""

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.attach import attach
from torch_ggt.block import Block
from torch_ggt.flatten import Layout
from torch_ggt.members import Group
from torch_ggt.memory import readable, window_bytes
from torch_ggt.optimizer import GGT
from torch_ggt.window import Window

__all__ = ["Matrix", "OwnWindow", "WindowOfGGT"]

Call = tuple[tuple[Any, ...], dict[str, Any]]

# What a default GGT would make of the gradients, but for momentum: the rows are the gradients themselves.
_STEP_OPTIONS: Group = {"betas": (0.0, 1.0), "nesterov": False, "eps": 1e-8, "jitter": 1e-6}


@dataclass(frozen=True)
class Matrix:
    """One full matrix."""

    window: Window
    """Its window alone."""
    options: Group
    """The param group that speaks for it."""
    parameters: list[Tensor]
    """What it spans."""

    @property
    def numel(self) -> int:
        """d: elements, a complex one counted twice."""
        return Layout(self.parameters).numel

    @property
    def has_gradient(self) -> bool:
        """Whether a parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters)


def _matrices(block: Block) -> list[Matrix]:
    parameters = [parameter for _, parameter in block.allotted]
    parts = [[parameter] for parameter in parameters] if block.separate else [parameters]
    return [Matrix(window, block.options, part) for window, part in zip(block.window.matrices(), parts, strict=True)]


class WindowOfGGT:
    """The windows that a GGT keeps anyway."""

    def __init__(self, optimizer: GGT) -> None:
        self._optimizer = optimizer
        self._skipped = 0

    @property
    def options(self) -> Group:
        """The options of the first param group."""
        group: Group = self._optimizer.param_groups[0]
        return group

    @property
    def cost(self) -> str:
        """What watching costs, in words."""
        matrices = len(self.matrices()) or 1
        each = "" if matrices == 1 else f" for each of {matrices} matrices"
        size = self.options["window"]
        problem = f"the eigenvalues of {size} × {size}{each} per record"
        return f"no window of its own (the optimizer's is read), and {problem}"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, wanted: bool) -> Call | None:
        """Note, if a record is ``wanted``, what tells a skipped step from one that was taken."""
        if wanted:
            self._skipped = self._optimizer.skipped
        return None

    def moved(self) -> dict[int, Matrix]:
        """The matrices that the step gave a row."""
        if self._optimizer.skipped != self._skipped:
            return {}
        return {i: matrix for i, matrix in self.matrices().items() if matrix.has_gradient and matrix.window.count > 0}

    def matrices(self) -> dict[int, Matrix]:
        """The matrices that have a window, by their place in the order of the parameters."""
        scope = self.options["scope"]
        order = [[p for group in self._optimizer.param_groups for p in group["params"]]]
        if scope == "group":
            order = [group["params"] for group in self._optimizer.param_groups]
        if scope == "parameter":
            order = [[p] for p in order[0]]
        places = {id(p): place for place, parameters in enumerate(order) for p in parameters}
        found = [matrix for block in self._optimizer.attached_blocks() for matrix in _matrices(block)]
        return dict(sorted((places[id(matrix.parameters[0])], matrix) for matrix in found))


class OwnWindow:
    """A window of the gradients that another optimizer is given."""

    def __init__(self, optimizer: Optimizer, size: int, dtype: torch.dtype) -> None:
        self._optimizer = optimizer
        self.options: Group = {
            "window": size,
            "window_dtype": dtype,
            "history": "gradient",
            "maximize": False,  # the sign of a column does not show in the Gram
            **_STEP_OPTIONS,
        }
        self._state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        self._block = Block([(self.options, parameter) for parameter in self._parameters()])
        self._newest: Tensor | None = None

    @property
    def cost(self) -> str:
        """What watching costs, in words."""
        size, dtype = self.options["window"], self.options["window_dtype"]
        allotted = [parameter for _, parameter in self._block.allotted]
        columns = Layout(allotted or [p for p in self._parameters() if p.requires_grad]).numel
        name = str(dtype).removeprefix("torch.")
        memory = readable(window_bytes(size, columns, dtype))
        return f"a window of its own: {size} × {columns:,} {name} = {memory} (and a row), and one pass over it per step"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, wanted: bool) -> Call | None:
        """Push the gradients, or have a closure do it once they are there: a call to make instead of this one."""
        self._newest = None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._read_gradients()
            return None
        # The gradients of this step are there only after the closure was called.
        reading = self._reading_after(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": reading}
        return (args[0], reading, *args[2:]), kwargs

    def moved(self) -> dict[int, Matrix]:
        """The matrix, if the step's gradient went into its window."""
        return self.matrices() if self._newest is not None and bool(self._newest.any()) else {}

    def matrices(self) -> dict[int, Matrix]:
        """The matrix, once it has a window."""
        return {0: _matrices(self._block)[0]} if self._block.allotted else {}

    def _reading_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def evaluate() -> Any:  # noqa: ANN401 - whatever the closure returns
            loss = closure()
            if self._newest is None:  # line searches evaluate more than once
                self._read_gradients()
            return loss

        return evaluate

    @torch.no_grad()
    def _read_gradients(self) -> None:
        parameters = self._parameters()
        if [id(p) for p in parameters] != [id(p) for _, p in self._block.members]:
            self._block = Block([(self.options, parameter) for parameter in parameters])  # a param group was added
            attach([[self._block]], self._state, self._block.sharding, allot=False)
        if not self._block.has_gradient():
            return
        _check_dense([p for p in parameters if p.grad is not None])
        attach([[self._block]], self._state, self._block.sharding, allot=True)
        row = self._block.gather(beta1=0.0, nesterov=False).row
        scale = getattr(self._optimizer, "grad_scale", None)  # set by a GradScaler that leaves unscaling to the step
        if scale is not None:
            row /= scale.to(row.device)
        window = self._block.window
        gram_row = window.measure(row)
        self._newest = window.push(row, gram_row, betas=self.options["betas"], accept=gram_row.square.isfinite())

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]


def _check_dense(parameters: list[Tensor]) -> None:
    devices = list(dict.fromkeys(p.device for p in parameters))
    if len(devices) > 1:
        raise RuntimeError(
            f"SpectrumRecorder: the gradients are on several devices ({', '.join(map(str, devices))}), its window can "
            "be on one; record an optimizer per device"
        )
    for parameter in parameters:
        if parameter.grad is not None and (parameter.grad.is_sparse or hasattr(parameter.grad, "device_mesh")):
            kind = "sparse" if parameter.grad.is_sparse else "sharded"
            raise RuntimeError(
                f"SpectrumRecorder: the gradient of a parameter of shape {tuple(parameter.shape)} is {kind}, and its "
                "window takes dense and local ones; close() the recorder to train without it"
            )
