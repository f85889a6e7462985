"""Each rank's part of a step runs in the GPU's kernels, as one device's does; here by Triton's interpreter."""

import importlib.util

import pytest
import torch
from modes import distance, make, train, whole_parameters
from ranks import on_ranks

from torch_ggt import block, products, window
from torch_ggt import optimizer as optimizer_module

STEPS = 3
OPTIONS = {"window": 3, "solver": "cholesky", "jitter": 0.1, "lr": 0.1}


def by_kernels_and_by_torch(modes):
    """{mode: (parameters by kernels, by torch, whether gathering and updating were kernels, too)}."""
    from torch_ggt.kernels import gpu

    optimizer_module._DEFAULT_TOLERANCE = 1e-2  # fewer nodes, the same in both
    found = {}
    for mode in modes:
        ends = []
        for kernels in (gpu, None):
            for module in (block, products, window):
                module.gpu_kernels = lambda _, kernels=kernels: kernels
            model, optimizer = make(mode, torch.float32, **OPTIONS)
            train(mode, model, optimizer, 0, STEPS)
            ends.append(whole_parameters(model))
            if kernels is gpu:
                (matrix,) = optimizer._matrices
                used = all(part._gradients._known and part._values._known for part in matrix)
        found[mode] = (*ends, used)
    return found


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_parts_of_all_ranks_run_in_kernels(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when Triton is imported
    modes = ("ddp", "fsdp")
    for found in on_ranks(2, by_kernels_and_by_torch, modes, fresh=True):
        for mode in modes:
            by_kernels, by_torch, used = found[mode]
            assert used, mode
            assert distance(by_kernels, by_torch) < 1e-5
