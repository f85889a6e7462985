"""The cost of a GGT step on a CPU, beside the two bare products W v and Wᵀ c, and beside torchzero's GGT.

All contenders run in one process and in turn, so that noise of the machine hits all of them.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ggt_lab.bench.member_step import members
from ggt_lab.bench.optimizer_step import NotInstalledError, make_optimizer
from ggt_lab.bench.timing import interleaved, summarize
from ggt_lab.optimizers.paper_ggt import PaperGGT
from torch_ggt.backends.plain import gram_row

__all__ = ["cpu", "memory", "memory_here"]


class _Stepper:
    """One parameter of d elements. Before every step it gets a fresh gradient, which is not timed."""

    def __init__(self, d: int, r: int, dtype: str = "float32", name: str = "GGT") -> None:
        self.parameter = nn.Parameter(torch.ones(d))
        self.gradient = torch.ones(d)
        self.parameter.grad = self.gradient
        self.step = make_optimizer(name, [self.parameter], r=r, dtype=dtype)
        for _ in range(r + 2):
            self.prepare()
            self.step()

    def prepare(self) -> None:
        self.gradient.normal_()


def cpu(device: torch.device, bandwidth: float, *, figure: str, rounds: int = 15, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401
    """Measure one figure of a step on the CPU.

    Args:
        device: the CPU; every kind of case has this argument.
        bandwidth: bandwidth of a copy; every kind of case has this argument, and no figure needs it.
        figure: "step", "torchzero", "growth", "members" or "memory".
        rounds: the number of timed rounds.
        sizes: arguments of the figure.
    """
    if figure == "memory":
        return memory(**sizes)
    if figure == "members":
        return members(device, bandwidth, **sizes, rounds=rounds)
    if figure == "growth":
        return _growth(**sizes, rounds=rounds)
    if figure not in ("step", "torchzero"):
        raise ValueError(f"figure must be step, torchzero, growth, members or memory, got {figure!r}")
    return _cost(**sizes, rounds=rounds, torchzero=figure == "torchzero")


def _time(steppers: dict[str, _Stepper], bare: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    calls = {**bare, **{name: stepper.step for name, stepper in steppers.items()}}
    prepare: dict[str, Callable[[], object]] = {name: stepper.prepare for name, stepper in steppers.items()}
    return interleaved(calls, torch.device("cpu"), rounds=rounds, prepare=prepare)


def _cost(*, d: int, r: int, rounds: int, dtype: str = "float32", torchzero: bool = False) -> dict[str, Any]:
    if torchzero and importlib.util.find_spec("torchzero") is None:
        raise NotInstalledError("torchzero is not installed")
    rows, row, c = torch.randn(r, d), torch.randn(d), torch.randn(r)
    steppers = {"GGT": _Stepper(d, r, dtype)}
    if torchzero:
        steppers["torchzero GGT"] = _Stepper(d, r, name="torchzero GGT")
    times = _time(steppers, {"W v": lambda: rows.mv(row), "WT c": lambda: rows.t().mv(c)}, rounds)
    result: dict[str, Any] = {"d": d, "r": r, "dtype": dtype, "threads": torch.get_num_threads()}
    result["times"] = {name: summarize(values).as_dict() for name, values in times.items()}
    ms = {name: timing["median_ms"] for name, timing in result["times"].items()}
    result["over_bare_products"] = ms["GGT"] / (ms["W v"] + ms["WT c"])
    if torchzero:
        result["torchzero_over_GGT"] = ms["torchzero GGT"] / ms["GGT"]
    return result


def _growth(*, sizes: Sequence[Sequence[int]], rounds: int) -> dict[str, Any]:
    times = _time({f"d={d} r={r}": _Stepper(d, r) for d, r in sizes}, {}, rounds)
    return {"times": {name: summarize(values).as_dict() for name, values in times.items()}}


def memory(*, d: int, r: int) -> dict[str, Any]:
    """Peak memory of making and running an optimizer, without its window, in units of d float32 (at most 4).

    It is measured in a process of its own, whose allocator gives every large block back at once, so that resident
    memory is used memory. Works on Linux only.
    """
    script = f"from ggt_lab.bench.cpu_step import memory_here; print(memory_here({d}, {r}))"
    source = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    return {"d": d, "r": r, "beyond_window": float(done.stdout.split()[-1])}


def memory_here(d: int, r: int) -> float:
    """`memory`, measured in this process."""
    with torch.no_grad():  # the first use makes compilers and workspaces, which stay
        gram_row(torch.zeros(r, d), torch.zeros(d))
    _Stepper(1000, r)
    parameter = nn.Parameter(torch.ones(d))
    parameter.grad = torch.ones(d)

    def make_and_fill() -> PaperGGT:
        optimizer = PaperGGT([parameter], window=r)
        for _ in range(r + 2):
            optimizer.step()
        return optimizer

    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    kept = make_and_fill()
    peak = _status("VmHWM") - before
    del kept
    return (peak - 4 * d * r) / (4 * d)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)
