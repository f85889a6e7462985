"""Algorithms 2 and 3 against the dense reference, their oracles, and the theorem's own bound."""

import math

import pytest
import torch

from ggt_lab.theory import Proximal, SparseNoise, adagrad, adaptive_ratio, hard_window, schedule
from torch_ggt import reference


class Recorded:
    """An oracle that remembers what it answered."""

    def __init__(self, oracle):
        self.oracle, self.sigma, self.answers = oracle, oracle.sigma, []
        self.value, self.gradient = oracle.value, oracle.gradient

    def sample(self, x):
        self.answers.append(self.oracle.sample(x))
        return self.answers[-1]


class Wells:
    """Σ cos(x_i) with Gaussian noise: smooth with L = 1, non-convex, M ≤ 2d, σ as given."""

    def __init__(self, dimension, sigma, generator):
        self.dimension, self.sigma, self.generator = dimension, sigma, generator

    def value(self, x):
        return x.cos().sum()

    def gradient(self, x):
        return -x.sin()

    def sample(self, x):
        noise = torch.randn(self.dimension, dtype=torch.float64, generator=self.generator)
        return self.gradient(x) + self.sigma / math.sqrt(self.dimension) * noise


@pytest.mark.parametrize(("dimension", "steps"), [(12, 7), (12, 11), (5, 5), (5, 40), (1, 10)])
@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_adagrad_equals_the_dense_reference(dimension, steps, eps):
    """Fewer steps than dimensions go through the Gram matrix, more through a d × d sum."""
    oracle = Recorded(SparseNoise(dimension, torch.Generator().manual_seed(1)))
    start = torch.randn(dimension, dtype=torch.float64)
    run = adagrad(oracle, start, steps=steps, lr=0.3, eps=eps)
    x, iterates = start.clone(), []
    for u in reference.full_adagrad(oracle.answers, eps=eps):
        iterates.append(x)
        x = x - 0.3 * u
    torch.testing.assert_close(run.last, x, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(run.average, torch.stack(iterates).mean(0), rtol=1e-7, atol=1e-9)
    assert run.steps == steps == len(oracle.answers)


@pytest.mark.parametrize(("dimension", "window"), [(12, 6), (4, 9)])
def test_hard_window_is_adagrad_restarted_on_the_proximal_problem(dimension, window):
    runs = []
    oracle = Wells(dimension, 0.5, torch.Generator().manual_seed(2))
    start = torch.randn(dimension, dtype=torch.float64)
    found = hard_window(
        oracle, start, restarts=5, window=window, strength=1.5, lr=0.2, on_window=lambda *pair: runs.append(pair)
    )
    again = Wells(dimension, 0.5, torch.Generator().manual_seed(2))
    x, norms = start, [again.gradient(start).norm().item()]
    for problem, run in runs:
        assert torch.equal(problem.centre, x)
        expected = adagrad(Proximal(again, x, 1.5), x, steps=window, lr=0.2)
        torch.testing.assert_close(run.average, expected.average)
        x = run.average
        norms.append(again.gradient(x).norm().item())
    assert found.gradient_norms == norms
    assert found.best_gradient_norm == min(norms) == oracle.gradient(found.best).norm().item()
    assert found.oracle_calls == 5 * window


def test_proximal_oracle_is_the_gradient_of_its_function():
    oracle = Wells(4, 0.0, torch.Generator())
    centre, x = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64, requires_grad=True)
    problem = Proximal(oracle, centre, 0.7)
    problem.value(x).backward()
    torch.testing.assert_close(problem.gradient(x.detach()), x.grad)
    torch.testing.assert_close(problem.sample(x.detach()), x.grad)


@pytest.mark.parametrize("rotated", [True, False])
def test_sparse_noise_is_unbiased_and_of_unit_size(rotated):
    oracle = SparseNoise(6, torch.Generator().manual_seed(3), rotated=rotated)
    torch.testing.assert_close(oracle.basis @ oracle.basis.T, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-12)
    x = torch.randn(6, dtype=torch.float64)
    noise = torch.stack([oracle.sample(x) - oracle.gradient(x) for _ in range(6000)])
    torch.testing.assert_close(noise.norm(dim=1), torch.ones(6000, dtype=torch.float64))
    assert noise.mean(0).norm() < 0.05
    torch.testing.assert_close(noise.T @ noise / 1000, torch.eye(6, dtype=torch.float64), rtol=0, atol=0.2)


