"""``ggt plan``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.table import Table

from ggt_lab.calibration import SHIPPED, Calibration, load_calibration
from ggt_lab.commands.console import console
from ggt_lab.plan import Plan, calibration_of, make_plan, worst_and_typical
from ggt_lab.problems import problem_class
from ggt_lab.quantities import parse_bytes, parse_count, parse_seconds, readable_bytes, readable_seconds
from ggt_lab.results import read_cases

__all__ = ["PlanCommand", "count_parameters"]


@dataclass(frozen=True)
class PlanCommand:
    """What GGT would need: bytes of window per GPU, the time of a step, and the largest window that fits."""

    parameters: tyro.conf.Positional[str]
    """How many ("5.3M", 7e9, "7B"), or a problem (see `ggt list`) or Python file of your own, to be counted."""
    window: int = 20
    """r, how many gradients the window holds."""
    dtype: str = "bfloat16"
    """Of the window: bfloat16 or float32."""
    gpus: int = 1
    """How many GPUs share the columns of the window."""
    replicated: bool = False
    """Parameters are whole on every GPU (data parallel), not split as the window is (fully sharded)."""
    memory: str = "141GB"
    """Of one GPU."""
    bandwidth: str | None = None
    """Of a GPU's memory, as a copy measures it; by default what was measured on the GPU of the records."""
    network_bandwidth: str = "50GB/s"
    """Between GPUs, per GPU."""
    network_latency: str = "30us"
    """Of a collective of a few numbers."""
    records: tuple[Path, ...] = ()
    """Folders of your own `ggt bench`, to predict from instead of ours."""

    def run(self) -> None:
        """Predict, and say how well that predicts what was measured."""
        calibration, errors = _calibration(self.records)
        plan = make_plan(
            count_parameters(self.parameters),
            window=self.window,
            dtype=self.dtype,
            calibration=calibration,
            gpus=self.gpus,
            replicated=self.replicated,
            memory=parse_bytes(self.memory, "memory"),
            bandwidth=None if self.bandwidth is None else parse_bytes(self.bandwidth, "bandwidth", per_second=True),
            network_bandwidth=parse_bytes(self.network_bandwidth, "network bandwidth", per_second=True),
            network_latency=parse_seconds(self.network_latency, "network latency"),
        )
        console.print(_table(plan))
        console.print(_what_fits(plan), highlight=False)
        worst, typical = worst_and_typical(errors)
        console.print(
            f"Predicted from {len(errors)} measured steps on {calibration.hardware}. Each of them, predicted from the "
            f"others, is off by {typical:.1%} (median) and {worst:.1%} (worst).",
            highlight=False,
        )
        if calibration.assumed:
            console.print(f"Guessed, because no case tells: {', '.join(calibration.assumed)}.", highlight=False)


def count_parameters(text: str) -> int:
    """A number as people write it, or the trainable parameters of a problem.

    Example:
        >>> count_parameters("5.3M"), count_parameters("logistic") > 0
        (5300000, True)
    """
    if text[:1].isdigit() or text[:1] in ("-", "+", "."):
        return parse_count(text)
    problem = problem_class(text)(0, torch.device("cpu"))
    return sum(p.numel() for p in problem.parameters() if p.requires_grad)


def _calibration(folders: Sequence[Path]) -> tuple[Calibration, list[float]]:
    if not folders:
        return load_calibration(), list(json.loads(SHIPPED.read_text())["errors"].values())
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ValueError(f"no such folder of records: {', '.join(missing)}")
    calibration, errors = calibration_of(read_cases(folders))
    return calibration, list(errors.values())


def _table(plan: Plan) -> Table:
    share = f", shared by {plan.gpus} GPUs; of each GPU:" if plan.gpus > 1 else ""
    table = Table(title=f"{plan.parameters:,} parameters, window {plan.window} in {plan.dtype}{share}")
    table.title_justify = "left"
    for heading, justify in (("memory", "left"), ("", "right"), ("time of a step", "left"), ("", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    sizes = [
        ("window", plan.window_bytes),
        ("other state", plan.state_bytes),
        ("parameters, gradients", plan.model_bytes),
        ("together", plan.total_bytes),
    ]
    times = [
        ("two passes over the window", plan.passes_s),
        ("the rest of d elements", plan.traffic_s),
        ("the r × r part", plan.solve_s),
        ("small launches", plan.launch_s),
        ("collectives", plan.collectives_s),
        ("together", plan.device_s),
    ]
    rows = max(len(sizes), len(times))
    left = [(name, readable_bytes(count)) for name, count in sizes] + [("", "")] * (rows - len(sizes))
    right = [(name, readable_seconds(seconds)) for name, seconds in times]
    for cells in zip(left, right, strict=True):
        table.add_row(*(text for cell in cells for text in cell))
    return table


def _what_fits(plan: Plan) -> str:
    verdict = "It fits" if plan.fits_here else "It does NOT fit"
    windows = " or ".join(f"{rows} in {dtype}" for dtype, rows in plan.fits.items() if rows > 0)
    words = f"{verdict} into {readable_bytes(plan.memory)}, activations not counted. "
    words += f"Largest window: {windows}." if windows else "No window fits: take more GPUs, or a smaller model."
    if plan.host_s > plan.device_s:
        words += (
            f"\nWhere nothing else keeps the GPU busy, the host limits a step to {readable_seconds(plan.host_s)}, "
            "unless it is captured in a CUDA graph."
        )
    return words
