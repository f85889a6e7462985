"""``ggt scale``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ggt_lab.calibration import load_calibration
from ggt_lab.commands.console import console
from ggt_lab.figures.scale import draw_scale
from ggt_lab.plan import make_plan
from ggt_lab.quantities import readable_bytes, readable_seconds
from ggt_lab.scale import GPUS, MODELS, Network, Noise, Scaled, columns_of_a_rank, largest, scale_step, training_step_s
from ggt_lab.whole import write_whole

__all__ = ["ScaleCommand", "affordable", "scale_table"]

_SHARE = 0.01  # of a training step that an optimizer may take
_LIMIT = 1000  # rows; the r × r part was measured up to 200 of them, and is extrapolated beyond


@dataclass(frozen=True)
class ScaleCommand:
    """What a step costs for 7 B and 70 B parameters on 64 to 1024 GPUs: on paper and simulated, as table and figure."""

    window: int = 20
    """r, how many gradients the window holds."""
    dtype: str = "bfloat16"
    """Of the window: bfloat16 or float32."""
    out: Path = Path("out/scale")
    """Where scale.md, scale.json and the figure go."""

    def run(self) -> None:
        """Predict, write, and show."""
        rows = scale_table(self.window, self.dtype)
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / "scale.json", json.dumps(rows, indent=1) + "\n")
        write_whole(self.out / "scale.md", _markdown(rows))
        files = draw_scale(rows, self.out / "scale")
        table = Table(title=_title(rows))
        for heading in _HEADINGS:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*_cells(row))
        console.print(table)
        console.print(f"Wrote {self.out / 'scale.md'}, {files[0]} and the numbers in {self.out / 'scale.json'}.")
        console.print("The network and the noise are assumed; one GPU was measured.", highlight=False)


def scale_table(window: int, dtype: str) -> list[dict[str, Any]]:
    """A row of numbers for every model and number of GPUs: fully sharded, in replicas of 64, and data parallel."""
    calibration = load_calibration()
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
    """The largest windows: by memory, and by time if a step may take 1 % of a training step of 4 M tokens."""
    calibration = load_calibration()
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


_LIMITS = ("memory", "time")
_HEADINGS = (
    *("model", "GPUs", "mode", "window", "all but activations", "passes", "all-reduce", "all-gather", "waiting"),
    *("step", "1 in 100", "of training", "r by memory", "r by time"),
)


def _cells(row: dict[str, Any]) -> list[str]:
    bytes_of = [readable_bytes(row[key]) for key in ("window_bytes", "total_bytes")]
    names = ("passes_s", "reduce_s", "gather_s", "waiting_s", "step_s", "late_s")
    times = [readable_seconds(row[key]) if row[key] else "" for key in names]
    share = f"{row['step_s'] / row['training_s']:.2%}"
    windows = [f"{row[f'largest_by_{limit}']}{'+' * (row[f'largest_by_{limit}'] == _LIMIT)}" for limit in _LIMITS]
    return [row["model"], str(row["gpus"]), row["mode"], *bytes_of, *times, share, *windows]


def _title(rows: list[dict[str, Any]]) -> str:
    return f"A step with window {rows[0]['window']} in {rows[0]['dtype']}, per GPU"


def _markdown(rows: list[dict[str, Any]]) -> str:
    lines = [_title(rows), "", f"| {' | '.join(_HEADINGS)} |", f"|{'---|' * len(_HEADINGS)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    lines += ["", f"One GPU: {load_calibration().hardware}, measured. Assumed: {Network()}, {Noise()}.", ""]
    return "\n".join(lines)
