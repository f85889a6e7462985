"""The two passes on a CPU by a compiled library, where the package torch-ggt-cpu is installed.

Plain torch cannot add products of float32 numbers up in float64 without a widened copy of the rows. The library
(``native/src/torch_ggt_cpu/passes.c``) widens them in registers, and reads integers in one pass.
"""

import ctypes
import functools
import importlib
import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ggt.backends.plain import HostBackend, Scratch, column_slices
from torch_ggt.formats import Coded

__all__ = ["NativeBackend", "library"]

_INTERFACE = 1
_FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
_SMALL = 2**16  # elements of a window for which a second thread does not pay
_log = logging.getLogger("torch_ggt")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled passes; None if they are not installed, or if ``TORCH_GGT_NATIVE=0`` turns them off."""
    if os.environ.get("TORCH_GGT_NATIVE", "1") == "0":
        return None
    try:
        package = importlib.import_module("torch_ggt_cpu")
        if package.INTERFACE != _INTERFACE:
            raise ImportError(f"torch-ggt-cpu {package.__version__} is for another version of torch-ggt")
        found = ctypes.CDLL(str(package.LIBRARY))
    except (ImportError, OSError) as error:
        _log.info("no compiled passes for torch_ggt (%s); using plain torch", error)
        return None
    rows: list[Any] = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_long] * 4, ctypes.c_int]
    found.torch_ggt_measure.argtypes = [*rows, ctypes.c_void_p, ctypes.c_void_p]
    found.torch_ggt_expand.argtypes = [*rows, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    found.torch_ggt_measure.restype = found.torch_ggt_expand.restype = None
    return found


class NativeBackend(HostBackend):
    """`HostBackend` with compiled passes over rows of float32, bfloat16 and integers; torch reads float64 rows."""

    def __init__(self, passes: ctypes.CDLL) -> None:
        self.passes = passes

    def measure(
        self,
        rows: Tensor | Coded,
        row: Tensor,
        borders: Sequence[int] | None = None,
        scratch: Scratch | None = None,
    ) -> Tensor:
        """As `plain.gram_row`."""
        if borders is not None:
            return torch.stack([self.measure(rows[:, part], row[part]) for part in column_slices(borders)])
        arguments = _arguments(rows)
        if arguments is None:
            return HostBackend.measure(rows, row, None, scratch)
        stored = rows.stored(row) if isinstance(rows, Coded) else row.to(rows.dtype).float()
        size, threads = rows.shape[0], arguments[-1]
        sums = torch.empty(threads * (size + 1), dtype=torch.float64, device="cpu")
        self.passes.torch_ggt_measure(*arguments, stored.contiguous().data_ptr(), sums.data_ptr())
        return sums[: size + 1]

    def expand(
        self,
        rows: Tensor | Coded,
        coefficients: Tensor,
        gram: Tensor,
        out: Tensor,
        borders: Sequence[int] | None = None,
        *,
        wide: bool = False,
        kept: Tensor | None = None,
    ) -> Tensor:
        """As `plain.expand`; sums are always wide."""
        if borders is not None:
            for index, part in enumerate(column_slices(borders)):
                share = None if kept is None else kept[index]
                self.expand(rows[:, part], coefficients[index], gram[index], out[part], wide=wide, kept=share)
            return out
        arguments = _arguments(rows)
        if arguments is None or out.dtype != torch.float32 or not out.is_contiguous():
            return HostBackend.expand(rows, coefficients, gram, out, wide=wide, kept=kept)
        coefficients, add = coefficients.contiguous(), kept is not None and bool(kept != 0)
        if add:
            out.mul_(kept)  # type: ignore[arg-type]
        self.passes.torch_ggt_expand(*arguments, coefficients.data_ptr(), out.data_ptr(), add)
        return out


def _arguments(rows: Tensor | Coded) -> tuple[int, ...] | None:
    """What the library wants to know of the rows; None if it cannot read them."""
    size, columns = rows.shape
    threads = torch.get_num_threads() if size * columns >= _SMALL else 1
    if isinstance(rows, Coded):
        codes, scales = rows.codes, rows.scales
        kind, addresses = rows.format.name.partition("@")[0], (codes.data_ptr(), scales.data_ptr())
        strides = codes.stride(0), scales.stride(0)
    else:
        kind, addresses = str(rows.dtype).removeprefix("torch."), (rows.data_ptr(), 0)
        strides = rows.stride(0), 0
        if rows.stride(1) != 1 and columns > 1:
            return None
    if kind not in _FORMATS:
        return None
    return (_FORMATS[kind], *addresses, *strides, size, columns, threads)
