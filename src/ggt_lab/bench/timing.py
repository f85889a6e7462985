"""How calls are timed: medians after a warm-up, by events on a GPU, by the clock on a CPU."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ggt_lab.runs.turns import times_in_turns, wait_for

__all__ = ["Timing", "attempt", "captured", "copy_bandwidth", "interleaved", "measure", "seconds_of", "summarize"]

Call = Callable[[], object]

_WARMUP = 5
_FEWEST = 3


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median, the middle 80 % of the calls, their mean and number."""

    median_ms: float
    low_ms: float
    high_ms: float
    mean_ms: float
    calls: int

    def as_dict(self) -> dict[str, float]:
        """The figures for a JSON file."""
        return asdict(self)


def summarize(milliseconds: Sequence[float]) -> Timing:
    """The median, range, mean and number of a list of times.

    Example:
        >>> summarize([3.0, 1.0, 2.0])
        Timing(median_ms=2.0, low_ms=1.0, high_ms=3.0, mean_ms=2.0, calls=3)
    """
    ordered = sorted(milliseconds)
    cut = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[cut], ordered[-1 - cut], statistics.fmean(ordered), len(ordered))


def measure(call: Call, device: torch.device, *, repeats: int = 30, seconds: float = 20.0) -> Timing:
    """Time ``call`` after a warm-up: ``repeats`` times, or fewer (at least three) if that would take too long.

    On CUDA each call lies between two events, and the host does not wait between calls. If the host is slower than the
    device, the result is the time of the host.

    Args:
        call: what to time.
        device: the device.
        repeats: the largest number of calls.
        seconds: the time that all calls may take, roughly, without the warm-up.
    """
    single = seconds_of(call, device)  # the first call also compiles
    if single * _WARMUP < seconds:
        for _ in range(_WARMUP - 1):
            single = seconds_of(call, device)
    repeats = max(_FEWEST, min(repeats, int(seconds / max(single, 1e-9))))
    if device.type != "cuda":
        return summarize([1e3 * seconds_of(call, device) for _ in range(repeats)])
    pairs = [(_event(), _event()) for _ in range(repeats)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return summarize([start.elapsed_time(end) for start, end in pairs])


def interleaved(
    contenders: Mapping[str, Call],
    device: torch.device,
    *,
    rounds: int,
    block: int = 1,
    prepare: Mapping[str, Call] | None = None,
) -> dict[str, list[float]]:
    """Milliseconds per call of each contender. Each round times one block of calls of each, so that noise hits all.

    The times include the host. The host waits for the device at both ends of a block.

    Args:
        contenders: the calls, by name.
        device: the device.
        rounds: the number of timed blocks of each contender; two more blocks warm up.
        block: the number of calls in a block.
        prepare: a call by name that is made before each block of that name, and not timed.

    Returns:
        For each contender one number per round. Rounds are in one order for all, so that ratios can be paired.
    """

    def block_of(call: Call) -> Callable[[], int]:
        def move() -> int:
            for _ in range(block):
                call()
            return block

        return move

    movers = {name: block_of(call) for name, call in contenders.items()}
    times = times_in_turns(movers, device, rounds=rounds, warm_up=2, prepare=prepare)
    return {name: [1e3 * seconds for seconds in values] for name, values in times.items()}


def captured(call: Call, *, warmup: int = 3) -> Callable[[], None]:
    """The call as a CUDA graph: its time is the time of the device, without the host."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(_kept: Call = call) -> None:  # the call keeps alive what the graph reads and writes
        graph.replay()

    return replay


def copy_bandwidth(device: torch.device, nbytes: int | None = None) -> float:
    """Bytes per second, read and written, of a copy on the device; by default 4 GiB on a GPU and 64 MiB on a CPU."""
    if nbytes is None:
        nbytes = 2**32 if device.type == "cuda" else 2**26
    milliseconds = _copy_ms(device, nbytes)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return 2 * nbytes / (milliseconds * 1e-3)


def _copy_ms(device: torch.device, nbytes: int) -> float:
    source = torch.empty(nbytes // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    return measure(lambda: target.copy_(source), device, seconds=2.0).median_ms


def seconds_of(call: Call, device: torch.device) -> float:
    """Seconds of one call by the clock. The host waits for the device before and after."""
    wait_for(device)
    start = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - start


def _event() -> Any:  # noqa: ANN401 - torch gives it no type
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def attempt(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it returns
    """The result, or the error as text, so that one failing variant does not stop the others."""
    try:
        return call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
