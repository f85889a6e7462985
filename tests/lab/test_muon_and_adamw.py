"""Muon for whole models: each tensor moves as the optimizer that has it moves it, and resumes."""

import io

import pytest
import torch
from torch import nn

from ggt_lab.optimizers.muon_and_adamw import MuonAndAdamW
from ggt_lab.optimizers.specs import missing_package, optimizer_factory


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).double()


def train(network, optimizer, steps, start=0):
    for step in range(start, start + steps):
        torch.manual_seed(100 + step)
        optimizer.zero_grad()
        network(torch.randn(5, 3, 4, 4, dtype=torch.float64)).square().mean().backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
        optimizer.step()


def test_each_tensor_by_its_own_optimizer():
    """Against Muon and AdamW stepped by hand, the convolution written as a matrix."""
    ours, theirs = model(), model()
    train(ours, MuonAndAdamW(ours.parameters(), lr=0.01), 6)
    conv, linear = theirs[0], theirs[2]
    kernel = nn.Parameter(conv.weight.detach().clone().flatten(1))
    muon = torch.optim.Muon([kernel, linear.weight], weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([conv.bias, linear.bias])
    for step in range(6):
        torch.manual_seed(100 + step)
        theirs.zero_grad()
        conv.weight.data.copy_(kernel.data.view_as(conv.weight))
        theirs(torch.randn(5, 3, 4, 4, dtype=torch.float64)).square().mean().backward()
        kernel.grad = conv.weight.grad.flatten(1)
        for optimizer in (muon, adamw):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
            optimizer.step()
    conv.weight.data.copy_(kernel.data.view_as(conv.weight))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_resumes_bit_by_bit():
    whole, first = model(), model()
    train(whole, MuonAndAdamW(whole.parameters(), lr=0.01), 6)
    optimizer = MuonAndAdamW(first.parameters(), lr=0.01)
    train(first, optimizer, 3)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second = model()
    resumed = optimizer_factory("MuonAndAdamW")(second.parameters(), 0.5)
    second.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    assert {group["lr"] for group in resumed.param_groups} == {0.01 / 3}
    train(second, resumed, 3, start=3)
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(3, 2), (3,), ()])
def test_models_of_one_kind_of_tensor(shape):
    parameter = nn.Parameter(torch.ones(shape))
    parameter.grad = torch.ones(shape)
    optimizer = MuonAndAdamW([parameter], lr=0.1)
    assert optimizer.step(lambda: 3.0) == 3.0
    assert (parameter < 1).all()


def test_missing_package():
    assert missing_package("torch.optim.Adam(lr=1)") is None
    assert missing_package("no_such_package.sub.Class") == "no_such_package"
