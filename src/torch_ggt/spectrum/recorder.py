"""The recorder: hooks around ``optimizer.step`` that record the singular values of a window."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.layout import Layout
from torch_ggt.spectrum.comparison import StepComparison, compare_steps, newest_first
from torch_ggt.spectrum.diagnosis import Diagnosis, diagnose
from torch_ggt.spectrum.eigenvalues import isotropic_moment
from torch_ggt.spectrum.sources import Call, Matrix, OwnWindow, WindowOfGGT
from torch_ggt.step import FullMatrixOptimizer

__all__ = ["SpectrumRecord", "SpectrumRecorder"]


@dataclass(frozen=True)
class SpectrumRecord:
    """The window of one full matrix after one step."""

    step: int  #: The number of calls of ``optimizer.step`` since the recorder was attached; the first is number 1.
    block: int  #: The index of the full matrix: always 0, except for a GGT with scope "group" or "parameter".
    history: str  #: What the rows are: "momentum" or "gradient".
    singular_values: Tensor  #: Of G over the filled rows: float64, descending, on the CPU. Their squares are λ of GᵀG.


class SpectrumRecorder:
    """Record the singular values of the window of recent gradients after each step.

    A step that does not change the window makes no record: a step without gradients, with a gradient that is not
    finite, or with a first gradient of zeros. A record waits for the device. So it breaks the graph of a compiled step,
    and cannot be part of a captured step. The attribute ``records`` is a list of `SpectrumRecord`.

    Args:
        optimizer: a GGT, whose window the recorder reads, or any other torch.optim.Optimizer, for which it keeps its
            own window. That window takes the gradients at the call of ``step``: unscaled, and clipped if you clip. With
            a closure it takes the gradients of the first evaluation.
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
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        for name, value in {"every": every, "window": window, "diagnose_every": diagnose_every}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {name}={value!r}")
        if window_dtype not in (torch.float32, torch.bfloat16, torch.float64):
            raise ValueError(f"window_dtype must be torch.float32, torch.bfloat16 or torch.float64, got {window_dtype}")
        self._source: WindowOfGGT | OwnWindow
        if not isinstance(optimizer, FullMatrixOptimizer):
            self._source = OwnWindow(optimizer, window or 20, window_dtype)
        elif window is None and window_dtype == torch.float32:
            self._source = WindowOfGGT(optimizer)
        else:
            raise ValueError(
                f"window={window} and window_dtype={window_dtype} were given, but a GGT has its own window "
                f"(of {optimizer.defaults['window']} rows), which the recorder reads; leave both out"
            )
        self.records: list[SpectrumRecord] = []
        self._optimizer, self._every, self._diagnose_every = optimizer, every, diagnose_every
        self._steps = 0
        self._recorded: dict[int, int] = defaultdict(int)  # how many records a block has
        self._compared: dict[int, dict[int, StepComparison]] = defaultdict(dict)  # by block and step
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
        return self._source.cost

    def diagnose(self, block: int | None = None) -> Diagnosis:
        """Diagnose the records and the present window of one full matrix, given by its index; None: the largest.

        A block that has no records yet, or does not exist, raises ValueError.
        """
        block = self._largest() if block is None else block
        spectra = [record.singular_values for record in self.records if record.block == block]
        if not spectra:
            raise ValueError(
                f"block {block} has no records; the blocks {sorted(self._recorded)} have records. First take a step "
                "with a finite gradient that is not zero"
            )
        matrix = self._source.matrices()[block]
        compared = self._compared[block]
        if self._steps not in compared:
            compared = {**compared, self._steps: _compare(matrix)}
        window, history = matrix.window, matrix.options["history"]
        beta1 = matrix.options["betas"][0] if history == "momentum" else 0.0
        decay = window.decay[newest_first(window)].cpu()
        isotropic = isotropic_moment(decay, beta1=beta1, nesterov=matrix.options["nesterov"])
        comparisons = list(compared.values())
        return diagnose(spectra, comparisons, isotropic=isotropic, history=history, dtype=window.rows.dtype)

    def to_json(self, label: str | None = None, block: int | None = None) -> dict[str, Any]:
        """The records of one full matrix as plain JSON types, for a figure or a report.

        Args:
            label: the name of the records; None: the optimizer's class and, for several matrices, the block.
            block: the index of the full matrix; None: the matrix with the most elements.
        """
        block = self._largest() if block is None else block
        matrices = self._source.matrices()
        options = matrices[block].options if block in matrices else self._source.options
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

    def _before(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        return self._source.before(args, kwargs, wanted=(self._steps + 1) % self._every == 0)

    @torch.no_grad()
    def _after(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps += 1
        if self._steps % self._every != 0:
            return
        for block, matrix in self._source.moved().items():
            # The CPU is faster for such a small matrix. We saw the routine of a GPU fail, and never that of a CPU.
            eigenvalues = torch.linalg.eigvalsh(matrix.window.moment().cpu()).flip(-1)[: int(matrix.window.count)]
            singular_values = eigenvalues.clamp_min(0).sqrt()
            self.records.append(SpectrumRecord(self._steps, block, matrix.options["history"], singular_values))
            self._recorded[block] += 1
            if self._diagnose_every is not None and self._recorded[block] % self._diagnose_every == 0:
                self._compared[block][self._steps] = _compare(matrix)

    def _sizes(self) -> dict[int, int]:
        """How many elements each full matrix spans; a complex element counts twice."""
        return {block: Layout(matrix.parameters).numel for block, matrix in self._source.matrices().items()}

    def _largest(self) -> int:
        sizes = {block: size for block, size in self._sizes().items() if block in self._recorded}
        return max(sizes, key=lambda block: sizes[block], default=0)

    def _label(self, block: int) -> str:
        name, sizes = type(self._optimizer).__name__, self._sizes()
        if len(sizes) < 2:
            return name
        which = f"the largest of {len(sizes)}, " if block == self._largest() else ""
        return f"{name}, block {block} ({which}{sizes[block]:,} of {sum(sizes.values()):,} elements)"


def _compare(matrix: Matrix) -> StepComparison:
    eps, jitter = matrix.options["eps"], matrix.options["jitter"]
    return compare_steps(matrix.window, eps=eps, jitter=jitter, columns=matrix.columns)
