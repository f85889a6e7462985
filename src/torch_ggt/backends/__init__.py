"""How the verbs of a step are carried out. This is the one place that decides which backend does it.

`TorchBackend` is plain torch on any device, and the specification of all others. `HostBackend` is for a CPU, where the
host may look at numbers; `NativeBackend` has compiled passes for it. `TritonBackend` has kernels for NVIDIA GPUs.
"""

import functools
import importlib
import logging
import os

import torch

from torch_ggt.backends.native import NativeBackend, library
from torch_ggt.backends.plain import HostBackend, TorchBackend

__all__ = ["choose"]

_OLDEST = (8, 0)  # compute capability: the first with bfloat16
_log = logging.getLogger("torch_ggt")


@functools.cache
def choose(device: torch.device) -> TorchBackend:
    """The backend for a device; `HostRowsBackend` has it do the arithmetic of rows that are in host memory.

    Compiled passes serve on a CPU where the package torch-ggt-cpu is installed, and Triton on an NVIDIA GPU that is new
    enough. ``TORCH_GGT_NATIVE=0`` and ``TORCH_GGT_TRITON=0`` in the environment turn them off.
    """
    if device.type == "cpu":
        passes = library()
        return HostBackend() if passes is None else NativeBackend(passes)
    if device.type != "cuda" or torch.version.hip is not None or os.environ.get("TORCH_GGT_TRITON", "1") == "0":
        return TorchBackend()
    if torch.cuda.get_device_capability(device) < _OLDEST:
        _log.info("%s is too old for the kernels of torch_ggt; using plain torch", torch.cuda.get_device_name(device))
        return TorchBackend()
    try:
        triton = importlib.import_module("torch_ggt.backends.triton")
        triton.check(device)
        backend: TorchBackend = triton.TritonBackend()
    except Exception as error:
        _log.info("no Triton for torch_ggt (%s); using plain torch", error)
        return TorchBackend()
    return backend
