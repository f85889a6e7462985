"""Student's test without SciPy: a machine that trains may have torch and numpy alone."""

import math
import statistics
from collections.abc import Sequence

__all__ = ["half_interval", "paired_lead"]


def half_interval(deviation: float, n: int) -> float:
    """Half of the 95 % interval of a mean, by Student's test.

    Args:
        deviation: the standard deviation of the values.
        n: how many values there are; at least 2.

    Example:
        >>> round(half_interval(1.0, 5), 3)
        1.242
    """
    return _quantile(n - 1) * deviation / math.sqrt(n)


def paired_lead(ahead: Sequence[float], behind: Sequence[float]) -> tuple[float, float]:
    """The mean difference of two rows of numbers, seed by seed, and half of its 95 % interval.

    The interval is infinite for a single seed.

    Example:
        >>> paired_lead([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
        (-1.0, 0.0)
    """
    differences = [a - b for a, b in zip(ahead, behind, strict=True)]
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return mean, math.inf
    return mean, half_interval(statistics.stdev(differences), len(differences))


def _quantile(freedom: int) -> float:
    """The 97.5 % point of Student's distribution, by bisection."""
    low, high = 0.0, 20.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < 0.95 else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """The probability that Student's variable lies between −t and t, by the finite sum for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
    total = 0.0
    for k in range(1 + odd, freedom, 2):  # 1·cos, 2/3·cos³, … or 1, 1/2·cos², 3/8·cos⁴, …
        total += term
        term *= square * k / (k + 1)
    return (angle + total) * 2 / math.pi if odd else total
