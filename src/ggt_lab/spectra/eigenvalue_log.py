"""The eigenvalues of GᵀG along a long run with GGT: part of its checkpoint, then one compact file beside its results.

The log reads the window of the optimizer. The host waits for the device at recorded steps only.
"""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ggt_lab.data.atomic_files import atomic_file
from torch_ggt import GGT, Window
from torch_ggt.spectrum.comparison import rounding_level
from torch_ggt.spectrum.diagnosis import isotropic_moment

__all__ = ["EigenvalueLog", "condition_numbers", "read_spectra"]

Array = np.ndarray[Any, np.dtype[Any]]


class EigenvalueLog:
    """Eigenvalues of GᵀG at every ``every``-th step.

    Args:
        optimizer: a GGT with one full matrix; any optimizer if ``every`` is 0.
        every: the number of steps from one record to the next; 0 records nothing.

    Raises:
        ValueError: ``every`` is negative, or the optimizer has no window, or it has several.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, every: int) -> None:
        if every < 0:
            raise ValueError(f"spectrum_every must be 0 (no spectra) or a number of steps, got {every}")
        if every and not (isinstance(optimizer, GGT) and optimizer.defaults["scope"] == "model"):
            raise ValueError(
                f"spectrum_every={every} reads the window of a GGT with scope 'model', and the optimizer is "
                f"{type(optimizer).__name__}; `ggt spectrum` records others with a window of its own"
            )
        self._optimizer = optimizer if isinstance(optimizer, GGT) else None
        self._every = every
        self._steps: list[int] = []
        self._eigenvalues: list[Tensor] = []

    def after(self, step: int) -> None:
        """Record, if it is time. Call this after each step; steps count from 1."""
        if not self._every or step % self._every:
            return
        window = self._window()
        if window is not None:
            # The CPU is faster for so small a matrix, and its routine was never seen to fail; the GPU's routine was.
            found = torch.linalg.eigvalsh(window.moment().cpu()).flip(-1).clamp_min(0)
            self._steps.append(step)
            self._eigenvalues.append(found.float())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"steps": list(self._steps), "eigenvalues": list(self._eigenvalues)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._steps = list(state["steps"])
        self._eigenvalues = [values.cpu() for values in state["eigenvalues"]]

    def write(self, path: Path) -> dict[str, Any] | None:
        """Write the file ``path``.

        Returns:
            What the record of the run says about the file, in types that JSON has: ``file``, ``steps``, ``conditions``
            (λmax/λmin at each step, see `condition_numbers`), and ``isotropic`` (λmax/λmin for gradients without
            structure, with this momentum and decay). None if nothing was recorded.
        """
        window = self._window()
        if not self._steps or self._optimizer is None or window is None:
            return None
        group = self._optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        rounding = rounding_level(window.rows.dtype, window.size)
        arrays = {
            "steps": np.array(self._steps, dtype=np.int64),
            "eigenvalues": torch.stack(self._eigenvalues).numpy(),
            "rounding": np.array(rounding),
            "history": np.array(group["history"]),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        decay = beta2 ** torch.arange(window.size, dtype=torch.float64)
        momentum = beta1 if group["history"] == "momentum" else 0.0
        unstructured = isotropic_moment(decay, beta1=momentum, nesterov=group["nesterov"])
        (isotropic,) = condition_numbers([torch.linalg.eigvalsh(unstructured).numpy()], rounding)
        conditions = condition_numbers(arrays["eigenvalues"], rounding)
        return {
            "file": f"{path.parent.name}/{path.name}",
            "steps": self._steps,
            "conditions": [float(f"{value:.4g}") for value in conditions],
            "isotropic": float(f"{isotropic:.4g}"),
            "rounding": rounding,
        }

    def _window(self) -> Window | None:
        """The window of the optimizer; None before the first gradient."""
        if self._optimizer is None:
            return None
        windows = [window for block in self._optimizer.attached_blocks() for window in block.window.matrices()]
        return windows[0] if windows else None


def condition_numbers(eigenvalues: Sequence[Array] | Array, rounding: float) -> list[float]:
    """λmax/λmin of each spectrum, without eigenvalues that are zero or rounding noise; 1 if at most one is left.

    Args:
        eigenvalues: one array per spectrum, in any order.
        rounding: the share of Σλ at which rounding noise begins.

    Example:
        >>> condition_numbers([np.array([9.0, 3.0, 0.0])], 1e-9)
        [3.0]
    """
    found = []
    for values in eigenvalues:
        wide = np.asarray(values, dtype=np.float64)
        kept = wide[wide > rounding * wide.sum()]
        found.append(float(kept.max() / kept.min()) if kept.size else 1.0)
    return found


def read_spectra(path: Path) -> dict[str, Any]:
    """What `EigenvalueLog.write` wrote, in the form that `draw_spectrum` takes, without a label.

    Raises:
        ValueError: the file holds something else, or was cut off.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            steps, eigenvalues = arrays["steps"], arrays["eigenvalues"].astype(np.float64)
            rounding, history = float(arrays["rounding"]), str(arrays["history"])
        _check_shapes(steps, eigenvalues, rounding)
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} holds no spectra of a long run ({error}); run it again, with spectrum_every"
        ) from None
    conditions = condition_numbers(eigenvalues, rounding)
    # While the window fills, there are as many eigenvalues as steps.
    filled = [values[:step] for step, values in zip(steps.tolist(), np.sqrt(eigenvalues).tolist(), strict=True)]
    recent = conditions[-max(1, len(conditions) // 4) :]
    return {
        "window": eigenvalues.shape[1],
        "history": history,
        "steps": steps.tolist(),
        "singular_values": filled,
        "diagnosis": {"numbers": {"condition": float(np.median(recent)), "rounding": rounding}},
    }


def _check_shapes(steps: Array, eigenvalues: Array, rounding: float) -> None:
    if steps.ndim != 1 or steps.dtype.kind != "i" or not steps.size:
        raise ValueError(f"steps should be a list of whole numbers, and has shape {steps.shape} and type {steps.dtype}")
    if eigenvalues.ndim != 2 or len(eigenvalues) != len(steps) or not eigenvalues.size:
        raise ValueError(f"eigenvalues of {len(steps)} steps have shape {eigenvalues.shape}")
    if not (np.isfinite(eigenvalues).all() and (eigenvalues >= 0).all() and np.isfinite(rounding)):
        raise ValueError("eigenvalues and rounding should be finite and not negative")
