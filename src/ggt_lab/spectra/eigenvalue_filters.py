"""Filters for pictures of a spectrum: eigenvalues without rounding noise, and lines without jitter."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["above_rounding", "median_filter"]

# Below this share of the sum an eigenvalue is rounding noise of a float64 Gram. A recorder may name another share.
_ROUNDING = 2.0**-46


def above_rounding(singular_values: Sequence[float], numbers: Mapping[str, Any]) -> list[float]:
    """The eigenvalues λ = σ² that are more than rounding noise, in the order given.

    Args:
        singular_values: σ, of one step.
        numbers: the numbers of a diagnosis; ``rounding`` is the share of Σλ at which rounding noise begins.

    Example:
        >>> above_rounding([10.0, 1.0, 1e-9], {})
        [100.0, 1.0]
    """
    eigenvalues = [value * value for value in singular_values]
    floor = numbers.get("rounding", _ROUNDING) * sum(eigenvalues)
    return [value for value in eigenvalues if value > floor]


def median_filter(values: Sequence[float], *, radius: int | None = None) -> list[float]:
    """Replace each value by the median of itself and ``radius`` neighbours on each side (fewer at the ends).

    Args:
        values: one per step.
        radius: None takes an eightieth of the values, so that each median is over a fortieth of the run.

    Example:
        >>> median_filter([1.0, 9.0, 2.0, 3.0], radius=1)
        [5.0, 2.0, 3.0, 2.5]
    """
    radius = max(1, len(values) // 80) if radius is None else radius
    return [statistics.median(values[max(0, index - radius) : index + radius + 1]) for index in range(len(values))]
