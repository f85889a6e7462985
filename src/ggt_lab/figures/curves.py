"""Curves of a race: each optimizer at its best learning rate, per step and per second."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogFormatter

from ggt_lab.race import standings
from ggt_lab.results import Record

__all__ = ["draw_curves"]

# Okabe and Ito's palette: told apart by colour-blind readers, too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw_curves(records: Sequence[Record], path: Path, *, title: str = "", log: bool = True) -> list[Path]:
    """Draw mean (line) and range over seeds (band) of the metric, and write ``path`` as PNG and PDF.

    Args:
        records: finished runs of one problem; what diverged is named in the legend.
        path: where to, without suffix.
        title: above the figure.
        log: logarithmic metric.

    Returns:
        The files written.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for color, standing in zip(_COLORS * len(records), standings(records), strict=False):
        runs = [r for r in records if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
        label = f"{standing.optimizer}, lr {standing.lr:g}" + (" (grid edge)" if standing.at_edge else "")
        finished = [run for run in runs if run["status"] == "done"]
        if standing.diverged:
            label += f", {standing.diverged} of {len(runs)} diverged"
        if not finished:
            panels[0].plot([], [], color=color, label=label)
            continue
        metric = finished[0]["metric"]
        values = [[point[metric] for point in run["curve"]] for run in finished]
        mean = [sum(column) / len(column) for column in zip(*values, strict=True)]
        for axes, key in zip(panels, ("step", "seconds"), strict=True):
            x = [
                sum(column) / len(column)
                for column in zip(*([p[key] for p in r["curve"]] for r in finished), strict=True)
            ]
            axes.plot(x, mean, color=color, linewidth=1.8, label=label)
            low, high = ([pick(column) for column in zip(*values, strict=True)] for pick in (min, max))
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        panels[0].set_ylabel(metric)
    for axes, name in zip(panels, ("step", "seconds of training"), strict=True):
        axes.set_xlabel(name)
        axes.set_xlim(left=0)
        if log:
            axes.set_yscale("log")
            for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                which(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))  # 2, not 2·10⁰
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, alpha=0.25)
    panels[0].legend(frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for file in files:
        figure.savefig(file, dpi=150)
    plt.close(figure)
    return files
