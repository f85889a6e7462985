"""Kernels that beat plain torch by measurement. Torch's version, in `torch_ggt.products`, is their specification."""

import functools
import importlib
import logging
import os
from types import ModuleType

import torch

__all__ = ["gpu_kernels"]

_OLDEST = (8, 0)  # compute capability: the first with bfloat16
_log = logging.getLogger("torch_ggt")


@functools.cache
def gpu_kernels(device: torch.device) -> ModuleType | None:
    """`torch_ggt.kernels.gpu` where it works: an NVIDIA GPU that is new enough, and Triton. None elsewhere.

    ``TORCH_GGT_TRITON=0`` in the environment says no to all of them.
    """
    if device.type != "cuda" or torch.version.hip is not None or os.environ.get("TORCH_GGT_TRITON", "1") == "0":
        return None
    if torch.cuda.get_device_capability(device) < _OLDEST:
        _log.info("%s is too old for the kernels of torch_ggt; using plain torch", torch.cuda.get_device_name(device))
        return None
    try:
        kernels = importlib.import_module("torch_ggt.kernels.gpu")
        kernels.check(device)
    except Exception as error:
        _log.info("no Triton for torch_ggt (%s); using plain torch", error)
        return None
    return kernels
