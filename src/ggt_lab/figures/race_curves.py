"""Curves of a race: each optimizer at its best learning rate, per step, and per second or with a look at the end."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from ggt_lab.figures.style import log_axis, quiet, save
from ggt_lab.figures.zoom import end_together
from ggt_lab.optimizers.colors import line_styles
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import larger_is_better, standings

__all__ = ["draw_curves"]


# From this number of seeds on, the band is the middle 80 % of them; below, it is all of them.
_MANY = 10


def draw_curves(
    records: Sequence[Record],
    path: Path,
    *,
    title: str = "",
    log: bool = True,
    by: str = "final",
    names: Mapping[str, str] | None = None,
    seconds: bool = False,
) -> list[Path]:
    """Draw mean (line) and range over seeds (band) of the metric, and write ``path`` as PNG and PDF.

    The mean is a geometric mean if ``by`` is a logarithm. With ten seeds or more the band leaves out the lowest and the
    highest tenth of the seeds.

    Args:
        records: finished runs of one problem; the legend names runs that diverged.
        path: the path of the files, without suffix.
        title: the line above the figure.
        log: a logarithmic axis for the metric, if all its values are positive.
        by: the measure that the best learning rate is chosen by, see `ggt_lab.runs.standings`.
        names: the name of an optimizer in the legend.
        seconds: the right panel shows seconds; only for seconds that were taken in turns. Otherwise it shows the last
            third of the runs; where the best ones end together, only these fit into it.

    Returns:
        The paths of the files.
    """
    finished_values = [p[r["metric"]] for r in records if r["status"] == "done" for p in r["curve"]]
    log = log and bool(finished_values) and min(finished_values) > 0 and not larger_is_better(records)
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4), sharey=seconds, layout="constrained")
    ranking = standings(records, by=by)
    shown = {s.optimizer: (names or {}).get(s.optimizer, s.optimizer) for s in ranking}
    styles = line_styles(sorted(shown.values()))  # sorted: the order of the ranking must not change a colour
    late_values: dict[str, list[float]] = {}
    ends: dict[str, float] = {}
    for standing in ranking:
        color, dashes = styles[shown[standing.optimizer]]
        runs = [r for r in records if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
        label = f"{shown[standing.optimizer]}, lr {standing.lr:.3g}" + (" (grid edge)" if standing.at_edge else "")
        finished = [run for run in runs if run["status"] == "done"]
        if standing.diverged:
            label += f", {standing.diverged} of {len(runs)} diverged"
        if not finished:
            panels[0].plot([], [], color=color, linestyle=dashes, label=label)
            continue
        metric = finished[0]["metric"]
        curves = _at_common_steps(finished)
        values = [[point[metric] for point in curve] for curve in curves]
        mean_of = statistics.geometric_mean if log and by.startswith("log_") else statistics.fmean
        columns = [
            sorted(max(value, 1e-16) if log else value for value in column) for column in zip(*values, strict=True)
        ]
        mean = [mean_of(column) for column in columns]
        cut = len(finished) // 10 if len(finished) >= _MANY else 0
        for axes, key in zip(panels, ("step", "seconds" if seconds else "step"), strict=True):
            x = [statistics.fmean(xs) for xs in zip(*([p[key] for p in curve] for curve in curves), strict=True)]
            axes.plot(x, mean, color=color, linestyle=dashes, linewidth=1.8, label=label)
            low, high = ([column[place] for column in columns] for place in (cut, -1 - cut))
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        if not seconds:
            late = [place for place, step in enumerate(x) if step >= x[-1] * 2 / 3]
            late_values[standing.optimizer] = [part[place] for place in late for part in (low, high)]
            ends[standing.optimizer] = mean[-1]
            if x[-1] > 0:
                panels[1].set_xlim(x[-1] * 2 / 3, x[-1])
        panels[0].set_ylabel(metric)
    words = "seconds of training (steps × time of a step)" if seconds else "step, the last third"
    for axes, name in zip(panels, ("step", words), strict=True):
        axes.set_xlabel(name)
        if axes is panels[0] or seconds:
            axes.set_xlim(left=0)
        if log:
            log_axis(axes, "y")
        quiet(axes)
    if ends:
        near = (end_together(ends, finished_values) if log else []) or list(ends)
        panels[1].set_ylim(_around([value for name in near for value in late_values[name]], log=log))
    panels[0].legend(frameon=False, fontsize=8)
    return save(figure, path, title=title)


def _around(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    """The limits of an axis that shows these values, with a little room."""
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** 0.05
        return low / room * 0.99, high * room * 1.01
    room = 0.05 * (high - low) or 0.01 * abs(high) or 1.0
    return low - room, high + room


def _at_common_steps(runs: Sequence[Record]) -> list[list[dict[str, Any]]]:
    """The curves at the steps at which all runs were evaluated: all steps, unless a record lost a point."""
    by_step = [{point["step"]: point for point in run["curve"]} for run in runs]
    common = sorted(set.intersection(*map(set, by_step)))
    return [[points[step] for step in common] for points in by_step]
