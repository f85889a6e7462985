"""What a logger wants to know of a window, and how it gets there."""

from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from torch_ggt.shrinkage import noise_share
from torch_ggt.spectrum.diagnosis import effective_rank
from torch_ggt.spectrum.recorder import unwrapped
from torch_ggt.step import FullMatrixOptimizer

__all__ = ["consolidate", "figures", "has_window", "window_owner", "write"]


def window_owner(optimizer: Any) -> FullMatrixOptimizer:  # noqa: ANN401 - an optimizer, or the wrapper of a package
    """Who has the window: GGT or a relative itself, or the `Whitening` that works for this optimizer.

    The wrappers of Accelerate and Lightning are taken off.
    """
    plain = unwrapped(optimizer)
    owner = getattr(plain, "whitening", plain)
    if not isinstance(owner, FullMatrixOptimizer):
        raise TypeError(
            f"{type(plain).__name__} has no window: use torch_ggt.GGT, or torch_ggt.whiten({type(plain).__name__}(...))"
        )
    return owner


def has_window(optimizer: Optimizer) -> bool:
    """Whether `window_owner` finds one."""
    plain = unwrapped(optimizer)
    return isinstance(getattr(plain, "whitening", plain), FullMatrixOptimizer)


@torch.no_grad()
def figures(optimizer: Any) -> dict[str, float]:  # noqa: ANN401 - see `window_owner`
    """The numbers to log after a step. They wait for the device, so do not ask for them at every step on a GPU.

    ===================== ============================================================================================
    skipped               steps that were skipped because a gradient was not finite
    rows                  rows of the window that are filled
    largest_singular      the largest singular value of the window
    smallest_singular     the smallest singular value of its filled rows
    effective_rank        exp(entropy of λ/Σλ), λ the squares of the singular values: 1 if all rows are parallel
    noise_share           the mean share of a row that the other rows do not explain; only with shrinkage="auto"
    ===================== ============================================================================================

    With several matrices (``scope="parameter"``) rows and smallest_singular are their least, largest_singular is
    their greatest, and the last two are means. An empty window has only the first two. Where the window is split over
    ranks, every rank must call this, and every rank gets these numbers.

    Example:
        >>> from torch_ggt import GGT
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = GGT(model.parameters())
        >>> model(torch.ones(8, 3)).square().mean().backward()
        >>> optimizer.step()
        >>> sorted(figures(optimizer))
        ['effective_rank', 'largest_singular', 'noise_share', 'rows', 'skipped', 'smallest_singular']
    """
    owner = window_owner(optimizer)
    spectra = [values.cpu() for values in owner.spectrum()]
    found = {"skipped": float(owner.skipped), "rows": float(min(map(len, spectra), default=0))}
    filled = [values for values in spectra if len(values) and values[0] > 0]
    if not filled:
        return found
    found["largest_singular"] = max(float(values[0]) for values in filled)
    found["smallest_singular"] = min(float(values[-1]) for values in filled)
    found["effective_rank"] = _mean([effective_rank(values.square()) for values in filled])
    shares = [
        float(noise_share(window.gram))
        for block in owner.attached_blocks()
        if block.options["shrinkage"] == "auto"
        for window in block.window.matrices()
        if int(window.count)
    ]
    return {**found, "noise_share": _mean(shares)} if shares else found


def write(writer: Any, optimizer: Any, step: int, prefix: str = "ggt/") -> dict[str, float]:  # noqa: ANN401
    """Write the `figures` of an optimizer to TensorBoard or W&B, and return them.

    Args:
        writer: a SummaryWriter (with ``add_scalar``), a W&B run (with ``log``), or None on ranks that do not write.
        optimizer: see `window_owner`.
        step: the number of the step.
        prefix: comes before every name.
    """
    if writer is not None and not hasattr(writer, "add_scalar") and not hasattr(writer, "log"):
        raise TypeError(
            f"write: {type(writer).__name__} has neither add_scalar (a TensorBoard SummaryWriter) nor log (a W&B run); "
            "for another logger, log the dict that figures(optimizer) returns"
        )
    found = {prefix + name: value for name, value in figures(optimizer).items()}
    if hasattr(writer, "add_scalar"):
        for name, value in found.items():
            writer.add_scalar(name, value, step)
    elif writer is not None:
        writer.log(found, step=step)
    return found


def consolidate(optimizer: Any, to: int = 0) -> None:  # noqa: ANN401 - see `window_owner`
    """Put a window that is split over ranks together on rank ``to``, before that rank alone saves; on every rank."""
    window_owner(optimizer)  # raises for an optimizer without a window
    unwrapped(optimizer).consolidate_state_dict(to=to)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
