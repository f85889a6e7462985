"""Times taken in turns: a machine that is busy for a while is busy for everybody."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

__all__ = ["seconds_in_turns", "times_in_turns", "wait_for"]

Mover = Callable[[], int]
"""A function that takes some steps and returns how many."""


def times_in_turns(
    movers: Mapping[str, Mover],
    device: torch.device,
    *,
    rounds: int,
    warm_up: int = 1,
    prepare: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """The seconds of a step in each round, by name. Each round times all movers one after the other.

    Args:
        movers: what is timed.
        device: where the steps are taken; on a GPU the clock waits for it.
        rounds: how many rounds count.
        warm_up: how many more come before them.
        prepare: a call by name that is made before each turn of that name, and not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in movers}
    for turn in range(warm_up + rounds):
        for name, move in movers.items():
            if prepare and name in prepare:
                prepare[name]()
            wait_for(device)
            start = time.perf_counter()
            steps = move()
            wait_for(device)
            if turn >= warm_up:
                seconds[name].append((time.perf_counter() - start) / steps)
    return seconds


def seconds_in_turns(movers: Mapping[str, Mover], *, rounds: int, device: str = "cpu") -> dict[str, float]:
    """The median over rounds of `times_in_turns`, by name, to four digits.

    Example:
        >>> found = seconds_in_turns({"fast": lambda: 100, "slow": lambda: time.sleep(0.01) or 1}, rounds=1)
        >>> found["fast"] < found["slow"]
        True
    """
    found = times_in_turns(movers, torch.device(device), rounds=rounds)
    return {name: float(f"{statistics.median(values):.4g}") for name, values in found.items()}


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
