"""The recorder: hooks around ``optimizer.step`` that record the singular values of a window."""

from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.spectrum.comparison import StepComparison, compare_steps, decay_by_age
from torch_ggt.spectrum.diagnosis import Diagnosis, diagnose
from torch_ggt.spectrum.eigenvalues import isotropic_moment
from torch_ggt.spectrum.sources import Call, Matrix, OwnWindow, WindowOfGGT
from torch_ggt.step import FullMatrixOptimizer

__all__ = ["SpectrumRecord", "SpectrumRecorder"]

_DEFAULT_WINDOW = 20
_WINDOW_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class SpectrumRecord:
    """The window of one full matrix after one step."""

    step: int
    """The number of calls of ``optimizer.step`` since the recorder was attached; the first call has number 1."""
    block: int
    """The index of the full matrix. It is always 0, except for a GGT with scope "group" or "parameter"."""
    history: str
    """What the rows are: "momentum" or "gradient"."""
    singular_values: Tensor
    """The singular values of G over the filled rows: float64, descending, on the CPU. Their squares are λ of GᵀG."""


class SpectrumRecorder:
    """Record the singular values of the window of recent gradients after each step.

    A step that does not change the window makes no record: a step without gradients, with a gradient that is not
    finite, or with a first gradient of zeros. A record waits for the device. So it breaks the graph of a compiled step,
    and cannot be part of a captured step.

    Args:
        optimizer: a GGT, whose window the recorder reads, or any other torch.optim.Optimizer, for which it keeps its
            own window. That window takes the gradients at the call of ``step``: unscaled, and clipped if you clip. With
            a closure it takes the gradients of the first evaluation.
        every: record each ``every``-th step. The recorder's own window takes the gradient of every step.
        window: how many gradients the recorder's own window holds, 20 by default; not for a GGT.
        window_dtype: torch.float32, torch.bfloat16 or torch.float64, for the recorder's own window; not for a GGT.
        diagnose_every: compare steps (one more pass over the window) at each ``diagnose_every``-th record, so that
            `diagnose` describes the run and not one moment; None: compare only when `diagnose` is called.

    Attributes:
        records: a list of `SpectrumRecord`.
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
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        _check_positive(every=every, window=window, diagnose_every=diagnose_every)
        if window_dtype not in _WINDOW_DTYPES:
            raise ValueError(f"window_dtype must be torch.float32, torch.bfloat16 or torch.float64, got {window_dtype}")
        self.records: list[SpectrumRecord] = []
        self._optimizer = optimizer
        self._every, self._diagnose_every = every, diagnose_every
        self._steps = 0
        self._recorded: dict[int, int] = defaultdict(int)
        self._comparisons: dict[int, list[StepComparison]] = defaultdict(list)
        self._compared_at: dict[int, int] = {}
        self._source: WindowOfGGT | OwnWindow
        if isinstance(optimizer, FullMatrixOptimizer):
            if window is not None or window_dtype != torch.float32:
                raise ValueError(
                    f"window={window} and window_dtype={window_dtype} were given, but a GGT has its own window "
                    f"(of {optimizer.defaults['window']} rows), which the recorder reads; leave both out"
                )
            self._source = WindowOfGGT(optimizer)
        else:
            self._source = OwnWindow(optimizer, window or _DEFAULT_WINDOW, window_dtype)
        self._handles = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]

    def close(self) -> None:
        """Detach from the optimizer and keep the records. A with block calls this at its end."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def cost(self) -> str:
        """What recording costs, in words and bytes."""
        return self._source.cost

    def diagnose(self, block: int | None = None) -> Diagnosis:
        """Diagnose the records and the present window.

        Args:
            block: the index of the full matrix; None: the largest matrix.

        Raises:
            ValueError: this block has no records yet, or does not exist.
        """
        block = self._largest() if block is None else block
        spectra = [record.singular_values for record in self.records if record.block == block]
        if not spectra:
            raise ValueError(
                f"block {block} has no records; the blocks {sorted(self._recorded)} have records. First take a step "
                "with a finite gradient that is not zero"
            )
        found = self._source.matrices()[block]
        comparisons = list(self._comparisons[block])
        if self._compared_at.get(block) != self._steps:
            comparisons.append(_compare(found))
        return diagnose(
            spectra,
            comparisons,
            isotropic=_isotropic(found),
            history=found.options["history"],
            dtype=found.window.rows.dtype,
        )

    def to_json(self, label: str | None = None, block: int | None = None) -> dict[str, Any]:
        """The records of one full matrix as plain JSON types, for a figure or a report.

        Args:
            label: the name of the records; None: the optimizer's class and, for several matrices, the block.
            block: the index of the full matrix; None: the matrix with the most elements.

        Returns:
            ``label``, ``window`` (r), ``history``, ``steps``, ``singular_values`` (a list per step), ``diagnosis``
            (``summary`` and ``numbers``) and ``cost``.
        """
        block = self._largest() if block is None else block
        blocks = self._source.matrices()
        options = blocks[block].options if block in blocks else self._source.options
        chosen = [record for record in self.records if record.block == block]
        found = self.diagnose(block) if self.records else None
        return {
            "label": self._label(block) if label is None else label,
            "window": options["window"],
            "history": options["history"],
            "steps": [record.step for record in chosen],
            "singular_values": [record.singular_values.tolist() for record in chosen],
            "diagnosis": {
                "summary": "Nothing was recorded." if found is None else found.summary,
                "numbers": {} if found is None else found.numbers(),
            },
            "cost": self.cost,
        }

    # ---- hooks -----------------------------------------------------------------------------------------------------

    def _before(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        return self._source.before(args, kwargs, wanted=(self._steps + 1) % self._every == 0)

    @torch.no_grad()
    def _after(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps += 1
        if self._steps % self._every != 0:
            return
        for index, matrix in self._source.moved().items():
            record = SpectrumRecord(self._steps, index, matrix.options["history"], _singular_values(matrix))
            self.records.append(record)
            self._recorded[index] += 1
            if self._diagnose_every is not None and self._recorded[index] % self._diagnose_every == 0:
                self._comparisons[index].append(_compare(matrix))
                self._compared_at[index] = self._steps

    def _largest(self) -> int:
        sizes = {index: matrix.numel for index, matrix in self._source.matrices().items() if index in self._recorded}
        return max(sizes, key=lambda index: sizes[index], default=0)

    def _label(self, block: int) -> str:
        name = type(self._optimizer).__name__
        sizes = {index: found.numel for index, found in self._source.matrices().items()}
        if len(sizes) < 2:
            return name
        which = f"the largest of {len(sizes)}, " if block == self._largest() else ""
        return f"{name}, block {block} ({which}{sizes[block]:,} of {sum(sizes.values()):,} elements)"


def _singular_values(matrix: Matrix) -> Tensor:
    # The CPU is faster for such a small matrix. We saw the routine of a GPU fail, and never the routine of a CPU.
    filled = int(matrix.window.count)
    eigenvalues: Tensor = torch.linalg.eigvalsh(matrix.window.moment().cpu())
    return eigenvalues.flip(-1)[:filled].clamp_min(0).sqrt()


def _compare(matrix: Matrix) -> StepComparison:
    return compare_steps(
        matrix.window, eps=matrix.options["eps"], jitter=matrix.options["jitter"], columns=matrix.columns
    )


def _isotropic(matrix: Matrix) -> Tensor:
    holds_momentum = matrix.options["history"] == "momentum"
    beta1 = matrix.options["betas"][0] if holds_momentum else 0.0
    return isotropic_moment(decay_by_age(matrix.window), beta1=beta1, nesterov=matrix.options["nesterov"])


def _check_positive(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {name}={value!r}")
