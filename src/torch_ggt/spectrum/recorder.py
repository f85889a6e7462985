"""The recorder: hooks around ``optimizer.step`` that record the singular values of a window.

It reads the window of a GGT, or keeps a window of its own beside any other optimizer. It writes to nothing that the
optimizer reads.
"""

import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.distributed.columns import Columns
from torch_ggt.layout import as_real
from torch_ggt.memory import readable, window_bytes
from torch_ggt.parameters import Group
from torch_ggt.scopes import SCOPES
from torch_ggt.spectrum.comparison import StepComparison, compare_steps, newest_first
from torch_ggt.spectrum.diagnosis import Diagnosis, diagnose, isotropic_moment
from torch_ggt.step import FullMatrixOptimizer
from torch_ggt.window import Window

__all__ = ["SpectrumRecord", "SpectrumRecorder", "unwrapped"]

_Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a step


@dataclass(frozen=True)
class SpectrumRecord:
    """The window of one full matrix after one step."""

    step: int  #: The number of calls of ``optimizer.step`` since the recorder was attached; the first is number 1.
    block: int  #: The index of the full matrix: always 0, except for a GGT with scope "group" or "parameter".
    history: str  #: What the rows are: "momentum" or "gradient".
    singular_values: Tensor  #: Of G over the filled rows: float64, descending, on the CPU. Their squares are λ of GᵀG.
    compared: StepComparison | None = None  #: The steps compared, if this was a moment for it.


