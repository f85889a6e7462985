"""The spectrum of the window over training as a heat-map (Figure 5 of the paper).

A singular value σ of G gives an eigenvalue λ = σ² of GᵀG. Each column of the map is the density of log₁₀ λ at one time.
The lines are the smallest and the largest eigenvalue after a median filter.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ggt_lab.report.collection import Spectrum
from ggt_lab.spectra.eigenvalue_filters import above_rounding, median_filter

__all__ = ["HeatMap", "heat_map"]


@dataclass(frozen=True)
class HeatMap:
    """The numbers of the map and of its lines."""

    columns: list[float]
    """The middle of each column, in steps."""
    bins: list[float]
    """The middle of each bin of log₁₀ λ, ascending."""
    density: list[list[float | None]]
    """The share of a column's eigenvalues in each bin, by bin, then by column; None where there is no eigenvalue."""
    ceiling: float
    """The density of the darkest colour. While the window fills, columns have few eigenvalues and higher densities."""
    steps: list[float]
    smallest: list[float]
    """Smallest eigenvalue at each of ``steps``, as recorded."""
    largest: list[float]
    smooth_smallest: list[float]
    """The smallest eigenvalue at each of ``steps``, after the median filter."""
    smooth_largest: list[float]
    left_out: int
    """The number of eigenvalues that are rounding noise and are not drawn."""


def heat_map(spectrum: Spectrum, *, columns: int = 120, bins: int = 40) -> HeatMap:
    """Bin the eigenvalues over steps and log₁₀ λ.

    Args:
        spectrum: at least one singular value must be positive.
        columns: the largest number of columns; neighbouring steps share a column.
        bins: number of bins of log₁₀ λ.

    Raises:
        ValueError: no singular value is positive.

    Example:
        >>> spectrum = Spectrum("", 2, (0, 1), ((10.0,), (10.0, 1.0)), "", {})
        >>> heat_map(spectrum, bins=2).density
        [[None, 0.5], [1.0, 0.5]]
    """
    kept: list[tuple[float, list[float]]] = []
    left_out = 0
    for step, values in zip(spectrum.steps, spectrum.singular_values, strict=True):
        above = above_rounding(values, spectrum.numbers)
        left_out += len(values) - len(above)
        if above:
            kept.append((step, above))
    if not kept:
        raise ValueError(f"spectrum {spectrum.label!r} has no positive singular value: nothing can be drawn")
    smallest = [min(values) for _, values in kept]
    largest = [max(values) for _, values in kept]
    low, high = math.log10(min(smallest)), math.log10(max(largest))
    if high - low < 1e-9:  # one value only: a bin needs some height
        low, high = low - 0.5, high + 0.5
    height = (high - low) / bins
    width = math.ceil(len(kept) / columns)
    groups = [kept[start : start + width] for start in range(0, len(kept), width)]
    density: list[list[float | None]] = [[None] * len(groups) for _ in range(bins)]
    for column, group in enumerate(groups):
        logs = [math.log10(value) for _, values in group for value in values]
        for log in logs:
            row = density[min(int((log - low) / height), bins - 1)]
            row[column] = (row[column] or 0.0) + 1 / len(logs)
    return HeatMap(
        columns=[statistics.fmean(step for step, _ in group) for group in groups],
        bins=[low + (index + 0.5) * height for index in range(bins)],
        density=density,
        ceiling=_percentile([share for row in density for share in row if share is not None], 0.98),
        steps=[step for step, _ in kept],
        smallest=smallest,
        largest=largest,
        smooth_smallest=median_filter(smallest),
        smooth_largest=median_filter(largest),
        left_out=left_out,
    )


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * (len(values) - 1))]
