"""Curves of long runs by epoch: mean and range over seeds of one or two numbers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from ggt_lab.figures.style import COLORS, log_axis, quiet, save
from ggt_lab.results import Record

__all__ = ["draw_epochs"]


def draw_epochs(
    runs: Mapping[str, Sequence[Record]], keys: Sequence[str], path: Path, *, title: str = "", log: bool = True
) -> list[Path]:
    """One panel per number, one line per entrant; a seed that diverged ends where it did.

    Args:
        runs: the runs of each entrant, one per seed.
        keys: which numbers of the curves.
        path: where to, without suffix.
        title: above the figure.
        log: logarithmic numbers.

    Returns:
        The files written.
    """
    figure, panels = plt.subplots(1, len(keys), figsize=(4.8 * len(keys), 4), layout="constrained", squeeze=False)
    for axes, key in zip(panels[0], keys, strict=True):
        largest = []
        for color, (name, records) in zip(COLORS * len(runs), runs.items(), strict=False):
            points: dict[int, list[float]] = {}
            for record in records:
                for point in record["curve"]:
                    if math.isfinite(point.get(key, math.nan)):
                        points.setdefault(point["epoch"], []).append(point[key])
            if not points:
                continue
            epochs = sorted(points)
            diverged = sum(record["status"] != "done" for record in records)
            label = f"{name}, lr {records[0]['lr']:g}" + (f", {diverged} diverged" if diverged else "")
            means = [sum(points[e]) / len(points[e]) for e in epochs]
            axes.plot(epochs, means, color=color, linewidth=1.7, label=label)
            low, high = ([pick(points[e]) for e in epochs] for pick in (min, max))
            axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
            largest.append(means[min(1, len(means) - 1)])
        axes.set_xlabel("epoch")
        axes.set_ylabel(key.replace("_", " "))
        if log:
            log_axis(axes, "y")
        if largest and not log:
            axes.set_ylim(top=1.05 * max(largest))
        quiet(axes)
    panels[0][0].legend(frameon=False, fontsize=8)
    return save(figure, path, title=title)
