"""What the tests of all packages share: a small model, its data, optimizers with a window, and a plain loop."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from torch_ggt import GGT, whiten

sys.path.insert(0, str(Path(__file__).parent.parent / "distributed"))  # for `ranks`

EPOCHS, BATCHES, BATCH = 2, 4, 8
STEPS = EPOCHS * BATCHES


def ggt(params, **options):
    return GGT(params, lr=1e-2, weight_decay=0.0, window=3, **options)  # the Trainer has a weight decay of its own: 0


def whitened(params, **options):
    return whiten(torch.optim.AdamW(params, lr=1e-2, weight_decay=0.0), window=3, **options)


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.0)


MEMBERS = {"ggt": ggt, "whiten": whitened}


def small_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCHES * BATCH, 4, generator=generator), torch.randn(BATCHES * BATCH, 2, generator=generator)


def batches(batch_size=BATCH):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=batch_size)


def loss_of(model, x, y):
    return (model(x) - y).square().mean()


def flat(model):
    """A copy of all parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def plain_loop(member):
    """The parameters after all epochs in a loop of plain torch."""
    model = small_model()
    optimizer = member(model.parameters())
    for x, y in [*batches()] * EPOCHS:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return flat(model)


def relative_difference(a, b):
    return float((a - b).norm() / b.norm())


def assert_training_is_that_of_the_plain_loop(found, name):
    """The bits of the plain loop with this optimizer, and not the result of AdamW."""
    assert torch.equal(found, plain_loop(MEMBERS[name]))
    assert relative_difference(found, plain_loop(adamw)) > 1e-3


def like_torchrun():
    """Set the variables that torchrun sets, in a rank of tests/distributed/ranks.py."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), rank) | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), size)
    os.environ.update(ranks, GROUP_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1", TORCHELASTIC_RUN_ID="test")


def assert_ranks_agree_and_resume_bitwise(results):
    """{member: (whole run, resumed run, run with the window not split)} on each of the ranks."""
    assert len(results) == 2
    for found in results:
        assert found.keys() == MEMBERS.keys()
        for name, (whole, resumed, not_split) in found.items():
            assert torch.equal(whole, results[0][name][0]), name
            assert torch.equal(whole, resumed), name
            assert relative_difference(whole, not_split) < 1e-5, name
            assert relative_difference(whole, flat(small_model())) > 1e-3, name
