"""Variants of each optimizer side by side, seed by seed: what changes when one thing about it is changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib import pyplot as plt

from ggt_lab.figures.style import log_axis, quiet, save
from ggt_lab.optimizers.colors import line_styles

__all__ = ["draw_sides"]

_FILLS: tuple[Literal["none", "bottom", "full", "left"], ...] = ("none", "full", "bottom", "left")


def draw_sides(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    sides: Sequence[str],
    path: Path,
    *,
    title: str = "",
) -> list[Path]:
    """Draw a panel for each problem, with columns side by side for each optimizer, and write ``path`` as PNG and PDF.

    A dot is a run. A line leads from mean to mean.

    Args:
        panels: for each problem, for each optimizer, for each side: the values of the runs. Values that are not finite,
            of runs that diverged, are left out.
        sides: the names of the sides, four at most.
        path: the path of the files, without suffix.
        title: the line above the figure.

    Returns:
        The paths of the files.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.9), layout="constrained", squeeze=False)
    for panel, (problem, optimizers) in zip(axes[0], panels.items(), strict=True):
        styles = line_styles(list(optimizers))
        for place, (name, runs) in enumerate(optimizers.items()):
            color = styles[name][0]
            means = []
            for number, (values, fill) in enumerate(zip(runs, _FILLS, strict=False)):
                x = place + 0.2 * (number - (len(runs) - 1) / 2)
                finite = [value for value in values if value < float("inf")]
                panel.plot([x] * len(finite), finite, "o", color=color, fillstyle=fill, markersize=6)
                if finite:
                    means.append((x, sum(finite) / len(finite)))
            panel.plot([x for x, _ in means], [mean for _, mean in means], color=color, linewidth=1.2)
        panel.set_xticks(range(len(optimizers)), list(optimizers))
        panel.set_title(problem, fontsize=10)
        log_axis(panel, "y")
        quiet(panel)
    handles = [
        axes[0][0].plot([], [], "o", color="black", fillstyle=fill, label=name)[0]
        for name, fill in zip(sides, _FILLS, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(sides), frameon=False, fontsize=9)
    return save(figure, path, title=title)