def unwrapped(optimizer: Any) -> Any:  # noqa: ANN401 - an optimizer, or the wrapper of a package
    """The torch optimizer inside the wrappers of Accelerate and Lightning, which keep it as ``optimizer``."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


class SpectrumRecorder:
    """Record the singular values of the window of recent gradients after each step.

    A step that does not change the window makes no record: a step without gradients, with a gradient that is not
    finite, or with a first gradient of zeros. A record waits for the device. So it breaks the graph of a compiled step,
    and cannot be part of a captured step. The attribute ``records`` is a list of `SpectrumRecord`.

    Args:
        optimizer: a GGT, whose window the recorder reads, or any other torch.optim.Optimizer, for which it keeps its
            own window. That window takes the gradients at the call of ``step``: unscaled, and clipped if you clip. With
            a closure it takes the gradients of the first evaluation. The wrappers of Accelerate and Lightning are
            taken off.
        every: record each ``every``-th step. The recorder's own window takes the gradient of every step.
        window: how many gradients the recorder's own window holds, 20 by default; not for a GGT.
        window_dtype: torch.float32, torch.bfloat16 or torch.float64, for the recorder's own window; not for a GGT.
        diagnose_every: compare steps (one more pass over the window) at each ``diagnose_every``-th record, so that
            `diagnose` describes the run and not one moment; None: compare only when `diagnose` is called.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        every: int = 1,
        window: int | None = None,
        window_dtype: torch.dtype = torch.float32,
        diagnose_every: int | None = None,
    ) -> None:
        optimizer = unwrapped(optimizer)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        for name, value in {"every": every, "window": window, "diagnose_every": diagnose_every}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {name}={value!r}")
        if window_dtype not in (torch.float32, torch.bfloat16, torch.float64):
            raise ValueError(f"window_dtype must be torch.float32, torch.bfloat16 or torch.float64, got {window_dtype}")
        owner = getattr(optimizer, "whitening", optimizer)
        self._owner: FullMatrixOptimizer  # whose window is read
        if not isinstance(owner, FullMatrixOptimizer):
            self._owner = _GradientWindow(optimizer, window or 20, window_dtype)
        elif window is None and window_dtype == torch.float32:
            self._owner = owner
        else:
            raise ValueError(
                f"window={window} and window_dtype={window_dtype} were given, but this optimizer has a window of its "
                f"own (of {owner.defaults['window']} rows), which the recorder reads; leave both out"
            )
        self.records: list[SpectrumRecord] = []
        self._optimizer, self._every, self._diagnose_every = optimizer, every, diagnose_every
        self._steps = self._skipped = 0
        self._recorded: Counter[int] = Counter()  # how many records each block has
        self._handles = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]

    def close(self) -> None:
        """Detach from the optimizer and keep the records. A with block calls this at its end."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cost(self) -> str:
        """What recording costs, in words and bytes."""
        if isinstance(self._owner, _GradientWindow):
            return self._owner.cost
        count, size = len(self._matrices()), self._owner.param_groups[0]["window"]
        problem = f"the eigenvalues of {size} × {size}" + (f" for each of {count} matrices" if count > 1 else "")
        return f"no window of its own (the optimizer's is read), and {problem} per record"

    def diagnose(self, block: int | None = None) -> Diagnosis:
        """Diagnose the records and the present window of one full matrix, given by its index; None: the largest.

        A block that has no records yet, or does not exist, raises ValueError.
        """
        block = self._largest() if block is None else block
        records = [record for record in self.records if record.block == block]
        if not records:
            what = "no step was recorded yet"
            if self.records:
                what = f"block {block} has no records; the blocks {sorted(self._recorded)} have records"
            raise ValueError(f"SpectrumRecorder: {what}. Take a step with a finite gradient that is not zero first.")
        matrix = self._matrices()[block]
        comparisons = [record.compared for record in records if record.compared is not None]
        if records[-1].step != self._steps or records[-1].compared is None:
            comparisons.append(matrix.compare())
        window, history = matrix.window, _history(matrix.options)
        beta1 = matrix.options["betas"][0] if history == "momentum" else 0.0
        decay = window.decay[newest_first(window)].cpu()
        return diagnose(
            [record.singular_values for record in records],
            comparisons,
            isotropic=isotropic_moment(decay, beta1=beta1, nesterov=matrix.options["nesterov"]),
            history=history,
            dtype=window.rows.dtype,
        )

    def to_json(self, label: str | None = None, block: int | None = None) -> dict[str, Any]:
        """The records of one full matrix as plain JSON types, for a figure or a report.

        Args:
            label: the name of the records; None: the optimizer's class and, for several matrices, the block.
            block: the index of the full matrix; None: the matrix with the most elements.
        """
        block = self._largest() if block is None else block
        matrix = self._matrices().get(block)
        options = self._owner.param_groups[0] if matrix is None else matrix.options
        chosen = [record for record in self.records if record.block == block]
        found = self.diagnose(block) if self.records else None
        return {
            "label": self._label(block) if label is None else label,
            "window": options["window"],
            "history": _history(options),
            "steps": [record.step for record in chosen],
            "singular_values": [record.singular_values.tolist() for record in chosen],
            "diagnosis": {
                "summary": "Nothing was recorded." if found is None else found.summary,
                "numbers": {} if found is None else found.numbers(),
            },
            "cost": self.cost,
        }

    def _before(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        if (self._steps + 1) % self._every == 0:
            self._skipped = self._owner.skipped
        return self._owner.before(args, kwargs) if isinstance(self._owner, _GradientWindow) else None

    @torch.no_grad()
    def _after(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps += 1
        if self._steps % self._every != 0 or self._owner.skipped != self._skipped:
            return
        for block, matrix in self._matrices().items():
            filled = int(matrix.window.count)
            if filled == 0 or all(p.grad is None for p in matrix.parameters):
                continue  # the step has not changed this window
            # The CPU is faster for such a small matrix. We saw the routine of a GPU fail, and never that of a CPU.
            eigenvalues = torch.linalg.eigvalsh(matrix.window.moment().cpu()).flip(-1)[:filled]
            self._recorded[block] += 1
            wanted = self._diagnose_every is not None and self._recorded[block] % self._diagnose_every == 0
            values, compared = eigenvalues.clamp_min(0).sqrt(), matrix.compare() if wanted else None
            self.records.append(SpectrumRecord(self._steps, block, _history(matrix.options), values, compared))

    def _matrices(self) -> "dict[int, _Matrix]":
        """The full matrices that have a window, by their index in the order of the parameters."""
        groups = self._owner.param_groups
        order = SCOPES[groups[0]["scope"]](groups)
        places = {id(p): place for place, parameters in enumerate(order) for p in parameters}
        found = {}
        for block in self._owner.attached_blocks():
            for window, members in zip(block.window.matrices(), block.allotted_matrices, strict=True):
                parameters = [parameter for _, parameter in members]
                found[places[id(parameters[0])]] = _Matrix(window, block.options, parameters, block.columns)
        return dict(sorted(found.items()))

    def _sizes(self) -> dict[int, int]:
        return {block: _elements(matrix.parameters) for block, matrix in self._matrices().items()}

    def _largest(self) -> int:
        sizes = {block: size for block, size in self._sizes().items() if block in self._recorded}
        return max(sizes, key=lambda block: sizes[block], default=0)

    def _label(self, block: int) -> str:
        name, sizes = type(self._optimizer).__name__, self._sizes()
        if len(sizes) < 2:
            return name
        which = f"the largest of {len(sizes)}, " if block == self._largest() else ""
        return f"{name}, block {block} ({which}{sizes[block]:,} of {sum(sizes.values()):,} elements)"


@dataclass(frozen=True)
class _Matrix:
    """One full matrix: its window, the param group that speaks for it, its parameters, and where its columns are."""

    window: Window
    options: Group
    parameters: list[Tensor]
    columns: Columns

    def compare(self) -> StepComparison:
        options = {name: self.options[name] for name in ("eps", "jitter", "shrinkage")}
        return compare_steps(self.window, columns=self.columns, **options)


class _GradientWindow(FullMatrixOptimizer):
    """A window of the gradients of another optimizer. It makes no steps.

    The rows are the gradients themselves. The Gram matrix does not depend on the sign of a column, so it does not
    matter whether the other optimizer maximizes.
    """

    def __init__(self, optimizer: Optimizer, size: int, dtype: torch.dtype) -> None:
        options: Group = {"history": "gradient", "betas": (0.0, 1.0), "finish": "none"}
        super().__init__([{"params": []}], window=size, window_dtype=dtype, **options)
        self._optimizer = optimizer

    @property
    def cost(self) -> str:
        """What recording costs, in words."""
        size, dtype = self.defaults["window"], self.defaults["window_dtype"]
        allotted = [parameter for block in self._live.blocks for _, parameter in block.allotted]
        columns = _elements(allotted or [p for p in self._parameters() if p.requires_grad])
        name, memory = str(dtype).removeprefix("torch."), readable(window_bytes(size, columns, dtype))
        return f"a window of its own: {size} × {columns:,} {name} = {memory} (and a row), and one pass over it per step"

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """Push the gradients. With a closure, return the arguments of a step whose closure pushes them."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._push()
            return None
        first = True

        @functools.wraps(closure)
        def pushing() -> Any:  # noqa: ANN401 - whatever the closure returns
            nonlocal first
            loss = closure()  # the gradients of this step exist only now
            if first:  # a line search calls the closure several times
                first = False
                self._push()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": pushing}
        return (args[0], pushing, *args[2:]), kwargs

    @torch.no_grad()
    def _push(self) -> None:
        self.param_groups[0]["params"] = parameters = self._parameters()
        _check([p.grad for p in parameters if p.grad is not None])
        for block in self._live.ready(self.param_groups, self.state):
            block.rule.gather(block)
            scale = getattr(self._optimizer, "grad_scale", None)  # of a GradScaler that leaves unscaling to the step
            if scale is not None:
                block.row /= scale.to(block.row.device)
            gram_row = block.window.measure(block.row)
            finite = gram_row.square.isfinite()
            block.window.push(block.row, gram_row, betas=(0.0, 1.0), accept=finite)
            self._live.count_skipped(~finite)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]


def _history(options: Group) -> str:
    """What the rows are: "newest" is the rule of whitening, and its rows are gradients."""
    return "gradient" if options["history"] == "newest" else str(options["history"])


def _elements(parameters: list[Tensor]) -> int:
    """The number of elements; a complex element counts twice."""
    return sum(as_real(parameter).numel() for parameter in parameters)


def _check(gradients: list[Tensor]) -> None:
    """Raise RuntimeError if the recorder's own window cannot take these gradients."""
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
