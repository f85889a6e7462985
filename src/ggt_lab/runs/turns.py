"""The time of a step, taken in turns: a machine that is busy for a while is busy for everybody."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

__all__ = ["seconds_in_turns"]


def seconds_in_turns(movers: Mapping[str, Callable[[], int]], *, rounds: int, device: str = "cpu") -> dict[str, float]:
    """The median seconds of a step, by name. Each round times all movers one after the other.

    Args:
        movers: for each name a function that takes some steps and returns how many.
        rounds: how many rounds count; one more comes before them, to warm up.
        device: where the steps are taken; on a GPU the clock waits for it.

    Example:
        >>> found = seconds_in_turns({"fast": lambda: 100, "slow": lambda: time.sleep(0.01) or 1}, rounds=1)
        >>> found["fast"] < found["slow"]
        True
    """
    seconds: dict[str, list[float]] = {name: [] for name in movers}
    for turn in range(rounds + 1):
        for name, move in movers.items():
            _wait_for(device)
            start = time.perf_counter()
            steps = move()
            _wait_for(device)
            if turn:
                seconds[name].append((time.perf_counter() - start) / steps)
    return {name: float(f"{statistics.median(values):.4g}") for name, values in seconds.items()}


def _wait_for(device: str) -> None:
    if not device.startswith("cpu"):
        torch.cuda.synchronize()
