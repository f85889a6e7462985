"""Muon for whole models: each tensor moves as the optimizer that has it moves it, and resumes."""

import io

import pytest
import torch
from torch import nn

from ggt_lab.optimizers.muon_and_adamw import MuonAndAdamW, NorMuonAndAdamW
from ggt_lab.optimizers.normuon import NorMuon, equal_rows
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


def test_groups_say_what_is_a_hidden_matrix():
    """Groups with roles: an embedding goes to AdamW, and each group keeps its own weight decay."""
    torch.manual_seed(0)
    embedding, hidden, bias = (nn.Parameter(torch.randn(*shape).double()) for shape in ((5, 4), (4, 4), (4,)))
    ours = [{"params": [hidden], "role": "matrix"}, {"params": [embedding], "role": "rest"}]
    ours.append({"params": [bias], "role": "rest", "weight_decay": 0.0})
    copies = [p.detach().clone().requires_grad_() for p in (hidden, embedding, bias)]
    muon = torch.optim.Muon([copies[0]], 0.01, 0.5, 0.9, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(
        [{"params": [copies[1]]}, {"params": [copies[2]], "weight_decay": 0.0}], 0.01, weight_decay=0.5
    )
    optimizer = MuonAndAdamW(ours, lr=0.01, weight_decay=0.5, momentum=0.9)
    for _ in range(4):
        for p, copy in zip((hidden, embedding, bias), copies, strict=True):
            p.grad = torch.randn_like(p)
            copy.grad = p.grad.clone()
        for each in (optimizer, muon, adamw):
            each.step()
    for p, copy in zip((hidden, embedding, bias), copies, strict=True):
        torch.testing.assert_close(p, copy, rtol=1e-12, atol=1e-12)


def test_normuon_against_its_formula():
    """Momentum, polar factor, rows divided by their running size, norm restored; a literal loop in NumPy's manner."""
    torch.manual_seed(0)
    start, gradients = torch.randn(4, 6).double(), torch.randn(5, 4, 6).double()
    weight = nn.Parameter(start.clone())
    optimizer = NorMuonAndAdamW([weight], lr=0.1, weight_decay=0.5, momentum=0.8)
    expected, average, squares = start.clone(), torch.zeros(4, 6).double(), torch.zeros(4).double()
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        average = 0.8 * average + 0.2 * gradient
        left, _, right = torch.linalg.svd(0.2 * gradient + 0.8 * average, full_matrices=False)
        polar = left @ right
        squares = 0.95 * squares + 0.05 * (polar**2).mean(1)
        rows = polar / squares.sqrt()[:, None]
        step = rows * polar.norm() / rows.norm()
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 6**0.5 * step
        # Newton–Schulz leaves singular values between 0.7 and 1.2; so the steps agree in direction and roughly in size.
        taken, wanted = weight.detach() - start, expected - start
        assert torch.nn.functional.cosine_similarity(taken.flatten(), wanted.flatten(), dim=0) > 0.98
        assert 0.8 < taken.norm() / wanted.norm() < 1.2


def test_rows_of_equal_size():
    """The running mean of squares, and the norm, to rounding."""
    polar, squares = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[1.0], [2.0]])
    rows = equal_rows(polar, squares)
    torch.testing.assert_close(squares, torch.tensor([[0.95 + 0.05 * 12.5], [1.9 + 0.05 * 0.5]]))
    torch.testing.assert_close(rows.norm(), polar.norm())
    sizes = torch.linalg.vector_norm(rows, dim=1)
    torch.testing.assert_close(sizes[0] / sizes[1], torch.tensor(5 * (1.925 / 1.575) ** 0.5))


def test_normuon_refuses_other_lengths():
    with pytest.raises(ValueError, match='adjust_lr_fn must be "match_rms_adamw", got None'):
        NorMuon([nn.Parameter(torch.eye(2))])


@pytest.mark.parametrize("spec", ["MuonAndAdamW", "NorMuonAndAdamW(momentum=0.8)", "whiten(MuonAndAdamW, window=4)"])
def test_resumes_bit_by_bit(spec):
    whole, first = model(), model()
    make = optimizer_factory(spec)
    train(whole, make(whole.parameters(), 0.01), 6)
    optimizer = make(first.parameters(), 0.01)
    train(first, optimizer, 3)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second = model()
    resumed = make(second.parameters(), 0.5)
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
    assert missing_package("whiten(no_such_package.SOAP(lr=1), window=5)") == "no_such_package"


def test_a_whitened_pair_shares_one_window():
    """Its matrices and vectors are whitened together, with the window that the spec says."""
    network = model()
    optimizer = optimizer_factory("whiten(MuonAndAdamW(momentum=0.9), window=50, jitter=1e-3)")(
        network.parameters(), 0.01
    )
    whitened = [p for group in optimizer.whitening.param_groups for p in group["params"]]
    assert {id(p) for p in whitened} == {id(p) for p in network.parameters()}
    assert {group["scope"] for group in optimizer.whitening.param_groups} == {"model"}
    assert (optimizer.whitening.defaults["window"], optimizer.whitening.defaults["jitter"]) == (50, 1e-3)
    with pytest.raises(ValueError, match="whiten needs one optimizer"):
        optimizer_factory("whiten(window=5)")
    with pytest.raises(ValueError, match="options are given by name"):
        optimizer_factory("AdamW(0.1)")
