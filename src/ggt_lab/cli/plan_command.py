"""``ggt plan``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggt_lab.cli.options import Positional
from ggt_lab.cli.terminal import Column, say, show_table
from ggt_lab.planning.units import parse_bytes, parse_count, parse_seconds, readable_bytes, readable_seconds

if TYPE_CHECKING:
    from ggt_lab.planning.calibration import Calibration
    from ggt_lab.planning.step_plan import Plan

__all__ = ["PlanCommand", "count_parameters"]


@dataclass(frozen=True)
class PlanCommand:
    """What GGT would need: bytes of window per GPU, the time of a step, and the largest window that fits.

    The defaults are the defaults of GGT.
    """

    parameters: Positional[str]
    """A number ("5.3M", 7e9, "7B"), or a problem (see `ggt list`) or a Python file whose parameters are counted."""
    window: int = 20
    """r, how many gradients the window holds."""
    dtype: str = "float32"
    """How rows are stored: float32, bfloat16 with half the bytes, int8 with a quarter, or int4 with an eighth.
    "int8@host" and the like keep the rows in host memory."""
    history: str = "gradient"
    """What the window stores: momentum, or gradient. Momentum needs a buffer of its own."""
    finish: str | None = None
    """What becomes of each tensor's step, as in GGT: by default adam, and none with --whiten. What it remembers is
    counted; its time is not."""
    whiten: str | None = None
    """Plan `whiten` in front of an optimizer instead of GGT: adamw, muon, sgd, or sgd-momentum."""
    gpus: int = 1
    """How many GPUs share the columns of the window."""
    replicated: bool = False
    """Every GPU holds all parameters (data parallel). By default they are split like the window (fully sharded)."""
    memory: str = "141GB"
    """The memory of one GPU."""
    bandwidth: str | None = None
    """The bandwidth of a copy in a GPU's memory; by default as measured on the GPU of the records."""
    host_bandwidth: str = "55GB/s"
    """The bandwidth from pinned host memory to the GPU, for rows in host memory; by default of the machine of the
    records."""
    network_bandwidth: str = "50GB/s"
    """The bandwidth between GPUs, per GPU."""
    network_latency: str = "30us"
    """The time of a collective of a few numbers."""
    records: tuple[Path, ...] = ()
    """Folders of your own `ggt bench`, to predict from instead of ours."""

    def run(self) -> None:
        """Predict, and say how well the formula predicts what was measured."""
        from ggt_lab.planning.calibration_check import worst_and_typical
        from ggt_lab.planning.step_plan import make_plan

        calibration, errors = _calibration(self.records)
        plan = make_plan(
            count_parameters(self.parameters),
            window=self.window,
            dtype=self.dtype,
            calibration=calibration,
            history=self.history,
            finish=self.finish,
            whiten=self.whiten,
            gpus=self.gpus,
            replicated=self.replicated,
            memory=parse_bytes(self.memory, "memory"),
            bandwidth=None if self.bandwidth is None else parse_bytes(self.bandwidth, "bandwidth", per_second=True),
            host_bandwidth=parse_bytes(self.host_bandwidth, "host bandwidth", per_second=True),
            network_bandwidth=parse_bytes(self.network_bandwidth, "network bandwidth", per_second=True),
            network_latency=parse_seconds(self.network_latency, "network latency"),
        )
        _show_plan(plan)
        say(_what_fits(plan))
        if plan.whiten or plan.finish != "none":
            more = f"The step of {plan.whiten}" if plan.whiten else f"The finish {plan.finish!r}"
            say(f"The time is the time of a step of GGT with momentum. {more} comes on top, and was not measured.")
        worst, typical = worst_and_typical(errors)
        say(
            f"Predicted from {len(errors)} measured steps on {calibration.hardware}. Each of them, predicted from the "
            f"others, is off by {typical:.1%} (median) and {worst:.1%} (worst)."
        )
        if plan.host_bytes:
            say(
                f"The rows are in host memory, and {self.host_bandwidth} is taken for the bus. The passes are a floor: "
                "measured steps took 1.2 to 3.4 times as long."
            )
        elif plan.dtype not in calibration.factors:
            say(f"No step with rows in {plan.dtype} was measured: its passes are taken to be as near to the bandwidth.")
        if calibration.assumed:
            say(f"Guessed, because no case tells: {', '.join(calibration.assumed)}.")


def count_parameters(text: str) -> int:
    """A number as people write it, or the number of trainable parameters of a problem.

    Example:
        >>> count_parameters("5.3M"), count_parameters("logistic") > 0
        (5300000, True)
    """
    if text[:1].isdigit() or text[:1] in ("-", "+", "."):
        return parse_count(text)
    import torch

    from ggt_lab.runs.short_run import parameters_of
    from ggt_lab.runs.users_code import called, problem_of, running

    cls = problem_of(text)
    with running(text):
        problem = called("__init__", cls, 0, torch.device("cpu"))
        return sum(p.numel() for p in parameters_of(problem) if p.requires_grad)


def _calibration(folders: Sequence[Path]) -> "tuple[Calibration, list[float]]":
    """The constants, and the error of each step that was predicted from the others."""
    from ggt_lab.bench.case_files import existing_folders, read_cases
    from ggt_lab.planning.calibration import load_calibration
    from ggt_lab.planning.calibration_check import calibration_of

    calibration, errors = calibration_of(read_cases(existing_folders(folders))) if folders else load_calibration()
    return calibration, list(errors.values())


def _show_plan(plan: "Plan") -> None:
    share = f", shared by {plan.gpus} GPUs; of each GPU:" if plan.gpus > 1 else ""
    sizes = [
        ("window in host memory", plan.host_bytes) if plan.host_bytes else ("window", plan.window_bytes),
        ("other state", plan.state_bytes),
        *([(f"state of {plan.whiten}", plan.wrapped_bytes)] if plan.whiten else []),
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
    left = [(name, readable_bytes(count)) for name, count in sizes] + [("", "")] * (len(times) - len(sizes))
    right = [(name, readable_seconds(seconds)) for name, seconds in times]
    columns = [Column("memory"), Column("", right=True), Column("time of a step"), Column("", right=True)]
    before = f" before {plan.whiten}" if plan.whiten else ""
    title = f"{plan.parameters:,} parameters, window {plan.window} in {plan.dtype}{before}{share}"
    show_table(title, columns, [[*size, *time] for size, time in zip(left, right, strict=True)])


def _what_fits(plan: "Plan") -> str:
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
