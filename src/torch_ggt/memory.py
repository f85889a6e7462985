"""The memory of a window: how many bytes it needs, and which window would fit."""

import contextlib
import os
from collections.abc import Sequence

import torch

from torch_ggt.window import Window

__all__ = ["allocate_window", "readable", "window_bytes"]


def window_bytes(size: int, columns: int, dtype: torch.dtype) -> int:
    """The number of bytes of the rows of a window."""
    return size * columns * dtype.itemsize


def allocate_window(
    size: int, columns: int, dtype: torch.dtype, device: torch.device, borders: Sequence[int] | None = None
) -> Window:
    """Make a window. If memory is short, the error says how many bytes it needs and which r or dtype would fit."""
    try:
        return Window(size, columns, borders=borders, dtype=dtype, device=device)
    except RuntimeError as error:  # a CPU allocation that fails is a plain RuntimeError
        wanted, free = window_bytes(size, columns, dtype), _free_bytes(device)
        if not isinstance(error, torch.OutOfMemoryError) and (free is None or wanted <= free):
            raise
        raise torch.OutOfMemoryError(
            f"GGT: no memory for the window on {device}. It needs {wanted} bytes ({readable(wanted)}): window={size} "
            f"rows × {columns} elements × {dtype.itemsize} bytes of {dtype}. {_advice(columns, dtype, free)}"
        ) from error


def _advice(columns: int, dtype: torch.dtype, free: int | None) -> str:
    if free is None:
        return "Use a smaller window, or window_dtype=torch.bfloat16."
    fits = [
        f"window={rows} in {candidate}"
        for candidate in dict.fromkeys((dtype, torch.bfloat16))
        if (rows := int(0.9 * free) // max(1, columns * candidate.itemsize)) >= 1
    ]
    if fits:
        return f"{readable(free)} are free: {' or '.join(fits)} would fit."
    return f"{readable(free)} are free, too little for one row: use a scope of fewer parameters or SGD."


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def readable(count: float) -> str:
    """A number of bytes with its unit, as text."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