def test_full_adagrad_does_not_see_the_basis():
    """Rotating oracle and start rotates every iterate: the theory may assume the coordinate axes."""
    plain = SparseNoise(8, torch.Generator().manual_seed(4), rotated=False)
    turned = SparseNoise(8, torch.Generator().manual_seed(4), rotated=False)
    turned.basis = SparseNoise(8, torch.Generator().manual_seed(5)).basis
    start = torch.randn(8, dtype=torch.float64)
    a = adagrad(plain, start, steps=30, lr=0.5)
    b = adagrad(turned, turned.basis @ start, steps=30, lr=0.5)
    torch.testing.assert_close(turned.basis @ a.average, b.average, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("sparsity", [1, 3, 10])
def test_ratio_of_the_papers_example_is_below_its_bound(sparsity):
    """μ ≤ ‖x₁‖₁/(‖x₁‖₂√d), coordinates in the basis of the noise, with the best of a few learning rates."""
    dimension, steps = 10, 2000
    mean = {}
    for lr in (0.1, 0.3, 1.0):
        ratios = []
        for seed in range(3):
            oracle = SparseNoise(dimension, torch.Generator().manual_seed(seed))
            start = oracle.basis[:, :sparsity].sum(1)
            run = adagrad(oracle, start, steps=steps, lr=lr)
            ratios.append(adaptive_ratio(oracle, start=start, output=run.average, minimizer=0 * start, steps=steps))
        mean[lr] = sum(ratios) / len(ratios)
    assert min(mean.values()) <= math.sqrt(sparsity) / math.sqrt(dimension)


def test_schedule_is_the_theorems():
    L, M, sigma, mu, eps = 2.0, 3.0, 0.5, 0.8, 0.25
    plan = schedule(smoothness=L, gap=M, sigma=sigma, ratio=mu, target=eps)
    assert plan.restarts * plan.window == pytest.approx(512 * L * M * mu**2 * sigma**2 / eps**4, rel=0.02)
    assert plan.restarts == 4 * M * 4 * L / eps**2
    other = schedule(smoothness=L, gap=M, sigma=sigma, ratio=mu, target=eps, strength=5.0)
    assert other.window == math.ceil(16 * mu**2 * sigma**2 * 12 / (eps**2 * 8))


def test_the_theorem_on_a_small_case():
    """Reaches the promised gradient norm within T·w calls, with the adaptive ratio at most the one assumed."""
    sigma, target, assumed = 0.3, 0.5, 1.0
    norms, ratios = [], []

    def record(problem, run):
        if problem.oracle.gradient(problem.centre).norm() <= target:
            return  # the proof needs the ratio only of windows that start above the target
        x = problem.centre.clone()
        for _ in range(200):  # exact minimizer of a 2λ - L = 2 strongly convex, 4-smooth problem
            x = x - 0.25 * problem.gradient(x)
        ratios.append(adaptive_ratio(problem, start=problem.centre, output=run.average, minimizer=x, steps=run.steps))

    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        oracle = Wells(2, sigma, generator)
        start = 0.7 * torch.randn(2, dtype=torch.float64, generator=generator)  # near a maximum
        plan = schedule(smoothness=1.0, gap=4.0, sigma=sigma, ratio=assumed, target=target)
        run = hard_window(
            oracle, start, restarts=min(plan.restarts, 60), window=plan.window, strength=1.5, lr=0.5, on_window=record
        )
        norms.append(run.best_gradient_norm)
        assert run.oracle_calls <= plan.restarts * plan.window
    assert sum(norms) / len(norms) <= target
    assert 0 < max(ratios) <= assumed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothness": 0.0}, "smoothness must be a positive number, got smoothness=0.0"),
        ({"target": math.nan}, "target must be a positive number"),
        ({"strength": 0.5}, "larger than smoothness/2 = 0.5"),
    ],
)
def test_schedule_refuses(options, message):
    given = {"smoothness": 1.0, "gap": 1.0, "sigma": 1.0, "ratio": 1.0, "target": 0.1, **options}
    with pytest.raises(ValueError, match=message):
        schedule(**given)


def test_other_refusals():
    oracle = SparseNoise(2, torch.Generator())
    x = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="steps=0"):
        adagrad(oracle, x, steps=0, lr=0.1)
    with pytest.raises(ValueError, match="lr=-1"):
        adagrad(oracle, x, steps=1, lr=-1)
    with pytest.raises(ValueError, match="not the minimizer"):
        adaptive_ratio(oracle, start=x, output=x, minimizer=x, steps=1)
