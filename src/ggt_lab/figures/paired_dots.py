"""Pairs of methods, seed by seed: how each optimizer changes when one thing is changed about it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from ggt_lab.figures.style import COLORS, log_axis, quiet, save

__all__ = ["draw_pairs"]


def draw_pairs(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    sides: tuple[str, str],
    path: Path,
    *,
    title: str = "",
) -> list[Path]:
    """Draw a panel for each problem, with a pair of columns for each optimizer, and write ``path`` as PNG and PDF.

    A dot is a run. A line leads from the mean on the one side to the mean on the other side.

    Args:
        panels: for each problem, for each optimizer: the values of the runs on both sides. Values that are not finite,
            of runs that diverged, are left out.
        sides: the names of the two sides.
        path: the path of the files, without suffix.
        title: the line above the figure.

    Returns:
        The paths of the files.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 3.6), layout="constrained", squeeze=False)
    for panel, (problem, optimizers) in zip(axes[0], panels.items(), strict=True):
        for place, (color, pair) in enumerate(zip(COLORS, optimizers.values(), strict=False)):
            finite = [[value for value in side if value < float("inf")] for side in pair]
            xs = (place - 0.18, place + 0.18)
            for x, values, filled in zip(xs, finite, (False, True), strict=True):
                panel.plot([x] * len(values), values, "o", color=color, fillstyle="full" if filled else "none", ms=6)
            if all(finite):
                panel.plot(xs, [sum(side) / len(side) for side in finite], color=color, linewidth=1.2)
        panel.set_xticks(range(len(optimizers)), list(optimizers))
        panel.set_title(problem, fontsize=10)
        log_axis(panel, "y")
        quiet(panel)
    for name, style in zip(sides, ("none", "full"), strict=True):
        axes[0][0].plot([], [], "o", color="black", fillstyle=style, label=name)
    axes[0][0].legend(frameon=False, fontsize=9)
    return save(figure, path, title=title)
