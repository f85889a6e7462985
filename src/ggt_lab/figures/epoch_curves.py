"""Curves of long runs by epoch, or by second: mean and range over seeds of one or two numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ggt_lab.figures.style import log_axis, quiet, save
from ggt_lab.figures.zoom import end_together
from ggt_lab.optimizers.colors import LineStyle, line_styles
from ggt_lab.runs.results import Record

__all__ = ["draw_epochs"]

_LEGEND = 1.9  # inches
_FALL = 4 / 3  # how much longer a logarithmic axis may become to show the first tenth of the runs


@dataclass(frozen=True)
class _Line:
    """Mean, lowest and highest over seeds."""

    x: list[float]
    means: list[float]
    low: list[float]
    high: list[float]
    label: str

    def draw(self, axes: Axes, color: str, dashes: str | tuple[int, tuple[int, ...]]) -> Line2D:
        """The line with its band."""
        (line,) = axes.plot(self.x, self.means, color=color, linestyle=dashes, linewidth=1.7, label=self.label)
        axes.fill_between(self.x, self.low, self.high, color=color, alpha=0.15, linewidth=0)
        return line

    def after(self, start: float) -> list[float]:
        """The edges of the band from ``start`` on."""
        return [v for part in (self.low, self.high) for x, v in zip(self.x, part, strict=True) if x >= start]


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
    would take much room. Where the best lines end together, a second row of panels shows their last third.

    Args:
        runs: the runs of each entrant, one for each seed.
        keys: the numbers of the curves that are drawn.
        path: the path of the files, without suffix.
        title: the line above the figure.
        step_ms: milliseconds of a step, by entrant; then the axis shows seconds of training in place of epochs.

    Returns:
        The paths of the files.
    """
    styles = line_styles(list(runs))
    lines = {key: _lines(runs, key, step_ms) for key in keys}
    groups = {key: _together(lines[key]) for key in keys}
    rows = 2 if any(groups.values()) else 1
    size = (4.4 * len(keys) + _LEGEND, 4 if rows == 1 else 6.6)
    figure, panels = plt.subplots(rows, len(keys), figsize=size, layout="constrained", squeeze=False)
    handles: dict[str, Line2D] = {}
    for column, key in enumerate(keys):
        axes = panels[0][column]
        for name, line in lines[key].items():
            handles[name] = line.draw(axes, *styles[name])
        _finish(axes, key, step_ms is not None)
        whole = _whole(lines[key])
        if whole:
            axes.set_ylim(whole)
        if rows == 2:
            _zoom(panels[1][column], {name: lines[key][name] for name in groups[key]}, styles)
            _finish(panels[1][column], key, step_ms is not None)
            panels[1][column].set_visible(bool(groups[key]))
    # The legend stands beside the panels: ten names would hide some of the curves.
    figure.legend(handles=list(handles.values()), loc="outside right upper", fontsize=8, frameon=False)
    return save(figure, path, title=title)


def _lines(runs: Mapping[str, Sequence[Record]], key: str, step_ms: Mapping[str, float] | None) -> dict[str, _Line]:
    found = {}
    for name, records in runs.items():
        points = _values(records, key, "epoch" if step_ms is None else "step")
        if not points:
            continue
        places = sorted(points)
        diverged = sum(record["status"] != "done" for record in records)
        label = f"{name}, lr {records[0]['lr']:.3g}" + (f", {diverged} diverged" if diverged else "")
        scale = 1.0 if step_ms is None else step_ms[name] / 1000
        found[name] = _Line(
            [place * scale for place in places],
            [sum(points[place]) / len(points[place]) for place in places],
            [min(points[place]) for place in places],
            [max(points[place]) for place in places],
            label,
        )
    return found


def _values(records: Sequence[Record], key: str, place: str) -> dict[int, list[float]]:
    """The finite values of a number over seeds, by epoch or step."""
    values: dict[int, list[float]] = {}
    for record in records:
        for point in record["curve"]:
            if math.isfinite(point.get(key, math.nan)):
                values.setdefault(point[place], []).append(point[key])
    return values


def _finish(axes: Axes, key: str, seconds: bool) -> None:
    """Names and scales of the axes."""
    axes.set_xlabel("seconds of training (steps × time of a step)" if seconds else "epoch")
    axes.set_ylabel(key.replace("_", " "))
    log_axis(axes, "y")
    if not seconds:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=(1, 2, 5, 10)))
    quiet(axes)


def _whole(lines: Mapping[str, _Line]) -> tuple[float, float] | None:
    """The limits of the upper panel, which shows all but the fall at the start; None if a value is not positive."""
    trained = [value for line in lines.values() for value in (line.high[1:] if line.x[0] == 0 else line.high)]
    later = [value for line in lines.values() for part in (line.low, line.high) for value in part[len(line.x) // 10 :]]
    return _limits(trained, later) if later and min(later) > 0 else None


def _together(lines: Mapping[str, _Line]) -> list[str]:
    """The lines whose end cannot be seen in the upper panel."""
    limits = _whole(lines)
    return end_together({name: line.means[-1] for name, line in lines.items()}, limits) if limits else []


def _zoom(axes: Axes, lines: Mapping[str, _Line], styles: Mapping[str, LineStyle]) -> None:
    """The last third of the lines that end together."""
    if not lines:
        return
    end = max(line.x[-1] for line in lines.values())
    shown = [value for line in lines.values() for value in line.after(2 / 3 * end)]
    for name, line in lines.items():
        line.draw(axes, *styles[name])
    axes.set_xlim(2 / 3 * end, end)
    axes.set_ylim(0.995 * min(shown), 1.005 * max(shown))
    axes.set_title("the last third, the lines that end together", fontsize=9, loc="left")


def _limits(trained: Sequence[float], later: Sequence[float]) -> tuple[float, float]:
    """The limits of an axis that shows ``later``, and also all of ``trained`` if there is room.

    Without this limit the fall at the start would often take most of the axis.
    """
    bottom, top = min(later), max(later)
    highest = max(trained, default=top)
    if highest <= bottom * (top / bottom) ** _FALL:
        top = max(top, highest)
    return 0.97 * bottom, 1.03 * top
