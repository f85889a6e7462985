"""Each rank's part of a step runs in the GPU's kernels, as one device's does; here by Triton's interpreter."""

import importlib.util

import pytest
import torch
from modes import distance, make, train, whole_parameters
from ranks import on_ranks

from torch_ggt import backends
from torch_ggt import step as step_module

STEPS = 3
OPTIONS = {"window": 3, "solver": "cholesky", "jitter": 0.1, "lr": 0.1}


def by_kernels_and_by_torch(modes):
    """{mode: (parameters by kernels, by torch, whether gathering and updating were kernels, too)}."""
    from torch_ggt.backends.triton import TritonBackend

    step_module._DEFAULT_TOLERANCE = 1e-2  # fewer nodes, the same in both
    found = {}
    for mode in modes:
        ends = []
        for backend in (TritonBackend(), backends.HostBackend()):
            backends.choose = lambda _, backend=backend: backend
            model, optimizer = make(mode, torch.float32, **OPTIONS)
            train(mode, model, optimizer, 0, STEPS)
            ends.append(whole_parameters(model))
            if isinstance(backend, TritonBackend):
                (block,) = optimizer.attached_blocks()
                used = block.addresses.keys() == {"gradients", "values"}
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
