"""The figure of ``ggt scale``: the parts of a step on many GPUs, and the largest affordable windows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from ggt_lab.figures.style import COLORS, log_axis, quiet, save

__all__ = ["draw_scale"]

_PARTS = {
    "two passes": "passes_s",
    "the rest of d elements": "traffic_s",
    "r × r, small launches": "solve_s",
    "all-reduce": "reduce_s",
    "waiting for others": "waiting_s",
}


def draw_scale(rows: Sequence[dict[str, Any]], path: Path) -> list[Path]:
    """Draw a column for each model: above the parts of a fully sharded step, below the largest windows."""
    sharded = [row for row in rows if row["mode"] == "FSDP"]
    models = list(dict.fromkeys(row["model"] for row in sharded))
    figure, panels = plt.subplots(2, len(models), figsize=(5.2 * len(models), 7), layout="constrained", squeeze=False)
    for (above, below), model in zip(panels.T, models, strict=True):
        mine = [row for row in sharded if row["model"] == model]
        _draw_parts(above, mine)
        _draw_windows(below, [row for row in rows if row["model"] == model])
        above.set_title(f"{model} parameters", fontsize=10)
    panels[0, 0].set_ylabel("ms per step")
    panels[1, 0].set_ylabel("largest window r")
    panels[0, -1].legend(frameon=False, fontsize=8)
    panels[1, 0].legend(frameon=False, fontsize=8)
    words = f"window {rows[0]['window']} in {rows[0]['dtype']}; one GPU measured, network and noise assumed"
    return save(figure, path, title=f"GGT step, fully sharded: {words}")


def _draw_parts(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    places, bottom = list(range(len(rows))), [0.0] * len(rows)
    for (name, key), color in zip(_PARTS.items(), COLORS, strict=False):
        extra = [row["launch_s"] if key == "solve_s" else 0.0 for row in rows]
        heights = [1e3 * (row[key] + more) for row, more in zip(rows, extra, strict=True)]
        axes.bar(places, heights, bottom=bottom, color=color, label=name, width=0.7)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set_xticks(places, [str(row["gpus"]) for row in rows])
    quiet(axes)


def _draw_windows(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    limits = {"memory": "fits into half of a GPU", "time": "1 % of a training step of 4 M tokens"}
    for mode, style in (("FSDP", "-"), ("HSDP", "--")):
        mine = [row for row in rows if row["mode"] == mode]
        gpus = [row["gpus"] for row in mine]
        for (limit, words), color in zip(limits.items(), COLORS, strict=False):
            label = f"{words}, {mode}"
            found = [row[f"largest_by_{limit}"] for row in mine]
            axes.plot(gpus, found, color=color, marker="o", linestyle=style, label=label)
    log_axis(axes, "y")
    axes.set_xscale("log", base=2)
    ticks = sorted({row["gpus"] for row in rows})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set_xlabel("GPUs")
    axes.set_ylim(8, 1100)
    quiet(axes)
