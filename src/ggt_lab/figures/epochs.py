"""Curves of long runs by epoch, or by second: mean and range over seeds of one or two numbers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from ggt_lab.figures.style import COLORS, log_axis, quiet, save
from ggt_lab.results import Record

__all__ = ["draw_epochs"]

_SOLID = 6  # further lines are dashed: where one of them hides another, both are seen


def draw_epochs(
    runs: Mapping[str, Sequence[Record]],
    keys: Sequence[str],
    path: Path,
    *,
    title: str = "",
    step_ms: Mapping[str, float] | None = None,
) -> list[Path]:
    """One panel per number, one line per entrant; a seed that diverged ends where it did.

    What lies above everything that comes after the first tenth of the runs is cut off.

    Args:
        runs: the runs of each entrant, one per seed.
        keys: which numbers of the curves.
        path: where to, without suffix.
        title: above the figure.
        step_ms: milliseconds of a step, by entrant: seconds of training in place of epochs.

    Returns:
        The files written.
    """
    figure, panels = plt.subplots(1, len(keys), figsize=(4.8 * len(keys), 4), layout="constrained", squeeze=False)
    for axes, key in zip(panels[0], keys, strict=True):
        shown: list[float] = []
        for number, (name, records) in enumerate(runs.items()):
            points: dict[int, list[float]] = {}
            for record in records:
                for point in record["curve"]:
                    if math.isfinite(point.get(key, math.nan)):
                        points.setdefault(point["epoch" if step_ms is None else "step"], []).append(point[key])
            if not points:
                continue
            places = sorted(points)
            diverged = sum(record["status"] != "done" for record in records)
            label = f"{name}, lr {records[0]['lr']:.3g}" + (f", {diverged} diverged" if diverged else "")
            color, dashed = COLORS[number % len(COLORS)], number >= _SOLID
            x = places if step_ms is None else [step * step_ms[name] / 1000 for step in places]
            means = [sum(points[place]) / len(points[place]) for place in places]
            axes.plot(x, means, color=color, linestyle="--" if dashed else "-", linewidth=1.7, label=label)
            low, high = ([pick(points[place]) for place in places] for pick in (min, max))
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            # The fall from the start, a tenth of the run, would take most of the room.
            first = len(places) // 10
            shown += [value for part in (low, high) for value in part[first:]]
        axes.set_xlabel("epoch" if step_ms is None else "seconds of training (steps × time of a step)")
        axes.set_ylabel(key.replace("_", " "))
        log_axis(axes, "y")
        if shown and min(shown) > 0:
            axes.set_ylim(0.97 * min(shown), 1.03 * max(shown))
        quiet(axes)
    panels[0][0].legend(frameon=False, fontsize=8)
    return save(figure, path, title=title)
