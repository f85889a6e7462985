"""The recorder: hooks around ``optimizer.step`` that watch a window and note its singular values."""

from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.ggt import GGT
from torch_ggt.spectrum.comparison import StepComparison, compare_steps, decay_by_age
from torch_ggt.spectrum.diagnosis import Diagnosis, diagnose
from torch_ggt.spectrum.eigenvalues import isotropic_moment
from torch_ggt.spectrum.sources import Call, Matrix, OwnWindow, WindowOfGGT

__all__ = ["SpectrumRecord", "SpectrumRecorder"]

_DEFAULT_WINDOW = 20
_WINDOW_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class SpectrumRecord:
    """The window of one full matrix after one step."""

    step: int
    """Which call of ``optimizer.step`` since the recorder was attached; the first is 1."""
    block: int
    """Which full matrix: 0, but for a GGT with scope "group" or "parameter"."""
    history: str
    """What the rows are: "momentum" or "gradient"."""
    singular_values: Tensor
    """Of G, over the filled rows: float64, descending, on the CPU. Their squares are the eigenvalues of GᵀG."""


class SpectrumRecorder:
    """Record the singular values of the window of recent gradients after each step.

    A step that leaves the window as it was leaves no record: no gradients, one that is not finite, a first one of
    zeros. A record waits for the device: it breaks the graph of a compiled step, and cannot be part of a captured one.

    Args:
        optimizer: a GGT, whose own window is read, or any other torch.optim.Optimizer, which gets one beside it: its
            gradients as they are when ``step`` is called (clipped, if you clip; unscaled; with a closure, those of its
            first evaluation).
        every: record each ``every``-th step. The window of its own is fed at every step.
        window: how many gradients the window of its own holds, 20 by default; not for a GGT.
        window_dtype: of its own window: torch.float32, torch.bfloat16 or torch.float64; not for a GGT.
        diagnose_every: compare steps (one more pass over the window) at each ``diagnose_every``-th record, so that
            `diagnose` speaks of the run and not of the moment; None: only when `diagnose` is called.

    Attributes:
        records: list of `SpectrumRecord`.
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
        if isinstance(optimizer, GGT):
            if window is not None or window_dtype != torch.float32:
                raise ValueError(
                    f"window={window} and window_dtype={window_dtype} were given, but a GGT has its own window "
                    f"(of {optimizer.defaults['window']} rows), which is the one that is read; leave both out"
                )
            self._source = WindowOfGGT(optimizer)
        else:
            self._source = OwnWindow(optimizer, window or _DEFAULT_WINDOW, window_dtype)
        self._handles = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]

    def close(self) -> None:
        """Detach from the optimizer; what was recorded stays. Called at the end of a with block."""
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
        """What the records say, and the window as it is now.

        Args:
            block: which full matrix; None: the largest.

        Raises:
            ValueError: nothing was recorded yet, or no such block.
        """
        block = self._largest() if block is None else block
        spectra = [record.singular_values for record in self.records if record.block == block]
        if not spectra:
            raise ValueError(
                f"block {block} has no records, of all blocks {sorted(self._recorded)} have; take a step with a finite "
                "gradient that is not zero first"
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
        """One full matrix as plain JSON types: what a figure or a report needs.

        Args:
            label: what to call it; None: the optimizer's class and, where there are several matrices, which one.
            block: which full matrix; None: the largest, by its number of elements.

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
    # On the CPU, which is faster for so small a matrix, and whose routine was not seen to fail as a GPU's was.
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
