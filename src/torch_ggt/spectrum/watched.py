"""The windows a `SpectrumRecorder` watches: those of a GGT, or one of its own beside any other optimizer.

Both have ``before``, called with the arguments of ``optimizer.step``, and ``moved``, called after it; neither writes to
anything that the optimizer reads.
"""

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.block import Block, Group
from torch_ggt.memory import _readable, window_bytes
from torch_ggt.optimizer import GGT

__all__ = ["OwnWindow", "WindowOfGGT"]

Call = tuple[tuple[Any, ...], dict[str, Any]]

# What a default GGT would make of the gradients, but for momentum: the rows are the gradients themselves.
_STEP_OPTIONS: Group = {"betas": (0.0, 1.0), "nesterov": False, "eps": 1e-8, "jitter": 1e-6}


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
        matrices = len(self.blocks()) or 1
        each = "" if matrices == 1 else f" for each of {matrices} matrices"
        size = self.options["window"]
        problem = f"the eigenvalues of {size} × {size}{each} per record"
        return f"no window of its own (the optimizer's is read), and {problem}"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, wanted: bool) -> Call | None:
        """Note, if a record is ``wanted``, what tells a skipped step from one that was taken."""
        if wanted:
            self._skipped = self._optimizer.skipped
        return None

    def moved(self) -> dict[int, Block]:
        """The blocks that the step gave a row."""
        if self._optimizer.skipped != self._skipped:
            return {}
        return {i: block for i, block in self.blocks().items() if block.has_gradient() and int(block.window.count) > 0}

    def blocks(self) -> dict[int, Block]:
        """The blocks that have a window, by their place among all."""
        self._optimizer._partition()
        state = self._optimizer.state
        return {i: block for i, block in enumerate(self._optimizer._blocks) if block.attach(state, allot=False)}


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
        columns = self._block.numel or sum(
            p.numel() * (2 if p.is_complex() else 1) for p in self._parameters() if p.requires_grad
        )
        name = str(dtype).removeprefix("torch.")
        memory = _readable(window_bytes(size, columns, dtype))
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

    def moved(self) -> dict[int, Block]:
        """The block, if the step's gradient went into its window."""
        return self.blocks() if self._newest is not None and bool(self._newest.any()) else {}

    def blocks(self) -> dict[int, Block]:
        """The block, once it has a window."""
        return {0: self._block} if self._block.numel > 0 else {}

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
            self._block.attach(self._state, allot=False)
        if not self._block.has_gradient():
            return
        _check_dense([p for p in parameters if p.grad is not None])
        self._block.attach(self._state, allot=True)
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
