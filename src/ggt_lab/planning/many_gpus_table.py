"""The table of ``ggt scale``: a row for every model, number of GPUs, and way to split the model."""

from typing import Any

from ggt_lab.planning.calibration import load_calibration
from ggt_lab.planning.many_gpus import (
    GPUS,
    MODELS,
    Network,
    Noise,
    Scaled,
    columns_of_a_rank,
    largest,
    scale_step,
    training_step_s,
)
from ggt_lab.planning.step_plan import make_plan
from ggt_lab.planning.units import readable_bytes, readable_seconds

__all__ = ["HEADINGS", "affordable", "cells", "markdown", "scale_table", "title"]

_SHARE = 0.01  # the share of a training step that an optimizer may take
_LIMIT = 1000  # the largest window that is tried; the r × r part was measured to 200 rows and is extrapolated beyond
_LIMITS = ("memory", "time")

HEADINGS = (
    *("model", "GPUs", "mode", "window", "all but activations", "passes", "all-reduce", "all-gather", "waiting"),
    *("step", "1 in 100", "of training", "r by memory", "r by time"),
)


def scale_table(window: int, dtype: str) -> list[dict[str, Any]]:
    """The numbers of every row: fully sharded, in replicas of 64 GPUs, and data parallel where that fits."""
    calibration, _ = load_calibration()
    rows = []
    for model in MODELS:
        for gpus in GPUS:
            kinds: list[tuple[str, dict[str, Any]]] = [("FSDP", {})]
            kinds += [("HSDP", {"replicas": gpus // 64})] if gpus > 64 else []
            for kind, options in [*kinds, ("DDP", {"replicated": True})]:
                found = scale_step(model, gpus, window=window, dtype=dtype, calibration=calibration, **options)
                if kind == "DDP" and not found.plan.fits_here:
                    continue
                rows.append(_row(kind, found, affordable(found, dtype)))
    return rows


def affordable(found: Scaled, dtype: str) -> dict[str, int]:
    """The largest window that fits into memory, and the largest that takes 1 % of a training step of 4 M tokens."""
    calibration, _ = load_calibration()
    columns = columns_of_a_rank(MODELS[found.model], found.shards) * found.shards
    budget = _SHARE * training_step_s(found.parameters, found.gpus) - found.reduce_s - found.gather_s - found.waiting_s

    def quick(r: int) -> bool:
        plan = make_plan(columns, window=r, dtype=dtype, calibration=calibration, gpus=found.shards)
        return plan.device_s - plan.collectives_s <= budget

    return {"memory": min(_LIMIT, found.plan.fits[dtype]), "time": largest(quick, _LIMIT)}


def _row(kind: str, found: Scaled, windows: dict[str, int]) -> dict[str, Any]:
    return {
        "model": found.model,
        "gpus": found.gpus,
        "mode": kind,
        "window": found.plan.window,
        "dtype": found.plan.dtype,
        "window_bytes": found.plan.window_bytes,
        "total_bytes": found.plan.total_bytes,
        "passes_s": found.plan.passes_s,
        "traffic_s": found.plan.traffic_s,
        "solve_s": found.plan.solve_s,
        "launch_s": found.plan.launch_s,
        "reduce_s": found.reduce_s,
        "gather_s": found.gather_s,
        "waiting_s": found.waiting_s,
        "step_s": found.step_s + found.waiting_s,
        "late_s": found.simulated_s[1] + found.gather_s,
        "training_s": training_step_s(found.parameters, found.gpus),
        "largest_by_memory": windows["memory"],
        "largest_by_time": windows["time"],
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row in words, one for each of `HEADINGS`."""
    bytes_of = [readable_bytes(row[key]) for key in ("window_bytes", "total_bytes")]
    names = ("passes_s", "reduce_s", "gather_s", "waiting_s", "step_s", "late_s")
    times = [readable_seconds(row[key]) if row[key] else "" for key in names]
    share = f"{row['step_s'] / row['training_s']:.2%}"
    windows = [f"{row[f'largest_by_{limit}']}{'+' * (row[f'largest_by_{limit}'] == _LIMIT)}" for limit in _LIMITS]
    return [row["model"], str(row["gpus"]), row["mode"], *bytes_of, *times, share, *windows]


def title(rows: list[dict[str, Any]]) -> str:
    """The line above the table."""
    return f"A step with window {rows[0]['window']} in {rows[0]['dtype']}, per GPU"


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as Markdown, with what was measured and what was assumed."""
    lines = [title(rows), "", f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    calibration, _ = load_calibration()
    lines += ["", f"One GPU: {calibration.hardware}, measured. Assumed: {Network()}, {Noise()}.", ""]
    return "\n".join(lines)
