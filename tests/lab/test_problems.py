"""Problems: equal start and data for all optimizers, values against an independent solver, files of users."""

import numpy as np
import pytest
import scipy.optimize
import torch

from ggt_lab.optimizers.dense_adaptive import DiagonalAdaptive, FullMatrixAdaptive
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class, problem_names
from ggt_lab.runs.short_run import train
from torch_ggt import reference

CPU = torch.device("cpu")


NEED_DATA = {"cifar10", "cifar10-vgg", "ptb-chars", "ptb-chars-transformer", "ptb-words"}
NEED_DATA |= {"league-gpt-ptb", "league-gpt-bytes", "league-lstm-ptb", "league-shake-shake", "league-resnet"}
NEED_DATA |= {"league-a1", "league-r4"}


def test_names():
    everywhere = {"barrier", "barrier-vertex", "digits", "logistic", "sparse-noise", "stdlib-chars"}
    everywhere |= {"pinn-allen-cahn", "pinn-burgers", "pinn-convection", "pinn-poisson"}
    everywhere |= {"adding", "curves", "digits-split", "factorization"}
    assert set(problem_names()) == everywhere | NEED_DATA | {f"{name}-tiny" for name in NEED_DATA}


@pytest.mark.parametrize("name", sorted(set(problem_names()) - NEED_DATA))
def test_a_seed_fixes_start_and_data(name):
    cls = problem_class(name)
    first, second, other = cls(3, CPU), cls(3, CPU), cls(4, CPU)
    gradients = [
        torch.cat(
            [g.flatten() for _ in range(3) for g in torch.autograd.grad(problem.loss(), list(problem.parameters()))]
        )
        for problem in (first, second, other)
    ]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])
    assert first.evaluate() == second.evaluate()
    assert cls.metric in first.evaluate()


@pytest.mark.parametrize("name", ["barrier", "logistic", "sparse-noise"])
def test_losses_are_unbiased(name):
    """The mean gradient of many batches is the gradient of the evaluated loss."""
    problem = problem_class(name)(0, CPU)
    (point,) = problem.parameters()
    with torch.no_grad():
        point.copy_(0.01 * torch.randn(point.shape, dtype=torch.float64))
    sampled = torch.stack([torch.autograd.grad(problem.loss(), point)[0] for _ in range(3000)])
    if name == "sparse-noise":
        exact = 2 * point.detach()
    else:
        (exact,) = torch.autograd.grad(problem.terms(slice(None)).mean(), point)
    error = (sampled.mean(0) - exact).norm()
    assert error <= 4 * sampled.std(0).norm() / 3000**0.5


def test_anisotropy_is_as_stated():
    samples = problem_class("logistic")(0, CPU).samples
    eigenvalues = torch.linalg.eigvalsh(samples.T @ samples / len(samples))
    assert 5e3 < eigenvalues[-1] / eigenvalues[0] < 2e4
    off_diagonal = samples.T @ samples
    off_diagonal.fill_diagonal_(0)
    assert off_diagonal.abs().max() > 0.01 * len(samples)  # not along the axes


def test_logistic_is_separable():
    problem = problem_class("logistic")(0, CPU)
    assert (problem.signs * (problem.samples @ torch.linalg.lstsq(problem.samples, problem.signs).solution) > 0).any()
    assert problem.evaluate()["loss"] == pytest.approx(np.log(2))


@pytest.mark.parametrize(("name", "lr", "factor"), [("digits", 3e-2, 0.2), ("stdlib-chars", 3e-2, 0.6)])
def test_small_nets_learn(name, lr, factor):
    cls = problem_class(name)
    start = cls(0, CPU).evaluate()["loss"]
    outcome = train(cls(0, CPU), optimizer_factory("GGT"), lr, steps=120, evaluations=1)
    assert outcome.curve[-1]["loss"] < factor * start


def test_barrier_returns_inside_the_polytope():
    problem = problem_class("barrier")(0, CPU)
    with torch.no_grad():
        problem.point.fill_(100.0)
    assert np.isfinite(problem.evaluate()["loss"])
    assert (problem.samples @ problem.point + problem.offsets > 0).all()
    with torch.no_grad():
        problem.point.fill_(torch.nan)
    assert np.isfinite(problem.loss().item())


def test_barrier_has_a_minimum():
    problem = problem_class("barrier")(0, CPU)
    x, c = problem.samples.numpy(), problem.offsets.numpy()

    def value(w):
        slack = x @ w + c
        return np.inf if (slack <= 0).any() else -np.log(slack).mean()

    found = scipy.optimize.minimize(value, np.zeros(10), method="Nelder-Mead", options={"maxiter": 20000})
    assert found.fun < value(np.zeros(10))
    assert np.isfinite(found.fun)


@pytest.mark.parametrize("beta2", [1.0, 0.95])
def test_dense_optimizers_are_the_reference(beta2):
    gradients = [torch.randn(5, dtype=torch.float64) for _ in range(30)]
    for cls, expected in (
        (FullMatrixAdaptive, reference.full_forgetting(gradients, beta2=beta2, eps=1e-4)),
        (DiagonalAdaptive, reference.diagonal_forgetting(gradients, beta2=beta2, eps=1e-4)),
    ):
        pair = [torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)), torch.nn.Parameter(torch.zeros(3).double())]
        optimizer = cls(pair, lr=1.0, beta2=beta2)
        for gradient, u in zip(gradients, expected, strict=True):
            with torch.no_grad():
                for p, g in zip(pair, gradient.split([2, 3]), strict=True):
                    p.zero_()
                    p.grad = g.clone()
            optimizer.step()
            torch.testing.assert_close(-torch.cat([p.detach() for p in pair]), u, rtol=1e-6, atol=1e-8)


def test_unknown_names_get_suggestions(tmp_path):
    with pytest.raises(ValueError, match="did you mean logistic"):
        problem_class("logistik")
    with pytest.raises(ValueError, match="there are adding, barrier, barrier-vertex, cifar10"):
        problem_class("zzz")
    with pytest.raises(ValueError, match="no such file"):
        problem_class(str(tmp_path / "none.py"))


def test_a_users_own_file(tmp_path):
    own = tmp_path / "own.py"
    own.write_text("class Problem:\n    steps = 1\n")
    with pytest.raises(ValueError, match="lacks metric, parameters, loss, evaluate"):
        problem_class(str(own))
    own.write_text("x = 1\n")
    with pytest.raises(ValueError, match="no class named Problem"):
        problem_class(str(own))
    own.write_text(
        "import torch\n"
        "class Problem:\n"
        "    steps, metric = 3, 'loss'\n"
        "    def __init__(self, seed, device):\n"
        "        self.p = torch.nn.Parameter(torch.ones(2, device=device))\n"
        "    def parameters(self): return [self.p]\n"
        "    def loss(self): return self.p.square().sum()\n"
        "    def evaluate(self): return {'loss': self.p.square().sum().item()}\n"
    )
    assert problem_class(str(own))(0, CPU).evaluate() == {"loss": 2.0}


def test_steps_against_a_facet_end_at_it():
    """Each halved step ends closer to the facet, until halving changes nothing: it must end all the same."""
    problem = problem_class("barrier")(0, CPU)
    for _ in range(200):
        with torch.no_grad():
            problem.point.sub_(problem.samples[0])
        assert np.isfinite(problem.evaluate()["loss"])
    slack = problem.samples @ problem.point.detach() + problem.offsets
    assert 0 < float(slack.min()) < 1e-15
