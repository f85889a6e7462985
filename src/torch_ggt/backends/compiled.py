"""W v with float64 sums on a CPU, in one pass: torch.compile fuses the widening into the reduction.

Plain torch has to write the widened rows and read them again: 9.4 ms at d = 3e5, r = 100 on two cores, where the fused
loop takes 4.3 ms, as long as the float32 product itself. Compiling takes some seconds once (torch keeps the result on
disk), so that it is left alone for windows too small to earn that back. It needs a C++ compiler; without one, or with
``TORCH_GGT_COMPILE=0`` in the environment, the plain version serves.
"""

import functools
import logging
import os
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["SMALLEST", "compiled_gram_row"]

SMALLEST = 2**24  # elements of the window; a pass takes a few milliseconds
_log = logging.getLogger("torch_ggt")


def compiled_gram_row(rows: Tensor, row: Tensor, fallback: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """(W v, v·v) in float64 by the fused loop, or None where it does not work or does not pay.

    Args:
        rows: W.
        row: v, in the dtype of the rows.
        fallback: what the compiled function does where somebody has turned compilation off.
    """
    if rows.dtype != torch.float32 or not _Compiler.works:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about itself
            inner = _Compiler.function(fallback)
            # Two calls: with both sums in one graph the compiler would keep a widened copy of the row.
            return torch.cat([inner(rows, row), inner(row[None], row)])
    except Exception as error:
        _Compiler.works = False
        _log.info("torch.compile is not available for torch_ggt (%s); using the plain version", error)
        return None


class _Compiler:
    works = os.environ.get("TORCH_GGT_COMPILE", "1") != "0"

    @staticmethod
    @functools.cache
    def function(fallback: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def fused(rows: Tensor, row: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():  # someone turned compilation off: no full-size temporary, please
                return fallback(rows, row)[:-1]
            return (rows.double() * row.double()).sum(1)

        compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(fused, dynamic=True)
        return compiled
