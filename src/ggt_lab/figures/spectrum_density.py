"""Spectra over training, as in the paper's Figure 5: a density of eigenvalues per step, and their range."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from ggt_lab.figures.style import COLORS, save
from ggt_lab.spectra.eigenvalue_filters import above_rounding, median_filter

__all__ = ["draw_spectrum"]

Array = np.ndarray[Any, np.dtype[np.float64]]

# White to dark blue: the density is in the lightness alone, so that colour-blind readers can read it.
_DENSITY = LinearSegmentedColormap.from_list("density", ["#FFFFFF", "#C6DBEF", "#6BAED6", "#2171B5", "#08306B"])
_EXTREMES = COLORS[1]
_ROWS, _COLUMNS = 240, 600
_HISTORIES = {"gradient": "gradients", "momentum": "momentum vectors"}


def draw_spectrum(spectra: Sequence[dict[str, Any]], path: Path, title: str = "") -> list[Path]:
    """Draw one panel for each spectrum: the density of the eigenvalues of GᵀG, step by step.

    The lines are the smallest and the largest eigenvalue after a median filter.

    Args:
        spectra: what `SpectrumRecorder.to_json` returns: ``label``, ``window``, ``history``, ``steps``,
            ``singular_values``. If there is a ``diagnosis``, the panel shows its condition number.
        path: the path of the files, without suffix.
        title: the line above the figure.

    Returns:
        The paths of the files, PNG and PDF.
    """
    if not spectra:
        raise ValueError("draw_spectrum needs at least one spectrum, got none; SpectrumRecorder.to_json() gives one")
    columns = min(2, len(spectra))
    rows = math.ceil(len(spectra) / columns)
    size = (4.9 * columns + 0.9, 3.3 * rows + 0.3)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    mesh = None
    for axes, spectrum in zip(panels.flat, spectra, strict=False):
        mesh = _draw_panel(axes, spectrum) or mesh
    for axes in list(panels.flat)[len(spectra) :]:
        axes.set_visible(False)
    if mesh is not None:
        bar = figure.colorbar(mesh, ax=panels, aspect=30 * rows, pad=0.015, ticks=[0, 1])
        bar.ax.set_yticklabels(["none", "dense"])
        bar.set_label("density of a step's eigenvalues", labelpad=-18)
        bar.outline.set_visible(False)
    return save(figure, path, title=title)


def _draw_panel(axes: Axes, spectrum: dict[str, Any]) -> QuadMesh | None:
    axes.set_title(str(spectrum["label"]), loc="left", fontsize=10, pad=17)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    rows = _HISTORIES.get(spectrum["history"], spectrum["history"])
    axes.set_ylabel(f"eigenvalues of GᵀG\n({spectrum['window']} {rows})")
    axes.spines[["top", "right"]].set_visible(False)
    steps, logs, zeros = _positive_logarithms(spectrum)
    if steps.size == 0:
        reason = "every eigenvalue is zero" if spectrum["steps"] else "nothing was recorded"
        axes.text(0.5, 0.5, reason, ha="center", va="center", transform=axes.transAxes, color="0.4")
        axes.set(xticks=[], yticks=[])
        return None

    low, high = (np.array(median_filter([pick(values) for values in logs])) for pick in (np.min, np.max))
    grid, density = densities(logs)
    edges = _edges(steps)
    borders, pooled = _pool(edges, density)
    # The first steps have one or two eigenvalues and by far the highest peaks: they must not set the scale.
    full = [row for row, values in zip(density, logs, strict=True) if values.size == max(map(len, logs))]
    shade = np.sqrt(np.clip(pooled / np.quantile(np.max(full, axis=1), 0.9), 0, 1))
    mesh = axes.pcolormesh(borders, 10**grid, shade.T, cmap=_DENSITY, vmin=0, vmax=1, rasterized=True, shading="flat")
    # The lines go to the outer edges of the map, so that a single record has a line too.
    x = np.concatenate([edges[:1], steps, edges[-1:]])
    for line in (low, high):
        axes.plot(x, 10 ** np.concatenate([line[:1], line, line[-1:]]), color=_EXTREMES, linewidth=1.4)
    axes.set_yscale("log")
    axes.set_xlim(edges[0], edges[-1])
    if steps.size == 1:
        axes.set_xticks(steps)
    axes.set_ylim(10 ** grid[0], 10 ** grid[-1])
    axes.text(0, 1.02, _words(spectrum, zeros), transform=axes.transAxes, va="bottom", fontsize=8, color="0.35")
    return mesh


def _words(spectrum: dict[str, Any], zeros: int) -> str:
    parts = []
    condition = spectrum.get("diagnosis", {}).get("numbers", {}).get("condition")
    if condition is not None:
        parts.append(f"condition {_two_digits(condition)} (median of the last quarter)")
    if zeros:
        parts.append(f"up to {zeros} zeros not shown")
    return "; ".join(parts)


def _two_digits(number: float) -> str:
    if number < 1e5:
        return f"{float(f'{number:.2g}'):,g}"
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa}·10$^{{{int(exponent)}}}$"


def _positive_logarithms(spectrum: dict[str, Any]) -> tuple[Array, list[Array], int]:
    """The steps that have an eigenvalue, log₁₀ λ at each step without zeros, and the largest number of zeros."""
    numbers = spectrum.get("diagnosis", {}).get("numbers", {})
    steps, logs, zeros = [], [], 0
    for step, singular_values in zip(spectrum["steps"], spectrum["singular_values"], strict=True):
        positive = above_rounding(singular_values, numbers)
        zeros = max(zeros, len(singular_values) - len(positive))
        if positive:
            steps.append(step)
            logs.append(np.log10(np.array(positive, dtype=np.float64)))
    return np.array(steps, dtype=np.float64), logs, zeros


def densities(logs: Sequence[Array], *, rows: int = _ROWS) -> tuple[Array, Array]:
    """A kernel density of log₁₀ λ at each step, on one grid for all steps.

    Args:
        logs: log₁₀ λ, one array for each step.
        rows: the number of cells of the grid.

    Returns:
        The edges of the cells, shape (rows + 1,), and the densities, shape (steps, rows). Each density has integral 1,
        without its tails beyond the grid.
    """
    bottom, top = min(values.min() for values in logs), max(values.max() for values in logs)
    # A kernel of a fortieth of the range shows single eigenvalues that stand apart.
    width = max((top - bottom) / 40, 0.04)
    edges = np.linspace(bottom - 4 * width, top + 4 * width, rows + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    found = [np.exp(-0.5 * ((centres[:, None] - values) / width) ** 2).mean(1) for values in logs]
    return edges, np.stack(found) / (width * math.sqrt(2 * math.pi))


def _edges(steps: Array) -> Array:
    """The borders between the columns of steps: half way between neighbours."""
    if steps.size == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middle = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[1.5 * steps[0] - 0.5 * steps[1]], middle, [1.5 * steps[-1] - 0.5 * steps[-2]]])


def _pool(edges: Array, density: Array) -> tuple[Array, Array]:
    """No more columns than a figure can show; each column is the mean of its steps."""
    starts = np.unique(np.linspace(0, len(density), min(_COLUMNS, len(density)), endpoint=False).astype(int))
    counts = np.diff([*starts, len(density)])
    pooled: Array = np.add.reduceat(density, starts, axis=0) / counts[:, None]
    return np.concatenate([edges[starts], edges[-1:]]), pooled
