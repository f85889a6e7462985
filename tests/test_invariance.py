"""What full-matrix preconditioning does not depend on: the scale of the loss, the basis of the parameters."""

import pytest
import torch

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT


def trajectory(transform, scale, *, steps=200, **options):
    """Parameters x along a stochastic quadratic-quartic loss, parametrized as x = transform @ y."""
    generator = torch.Generator().manual_seed(5)
    d = transform.shape[0]
    curvature = torch.logspace(-2, 2, d, dtype=torch.float64)
    start = torch.randn(d, dtype=torch.float64, generator=generator)
    y = torch.nn.Parameter(torch.linalg.solve(transform, start))
    optimizer = GGT([y], lr=1e-2, eps=0.0, window=8, **options)
    xs = []
    for _ in range(steps):
        noise = 0.1 * torch.randn(d, dtype=torch.float64, generator=generator)
        x = transform @ y
        loss = scale * ((curvature * (x - noise) ** 2).sum() + 0.1 * (x**4).sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        xs.append((transform @ y).detach())
    return torch.stack(xs)


OPTIONS = [
    {},
    {"jitter": 0.0},
    {"history": "gradient", "betas": (0.9, 0.99)},
    {"solver": "cholesky", "nesterov": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_of_the_loss(options, scale):
    identity = torch.eye(12, dtype=torch.float64)
    reference, scaled = trajectory(identity, 1.0, **options), trajectory(identity, scale, **options)
    assert (reference - scaled).abs().max() <= 1e-6 * reference.abs().max()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_orthogonal_change_of_basis(options):
    identity = torch.eye(12, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))
    reference, rotated = trajectory(identity, 1.0, **options), trajectory(rotation, 1.0, **options)
    assert (reference - rotated).abs().max() <= 1e-6 * reference.abs().max()


def test_a_diagonal_method_does_depend_on_the_basis():
    """The check above can fail: Adam fails it."""
    x = torch.randn(12, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))
    steps = []
    for transform in (torch.eye(12, dtype=torch.float64), rotation):
        y = torch.nn.Parameter(transform.T @ x)
        optimizer = torch.optim.Adam([y], lr=1e-2)
        ((transform @ y) ** 2 * torch.logspace(-2, 2, 12, dtype=torch.float64)).sum().backward()
        optimizer.step()
        steps.append((transform @ y).detach())
    assert (steps[0] - steps[1]).abs().max() > 1e-3


def test_sgd_scale_gives_up_the_invariance():
    identity = torch.eye(12, dtype=torch.float64)
    plain, scaled = (trajectory(identity, s, steps=20, sgd_scale=0.01) for s in (1.0, 1e-3))
    assert (plain - scaled).abs().max() > 1e-3
