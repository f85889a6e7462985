"""Curves of a race: each optimizer at its best learning rate, per step and per second."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from ggt_lab.figures.style import COLORS, log_axis, quiet, save
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import standings

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

    Returns:
        The paths of the files.
    """
    finished_values = [p[r["metric"]] for r in records if r["status"] == "done" for p in r["curve"]]
    log = log and bool(finished_values) and min(finished_values) > 0
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for color, standing in zip(itertools.cycle(COLORS), standings(records, by=by), strict=False):
        runs = [r for r in records if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
        name = (names or {}).get(standing.optimizer, standing.optimizer)
        label = f"{name}, lr {standing.lr:.3g}" + (" (grid edge)" if standing.at_edge else "")
        finished = [run for run in runs if run["status"] == "done"]
        if standing.diverged:
            label += f", {standing.diverged} of {len(runs)} diverged"
        if not finished:
            panels[0].plot([], [], color=color, label=label)
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
        for axes, key in zip(panels, ("step", "seconds"), strict=True):
            x = [statistics.fmean(xs) for xs in zip(*([p[key] for p in curve] for curve in curves), strict=True)]
            axes.plot(x, mean, color=color, linewidth=1.8, label=label)
            low, high = ([column[place] for column in columns] for place in (cut, -1 - cut))
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        panels[0].set_ylabel(metric)
    for axes, name in zip(panels, ("step", "seconds of training"), strict=True):
        axes.set_xlabel(name)
        axes.set_xlim(left=0)
        if log:
            log_axis(axes, "y")
        quiet(axes)
    panels[0].legend(frameon=False, fontsize=9)
    return save(figure, path, title=title)


def _at_common_steps(runs: Sequence[Record]) -> list[list[dict[str, Any]]]:
    """The curves at the steps at which all runs were evaluated: all steps, unless a record lost a point."""
    by_step = [{point["step"]: point for point in run["curve"]} for run in runs]
    common = sorted(set.intersection(*map(set, by_step)))
    return [[points[step] for step in common] for points in by_step]
