"""Figures of speed: time against d and r with the floor, training steps compared with SGD, and baselines."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from ggt_lab.figures.style import COLORS, log_axis, quiet, save
from ggt_lab.runs.results import Record

__all__ = ["draw_speed"]

_COUNT = EngFormatter()


def draw_speed(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw ``steps``, ``training`` and ``baselines`` into the folder, as far as there are records for them.

    Args:
        records: what `ggt_lab.bench.case_files.read_cases` returned.
        folder: the folder of the figures.

    Returns:
        The paths of the files, PNG and PDF.
    """
    done = [record for record in records if record.get("status") == "done"]
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for record in done:
        by_kind[record["kind"]].append(record)
    files: list[Path] = []
    steps = [record["result"] for record in by_kind["steps"]]
    if steps:
        files += _draw_steps(steps, folder / "steps", _where(by_kind["steps"]))
    if by_kind["training"]:
        files += _draw_training(by_kind["training"], folder / "training")
    if by_kind["baselines"]:
        files += _draw_baselines(by_kind["baselines"], folder / "baselines")
    return files


def _where(records: Sequence[Record]) -> str:
    environment = records[0].get("environment", {})
    return str(environment.get("gpu") or environment.get("processor") or "")


def _draw_steps(results: Sequence[dict[str, Any]], path: Path, where: str) -> list[Path]:
    """Draw a row of panels for each dtype: a line for each r over d, and for each d over r. The floor is dashed."""
    dtypes = sorted({result["dtype"] for result in results})
    height = 3.6 * len(dtypes) + 0.6
    figure, panels = plt.subplots(
        len(dtypes), 2, figsize=(10.5, height), sharex="col", sharey=True, layout="constrained", squeeze=False
    )
    for row, dtype in zip(panels, dtypes, strict=True):
        mine = [result for result in results if result["dtype"] == dtype]
        for axes, (x, other) in zip(row, (("d", "r"), ("r", "d")), strict=True):
            _lines(axes, mine, x=x, other=other)
            for which in ("x", "y"):
                log_axis(axes, which)
            quiet(axes)
        row[0].xaxis.set_major_formatter(_COUNT)
        row[0].set_ylabel(f"ms per step, {dtype}")
    for axes, words in zip(panels[-1], ("parameters d", "window r"), strict=True):
        axes.set_xlabel(words)
    return save(figure, path, title=f"GGT step (marks) and its floor 2·r·d·bytes / copy bandwidth (dashed), {where}")


def _lines(axes: Axes, results: Sequence[dict[str, Any]], *, x: str, other: str) -> None:
    lines: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for result in results:
        lines[result[other]].append((result[x], _best(result), result["floor_ms"]))
    for (value, unordered), color in zip(sorted(lines.items()), itertools.cycle(COLORS), strict=False):
        points = sorted(unordered)
        places = [point[0] for point in points]
        label = f"{other} = {_COUNT(value)}"
        axes.plot(places, [point[1] for point in points], color=color, marker="o", markersize=4, label=label)
        axes.plot(places, [point[2] for point in points], color=color, linestyle="--", alpha=0.6)
    axes.legend(frameon=False, fontsize=8)


def _best(result: dict[str, Any]) -> float:
    """The time of the captured step, if the capture worked: the time of the device."""
    timing = result["captured"] if isinstance(result.get("captured"), dict) else result["eager"]
    return float(timing["median_ms"])


def _draw_training(records: Sequence[Record], path: Path) -> list[Path]:
    figure, axes = plt.subplots(figsize=(13, 4.2), layout="constrained")
    measured = (name for record in records for name in record["result"]["over_SGD"])
    names = [name for name in dict.fromkeys(measured) if name.startswith("GGT")]
    width = 0.8 / len(names)
    for number, (name, color) in enumerate(zip(names, itertools.cycle(COLORS), strict=False)):
        places = [group + number * width for group in range(len(records))]
        heights = [100 * (record["result"]["over_SGD"].get(name, float("nan")) - 1) for record in records]
        hatch = "///" if number >= len(COLORS) else None  # a colour that comes back
        bars = axes.bar(places, heights, width=0.92 * width, color=color, label=name, hatch=hatch, edgecolor="white")
        axes.bar_label(bars, fmt=lambda percent: f"{percent:z.1f}", fontsize=6.5, padding=1)
    axes.axhline(0.0, color="black", linewidth=0.8)
    labels = [f"{fill(r['result']['model'], 12)}\n{r['result']['mode']}" for r in records]
    axes.set_xticks([group + 0.4 - width / 2 for group in range(len(records))], labels, fontsize=9)
    axes.set_ylabel("time beyond the time with SGD, %")
    axes.margins(y=0.1)
    axes.legend(frameon=False, fontsize=8, ncols=min(4, len(names)), loc="lower left", bbox_to_anchor=(0, 1))
    quiet(axes)
    return save(figure, path, title=f"How much longer a training step takes with GGT than with SGD, {_where(records)}")


def _draw_baselines(records: Sequence[Record], path: Path) -> list[Path]:
    """Draw mean times, for some optimizers do their expensive part in some steps only."""
    models = list(dict.fromkeys(record["options"]["shapes"] for record in records))
    figure, panels = plt.subplots(1, len(models), figsize=(5.2 * len(models), 4), layout="constrained", squeeze=False)
    for axes, model in zip(panels[0], models, strict=True):
        mine = [record for record in records if record["options"]["shapes"] == model]
        mine.sort(key=lambda record: record["result"]["eager"]["mean_ms"])
        names = [record["case"].removeprefix(f"baseline_{model}_").replace("_", " ") for record in mine]
        times = [record["result"]["eager"]["mean_ms"] for record in mine]
        colors = [COLORS[0] if name.startswith("GGT") else "0.6" for name in names]
        bars = axes.barh(names, times, color=colors)
        axes.bar_label(bars, fmt=lambda ms: f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}", fontsize=8, padding=2)
        log_axis(axes, "x")
        axes.margins(x=0.15)
        axes.set_xlabel("ms per step, mean")
        axes.set_title(f"{model}, d = {mine[0]['result']['d']:,}", fontsize=10)
        quiet(axes)
    return save(figure, path, title=f"Optimizer steps, {_where(records)}")
