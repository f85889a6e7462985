"""How every Triton kernel is started."""

import contextlib
from typing import Any

import torch
from torch import Tensor

__all__ = ["ceil_div", "launch", "power_of_2"]


# Triton has both, for kernels: called on the host they cost as much as starting one.
def ceil_div(numerator: int, denominator: int) -> int:
    """⌈numerator/denominator⌉."""
    return -(-numerator // denominator)


def power_of_2(number: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << (number - 1).bit_length()


def launch(kernel: Any, programs: tuple[int, ...], first: Tensor, *others: Any, **options: Any) -> None:  # noqa: ANN401
    """Run a kernel on the device of its first argument, which may not be the current one."""
    elsewhere = first.is_cuda and first.device.index != torch.cuda.current_device()
    with torch.cuda.device(first.device) if elsewhere else contextlib.nullcontext():
        kernel[programs](first, *others, enable_fp_fusion=True, **options)
