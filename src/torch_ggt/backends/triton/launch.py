"""Start Triton kernels, with little work on the host."""

import contextlib
from typing import Any

import torch
from torch import Tensor

__all__ = ["ceil_div", "launch", "power_of_2"]

_compiled: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}


# Triton has both functions for its kernels. Called on the host, they cost as much time as the start of a kernel.
def ceil_div(numerator: int, denominator: int) -> int:
    """⌈numerator/denominator⌉."""
    return -(-numerator // denominator)


def power_of_2(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()


def launch(kernel: Any, programs: tuple[int, ...], first: Tensor, *others: Any, **options: Any) -> None:  # noqa: ANN401
    """Run a kernel on the device of its first argument, which may differ from the current device.

    ``programs`` is the shape of the grid; an empty grid starts nothing. ``options`` are the constants of the kernel and
    options of the compiler.
    """
    if 0 in programs:
        return
    if not first.is_cuda:  # Triton's interpreter runs the kernel on the CPU
        kernel[programs](first, *others, enable_fp_fusion=True, **options)
        return
    elsewhere = first.device.index != torch.cuda.current_device()
    with torch.cuda.device(first.device) if elsewhere else contextlib.nullcontext():
        start(kernel, programs, (first, *others), options, first.device.index)


def start(
    kernel: Any, programs: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any], device: int,  # noqa: ANN401
) -> None:  # fmt: skip
    """Do what ``kernel[programs](...)`` does, in half of the host's time.

    At every launch, Triton works out which compiled kernel it needs. A step starts seven kernels, and a step of a small
    model takes as long as the host's work. So we look up the compiled kernel by everything that the choice depends on.
    """
    key = (kernel.fn, device, *map(_kind, arguments), *options.values())  # a kernel is slow to hash
    if key not in _compiled:
        constants = [options[name] for name in kernel.arg_names[len(arguments) :]]
        compiled = kernel.warmup(*arguments, grid=(1,), enable_fp_fusion=True, **options)
        _compiled[key] = compiled, constants
    compiled, constants = _compiled[key]
    compiled[(*programs, 1, 1)[:3]](*arguments, *constants)


def _kind(argument: Any) -> Any:  # noqa: ANN401
    """What a compiled kernel assumes of an argument: Triton looks at the alignment of pointers and divisors of ints."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument if isinstance(argument, int) else type(argument)
