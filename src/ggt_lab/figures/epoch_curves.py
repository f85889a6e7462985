"""Curves of long runs by epoch, or by second: mean and range over seeds of one or two numbers."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ggt_lab.figures.style import COLORS, log_axis, quiet, save
from ggt_lab.runs.results import Record

__all__ = ["draw_epochs"]

# The lines after the sixth are dashed, so that both are seen where one hides another. None has the colour of the first
# line, which is GGT. A line whose name begins with the name of another line, "GGT by parameter", has its colour.
_STYLES = [(color, "-") for color in COLORS[:6]] + [(color, "--") for color in (COLORS[6], COLORS[3], COLORS[2])]
_DASHES = ("--", ":", "-.")
_LEGEND = 1.9  # inches
_FALL = 4 / 3  # how much longer a logarithmic axis may become to show the first tenth of the runs


def draw_epochs(
    runs: Mapping[str, Sequence[Record]],
    keys: Sequence[str],
    path: Path,
    *,
    title: str = "",
    step_ms: Mapping[str, float] | None = None,
) -> list[Path]:
    """Draw one panel for each number and one line for each entrant. The line of a seed ends where the seed diverged.

    The axis is chosen for everything after the first tenth of the runs. Higher points at the start are cut off if they
    would take much room.

    Args:
        runs: the runs of each entrant, one for each seed.
        keys: the numbers of the curves that are drawn.
        path: the path of the files, without suffix.
        title: the line above the figure.
        step_ms: milliseconds of a step, by entrant; then the axis shows seconds of training in place of epochs.

    Returns:
        The paths of the files.
    """
    styles = _styles(list(runs))
    width = 4.4 * len(keys) + _LEGEND
    figure, panels = plt.subplots(1, len(keys), figsize=(width, 4), layout="constrained", squeeze=False)
    lines: dict[str, Line2D] = {}
    for axes, key in zip(panels[0], keys, strict=True):
        trained: list[float] = []
        later: list[float] = []
        for name, records in runs.items():
            points = _values(records, key, "epoch" if step_ms is None else "step")
            if not points:
                continue
            places = sorted(points)
            diverged = sum(record["status"] != "done" for record in records)
            label = f"{name}, lr {records[0]['lr']:.3g}" + (f", {diverged} diverged" if diverged else "")
            color, dashes = styles[name]
            x = places if step_ms is None else [step * step_ms[name] / 1000 for step in places]
            means = [sum(points[place]) / len(points[place]) for place in places]
            (lines[name],) = axes.plot(x, means, color=color, linestyle=dashes, linewidth=1.7, label=label)
            low, high = ([pick(points[place]) for place in places] for pick in (min, max))
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            trained += high[1:] if places[0] == 0 else high
            later += [value for part in (low, high) for value in part[len(places) // 10 :]]
        axes.set_xlabel("epoch" if step_ms is None else "seconds of training (steps × time of a step)")
        axes.set_ylabel(key.replace("_", " "))
        log_axis(axes, "y")
        if later and min(later) > 0:
            axes.set_ylim(_limits(trained, later))
        if step_ms is None:
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=(1, 2, 5, 10)))
        quiet(axes)
    # The legend stands beside the panels: ten names would hide some of the curves.
    figure.legend(handles=list(lines.values()), loc="outside right upper", fontsize=8, frameon=False)
    return save(figure, path, title=title)


def _values(records: Sequence[Record], key: str, place: str) -> dict[int, list[float]]:
    """The finite values of a number over seeds, by epoch or step."""
    values: dict[int, list[float]] = {}
    for record in records:
        for point in record["curve"]:
            if math.isfinite(point.get(key, math.nan)):
                values.setdefault(point[place], []).append(point[key])
    return values


def _styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and dashes of each line. "SGD fixed" has the colour of "SGD", if both are drawn."""
    bases = {name: base for name in names if (base := name.partition(" ")[0]) != name and base in names}
    mains = [name for name in names if name not in bases]
    styles = dict(zip(mains, itertools.cycle(_STYLES), strict=False))
    dashes = {name: itertools.cycle(_DASHES) for name in mains}
    return styles | {name: (styles[base][0], next(dashes[base])) for name, base in bases.items()}


def _limits(trained: Sequence[float], later: Sequence[float]) -> tuple[float, float]:
    """The limits of an axis that shows ``later``, and also all of ``trained`` if there is room.

    Without this limit the fall at the start would often take most of the axis.
    """
    bottom, top = min(later), max(later)
    highest = max(trained, default=top)
    if highest <= bottom * (top / bottom) ** _FALL:
        top = max(top, highest)
    return 0.97 * bottom, 1.03 * top
