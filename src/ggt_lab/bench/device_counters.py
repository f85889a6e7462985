"""Counters of a step on a GPU: kernels that it starts, waits of the host, and peak memory."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

__all__ = ["host_syncs", "launches", "peak_bytes"]

_SLOWEST = 16


def launches(call: Callable[[], object]) -> dict[str, Any]:
    """The number of kernels and copies that one call starts on the device, and the microseconds of the slowest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    started = [event for event in profile.events() or () if event.device_type == DeviceType.CUDA]
    microseconds: dict[str, float] = {}
    for event in started:
        name = event.name[:80]
        microseconds[name] = microseconds.get(name, 0.0) + event.time_range.elapsed_us()
    slowest = sorted(microseconds.items(), key=lambda item: -item[1])[:_SLOWEST]
    return {"count": len(started), "us": dict(slowest)}


def host_syncs(call: Callable[[], object]) -> int:
    """How often the host waits for the device during one call.

    The answer is 0 if the call passes ``set_sync_debug_mode("error")``; otherwise the warnings are counted.
    """
    try:
        torch.cuda.set_sync_debug_mode("error")
        call()
        return 0
    except RuntimeError as error:
        if "synchron" not in str(error):
            raise
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.cuda.set_sync_debug_mode("warn")
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return max(1, sum("synchron" in str(warning.message) for warning in caught))


def peak_bytes(call: Callable[[], object]) -> int:
    """The largest rise of allocated device memory during ``call``, in bytes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
