"""A matrix over several devices of one process. Where there is one, labels stand for them: the code is the same."""

import copy

import pytest
import torch
from torch import nn

import torch_ggt.block
from torch_ggt import GGT

SHAPES = [(7, 12), (12,), (), (12, 10), (10, 2), (2,)]


@pytest.fixture
def on_three_devices(monkeypatch):
    """Every third parameter on the same "device"."""
    places = {}

    def device_of(parameter):
        return torch.device("cpu", places.setdefault(id(parameter), len(places)) % 3)

    monkeypatch.setattr(torch_ggt.block, "_device", device_of)


def make(scope, dtype=torch.float64, **options):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 2e-3, "weight_decay": 0.1}]
    return parameters, GGT(groups, window=5, scope=scope, **options)


def train(parameters, optimizer, start, stop, absent=()):
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(step)
        for index, p in enumerate(parameters):
            gradient = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.grad = None if (step, index) in absent else gradient
        optimizer.step()


def shards(optimizer):
    return [len(matrix) for matrix in optimizer._matrices]


@pytest.fixture
def expected():
    """Parameters, spectra and states of one device, after 8 and 20 steps."""

    def run(scope, **options):
        parameters, optimizer = make(scope, **options)
        train(parameters, optimizer, 0, 8, absent=ABSENT)
        half = copy.deepcopy(optimizer.state_dict())
        values = [p.detach().clone() for p in parameters]
        train(parameters, optimizer, 8, 20)
        return half, values, parameters, optimizer.spectrum()

    return run


ABSENT = {(0, 3), (1, 3), (2, 0), (2, 1), (4, 5)}  # late parameters, and some without a gradient


@pytest.mark.parametrize("scope", ["model", "group"])
@pytest.mark.parametrize("options", [{}, {"history": "gradient"}, {"nesterov": True, "solver": "cholesky"}], ids=str)
def test_three_devices_are_one(request, expected, scope, options):
    half, values, ends, spectra = expected(scope, **options)
    request.getfixturevalue("on_three_devices")
    parameters, optimizer = make(scope, **options)
    train(parameters, optimizer, 0, 8, absent=ABSENT)
    assert max(shards(optimizer)) == 3
    saved = copy.deepcopy(optimizer.state_dict())
    for key, entry in half["state"].items():
        assert saved["state"][key].keys() == entry.keys()
    train(parameters, optimizer, 8, 20)
    for p, end in zip(parameters, ends, strict=True):
        torch.testing.assert_close(p, end, rtol=1e-10, atol=1e-12)
    assert len(spectra) == len(optimizer.spectrum())
    for ours, theirs in zip(optimizer.spectrum(), spectra, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)

    loaded, other = make(scope, **options)  # what one device has saved goes on on three
    with torch.no_grad():
        for p, value in zip(loaded, values, strict=True):
            p.copy_(value)
    other.load_state_dict(half)
    train(loaded, other, 8, 20)
    for p, end in zip(loaded, ends, strict=True):
        torch.testing.assert_close(p, end, rtol=1e-10, atol=1e-12)


def test_resuming_on_the_same_devices_is_bitwise(on_three_devices):
    parameters, optimizer = make("model")
    train(parameters, optimizer, 0, 8)
    saved = copy.deepcopy(optimizer.state_dict())
    values = [p.detach().clone() for p in parameters]
    train(parameters, optimizer, 8, 20)
    others, other = make("model")
    with torch.no_grad():
        for p, value in zip(others, values, strict=True):
            p.copy_(value)
    other.load_state_dict(saved)
    train(others, other, 8, 20)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(parameters, others, strict=True))


@pytest.mark.filterwarnings("ignore:GGT skipped")
def test_a_nan_on_one_device_skips_the_step_on_all(on_three_devices):
    parameters, optimizer = make("model")
    train(parameters, optimizer, 0, 5)
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    parameters[4].grad.fill_(torch.nan)
    optimizer.step()
    assert optimizer.skipped == 1
    assert all(torch.equal(p, value) for p, value in zip(parameters, before, strict=True))
