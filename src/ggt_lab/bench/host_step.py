"""A step whose rows are in host memory: its time, against the bytes over the bus, and what a backward pass hides."""

from collections.abc import Callable
from typing import Any

import torch

from ggt_lab.bench.optimizer_step import fill, make_parameters
from ggt_lab.bench.timing import captured, interleaved, measure, summarize
from ggt_lab.optimizers.paper_ggt import PaperGGT
from torch_ggt.formats import format_of

__all__ = ["bus_bandwidth", "host"]


def host(
    device: torch.device,
    bandwidth: float,
    *,
    d: int,
    r: int,
    dtype: str,
    work_ms: float = 20.0,
    rounds: int = 10,
) -> dict[str, Any]:
    """Milliseconds of a step with rows in host memory, alone and after other work on the device.

    The floor is the time to copy the window to the device twice. The other work stands for a backward pass: the first
    two pieces of the window are copied beneath it. ``exposed`` is what the step adds to the work.

    Args:
        device: the device of the parameters.
        bandwidth: bandwidth of a copy on the device, to choose the work.
        d: the number of parameters.
        r: the number of rows.
        dtype: the format of the rows, without "@host".
        work_ms: the length of the other work, roughly.
        rounds: the number of timed rounds.
    """
    parameters = make_parameters("odd", device, d=d)
    optimizer = PaperGGT(parameters, window=r, window_dtype=f"{dtype}@host", capturable=False)
    fill(optimizer.step, parameters, times=r + 2)
    window = format_of(dtype).bytes(r, d)
    bus = bus_bandwidth(device)
    buffers = torch.empty(2, max(1, int(bandwidth * work_ms * 1e-3 / 80)), device=device)

    def work() -> None:
        for _ in range(10):  # 8 bytes for each element and copy
            buffers[0].copy_(buffers[1])

    take_work: Callable[[], object] = captured(work) if device.type == "cuda" else work

    def both() -> None:
        take_work()
        optimizer.step()

    contenders: dict[str, Callable[[], object]] = {"work": take_work, "step": optimizer.step, "work and step": both}
    times = interleaved(contenders, device, rounds=rounds)
    exposed = [together - alone for together, alone in zip(times["work and step"], times["work"], strict=True)]
    floor = 2 * window / bus * 1e3
    step = summarize(times["step"])
    return {
        **{"d": d, "r": r, "dtype": dtype, "window_bytes": window, "bus_bandwidth": bus, "floor_ms": floor},
        "times": {name: summarize(values).as_dict() for name, values in times.items()},
        "over_floor": step.median_ms / floor,
        "exposed_ms": summarize(exposed).median_ms,
    }


def bus_bandwidth(device: torch.device, nbytes: int = 2**28) -> float:
    """Bytes per second of a copy from host memory, which is pinned for a GPU."""
    source = torch.zeros(nbytes // 4, pin_memory=device.type == "cuda")
    target = torch.empty(nbytes // 4, device=device)
    return nbytes / (measure(lambda: target.copy_(source, non_blocking=True), device, repeats=8).median_ms * 1e-3)
