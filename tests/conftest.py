"""Shared by all tests: one thread per worker (xdist supplies the parallelism), and a fixed seed."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
