"""The adaptive ratio: the error of an algorithm in units of the bound of SGD."""

import math

from torch import Tensor

from ggt_lab.theory.oracles import Oracle

__all__ = ["adaptive_ratio"]


def adaptive_ratio(oracle: Oracle, *, start: Tensor, output: Tensor, minimizer: Tensor, steps: int) -> float:
    r"""μ of one run: its error, in units of the error that the bound of SGD promises.

    .. math:: \mu = \frac{f(x_A) - f(x^*)}{\|x_1 - x^*\|_2\,\sigma/\sqrt T}

    Args:
        oracle: f; its ``sigma`` is σ.
        start: x_1.
        output: x_A.
        minimizer: x*.
        steps: T, calls to the oracle.

    Example:
        >>> import torch
        >>> from ggt_lab.theory import SparseNoise
        >>> f = SparseNoise(1, torch.Generator())
        >>> one, half = torch.ones(1), torch.full((1,), 0.5)
        >>> adaptive_ratio(f, start=one, output=half, minimizer=0 * one, steps=4)
        0.5
    """
    distance = float((start - minimizer).norm())
    if distance == 0 or not oracle.sigma > 0 or steps < 1:
        raise ValueError(
            f"μ needs a start that is not the minimizer, σ > 0 and steps ≥ 1; got distance {distance}, "
            f"σ = {oracle.sigma}, steps = {steps}"
        )
    return float(oracle.value(output) - oracle.value(minimizer)) / (distance * oracle.sigma / math.sqrt(steps))
