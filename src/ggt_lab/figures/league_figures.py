"""The performance profiles of the league, and its cells as dots."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from ggt_lab.figures.style import log_axis, quiet, save
from ggt_lab.optimizers.colors import line_styles

__all__ = ["draw_cells", "draw_profiles"]


def entrant_styles(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """One colour and one line for each entrant, in every figure of the league."""
    titles = {entrant["name"]: entrant["title"] for entrant in summary["entrants"]}
    styles = line_styles(list(titles.values()))
    return {name: {"color": styles[title][0], "linestyle": styles[title][1]} for name, title in titles.items()}


def draw_profiles(summary: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw the share of tasks solved within τ times the cost of the cheapest, per step and per second."""
    styles = entrant_styles(summary)
    titles = {entrant["name"]: entrant["title"] for entrant in summary["entrants"]}
    kinds = [("profile_per_step", "steps"), ("profile_per_second", "seconds")]
    kinds = [(key, words) for key, words in kinds if summary[key]]
    figure, axes = plt.subplots(
        1, max(1, len(kinds)), figsize=(5.2 * max(1, len(kinds)), 5), layout="constrained", squeeze=False, sharey=True
    )
    for panel, (key, words) in zip(axes[0], kinds, strict=False):
        for name, shares in summary[key].items():
            panel.step(summary["taus"], shares, where="post", label=titles[name], linewidth=1.6, **styles[name])
        panel.set_xlabel(f"τ: {words} divided by those of the fastest")
        panel.set_ylim(-0.02, 1.02)
        log_axis(panel, "x")
        quiet(panel)
    axes[0][0].set_ylabel("share of tasks solved")
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return save(figure, path, title="Solved: the level that tuned AdamW has at its end")


def draw_cells(summary: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw a panel for each task that was played: every fresh run of every entrant as a dot."""
    styles = entrant_styles(summary)
    done = [cell for cell in summary["cells"] if cell["status"] in ("done", "partly")]
    tasks = [task for task in summary["tasks"] if any(cell["task"] == task["name"] for cell in done)]
    rows = max(1, math.ceil(len(tasks) / 2))
    figure, axes = plt.subplots(rows, 2, figsize=(11, 3.1 * rows), layout="constrained", squeeze=False, sharex=True)
    names = [entrant["name"] for entrant in summary["entrants"]]
    for panel in axes.flat[len(tasks) :]:
        panel.set_visible(False)
    for panel, task in zip(axes.flat, tasks, strict=False):
        for cell in (cell for cell in done if cell["task"] == task["name"]):
            values = [value for value in cell["values"] if value is not None]
            color = styles[cell["entrant"]]["color"]
            panel.plot([names.index(cell["entrant"])] * len(values), values, "o", color=color, markersize=5)
        panel.set_title(task["title"], fontsize=9)
        panel.set_xticks(
            range(len(names)), [e["title"] for e in summary["entrants"]], rotation=60, ha="right", fontsize=7
        )
        panel.tick_params(labelbottom=True)
        log_axis(panel, "y")
        quiet(panel)
    return save(figure, path, title="Every run with a fresh seed")
