"""Shared by all tests: one thread per worker (xdist supplies the parallelism), and a fixed seed.

The tests are of plain torch, which is the specification. tests/test_native.py is about the compiled passes.
"""

import os

import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("TORCH_GGT_NATIVE", "0")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
