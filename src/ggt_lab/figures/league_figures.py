"""The performance profiles of the league, and its cells as dots."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from ggt_lab.figures.style import log_axis, quiet, save
from ggt_lab.optimizers.colors import line_styles

__all__ = ["draw_cells", "draw_profiles"]

_FAR = 1000
"""A run that ends so many times above the median of its panel is drawn as an arrow at this end."""
_IN_GREY = {"color": "#B0B0B0", "linewidth": 0.8, "zorder": 1}


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
    named = _named(summary)
    for panel, (key, words) in zip(axes[0], kinds, strict=False):
        for name, shares in sorted(summary[key].items(), key=lambda item: item[0] in named):  # named lines lie above
            drawn = {"label": titles[name], "linewidth": 2, **styles[name]} if name in named else _IN_GREY
            panel.step(summary["taus"], shares, where="post", **drawn)
        panel.set_xlabel(f"τ: {words} divided by those of the fastest")
        panel.set_ylim(-0.02, 1.02)
        log_axis(panel, "x")
        quiet(panel)
    axes[0][0].set_ylabel("share of tasks solved")
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8, handlelength=5)
    return save(figure, path, title="Solved: the level that tuned AdamW has at its end. Grey: the others")


def _named(summary: Mapping[str, Any]) -> set[str]:
    """The entrants that the profiles name: rivals, recommended members, and the three that solve most, per step."""
    best = sorted(summary["profile_per_step"].items(), key=lambda item: -sum(item[1]))[:3]
    return {*summary["baselines"], summary["recommended"], summary["recommended_deep"], *(name for name, _ in best)}


def draw_cells(summary: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw a panel for each task that was played: a line for each entrant that has runs, a dot for each fresh run."""
    styles = entrant_styles(summary)
    done = [cell for cell in summary["cells"] if cell["status"] in ("done", "partly")]
    tasks = [task for task in summary["tasks"] if any(cell["task"] == task["name"] for cell in done)]
    lines = [[each for each in _with_titles(summary, done) if each[1]["task"] == task["name"]] for task in tasks]
    heights = [max(map(len, lines[left : left + 2])) for left in range(0, len(lines), 2)] or [1]
    figure, axes = plt.subplots(
        len(heights),
        2,
        figsize=(11, sum(0.9 + 0.19 * height for height in heights)),
        layout="constrained",
        squeeze=False,
        height_ratios=[4 + height for height in heights],
    )
    for panel in axes.flat[len(tasks) :]:
        panel.set_visible(False)
    for panel, task, entrants in zip(axes.flat, tasks, lines, strict=False):
        shown = [[value for value in cell["values"] if value is not None] for _, cell in entrants]
        end = _FAR * statistics.median(value for values in shown for value in values)
        for line, ((_, cell), values) in enumerate(zip(entrants, shown, strict=True)):
            color = styles[cell["entrant"]]["color"]
            near, far = ([value for value in values if (value > end) is beyond] for beyond in (False, True))
            panel.plot(near, [line] * len(near), "o", color=color, markersize=5)
            panel.plot([end] * len(far), [line] * len(far), ">", color=color, markersize=6)
        panel.set_title(task["title"], fontsize=9)
        panel.set_yticks(range(len(entrants)), [title for title, _ in entrants], fontsize=7.5)
        panel.set_ylim(len(entrants) - 0.5, -0.5)
        log_axis(panel, "x")
        panel.tick_params(axis="x", which="both", labelsize=6.5)
        quiet(panel)
    return save(figure, path, title="Every run with a fresh seed. Small is good. An arrow: far beyond the panel")


def _with_titles(summary: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """(title of the entrant, cell), in the order of the entrants."""
    return [(e["title"], cell) for e in summary["entrants"] for cell in cells if cell["entrant"] == e["name"]]
