"""The reference against oracles that know nothing of it: SciPy's matrix functions and torch's own optimizers."""

import numpy as np
import pytest
import scipy.linalg
import torch

from torch_ggt import reference


def gradients(count, d, dtype=torch.float64):
    return [torch.randn(d, dtype=dtype) for _ in range(count)]


@pytest.mark.parametrize("eps", [1e-3, 1e-1])
@pytest.mark.parametrize("jitter", [0.0, 1e-2])
def test_inverse_root_against_scipy(eps, jitter):
    for d, r in ((6, 3), (3, 6), (4, 4)):
        G, v = np.random.default_rng(0).normal(size=(d, r)), np.random.default_rng(1).normal(size=d)
        delta = jitter * (G**2).sum() / r
        # (GGᵀ + δI)^½ is the left polar factor of [G, √δ I]: no squares, hence no lost digits, as in sqrtm(GGᵀ).
        _, root = scipy.linalg.polar(np.hstack([G, np.sqrt(delta) * np.eye(d)]), side="left")
        expected = np.linalg.solve(root + eps * np.eye(d), v)
        found = reference.inverse_root(torch.from_numpy(G), torch.from_numpy(v), eps=eps, jitter=jitter)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_inverse_root_is_the_pseudo_inverse_without_eps():
    G, v = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    expected = scipy.linalg.pinv(np.real(scipy.linalg.sqrtm((G @ G.T).numpy())), rtol=1e-5) @ v.numpy()
    np.testing.assert_allclose(reference.inverse_root(G, v, eps=0.0).numpy(), expected, rtol=1e-5)


def torch_steps(optimizer_class, grads, **options):
    p = torch.nn.Parameter(torch.zeros_like(grads[0]))
    optimizer = optimizer_class([p], lr=1.0, **options)
    steps = []
    for g in grads:
        with torch.no_grad():
            p.zero_()
        p.grad = g.clone()
        optimizer.step()
        steps.append(-p.detach().clone())
    return steps


def test_diagonal_methods_against_torch():
    grads = gradients(20, 5)
    torch.testing.assert_close(
        reference.diagonal_adagrad(grads, eps=1e-4), torch_steps(torch.optim.Adagrad, grads, eps=1e-4)
    )
    torch.testing.assert_close(
        reference.rmsprop(grads, beta2=0.9, eps=1e-4), torch_steps(torch.optim.RMSprop, grads, alpha=0.9, eps=1e-4)
    )


def test_diagonal_forgetting_is_rmsprop_up_to_its_constant():
    grads = gradients(20, 5)
    ours = reference.diagonal_forgetting(grads, beta2=0.9, eps=0.0)
    theirs = reference.rmsprop(grads, beta2=0.81, eps=0.0)
    torch.testing.assert_close(ours, [u * (1 - 0.81) ** 0.5 for u in theirs])


def test_full_methods_agree_with_diagonal_ones_in_one_dimension():
    grads = gradients(20, 1)
    torch.testing.assert_close(
        reference.full_forgetting(grads, beta2=0.9, eps=1e-3), reference.diagonal_forgetting(grads, beta2=0.9, eps=1e-3)
    )


@pytest.mark.parametrize("beta2", [1.0, 0.9])
def test_full_matrix_methods_against_a_dense_recursion(beta2):
    """H ← β₂² H + g gᵀ, u = (H^½ + εI)⁻¹ g: the accumulation, without ever stacking columns."""
    grads = gradients(15, 4)
    H = np.zeros((4, 4))
    found = reference.full_forgetting(grads, beta2=beta2, eps=1e-2)
    if beta2 == 1.0:
        torch.testing.assert_close(found, reference.full_adagrad(grads, eps=1e-2))
    for g, u in zip(grads, found, strict=True):
        H = beta2**2 * H + np.outer(g, g)
        eigenvalues, V = np.linalg.eigh(H)
        expected = V @ ((V.T @ g.numpy()) / (np.sqrt(eigenvalues.clip(0)) + 1e-2))
        np.testing.assert_allclose(u.numpy(), expected, rtol=1e-6)


def test_algorithm_1_with_a_window_longer_than_the_run_is_full_forgetting():
    grads = gradients(8, 5)
    ggt = reference.GGTReference(window=20, eps=1e-3)
    ours = [ggt.step(g, betas=(0.0, 0.9)) for g in grads]
    torch.testing.assert_close(ours, reference.full_forgetting(grads, beta2=0.9, eps=1e-3))


def test_window_forgets():
    grads = gradients(9, 5)
    long, short = (reference.GGTReference(window=4, eps=1e-3) for _ in range(2))
    for g in grads:
        expected = long.step(g, betas=(0.0, 0.9))
    for g in grads[-4:]:
        found = short.step(g, betas=(0.0, 0.9))
    torch.testing.assert_close(found, expected)


def test_untruncated_momentum_leaves_the_span_and_explodes():
    """Why the optimizer truncates: 1/ε multiplies what is left of gradients that have left the window."""
    grads = gradients(40, 30)
    literal = reference.GGTReference(window=5, eps=1e-8, truncate_momentum=False)
    truncated = reference.GGTReference(window=5, eps=1e-8)
    lengths = [
        (literal.step(g, betas=(0.9, 1.0)).norm().item(), truncated.step(g, betas=(0.9, 1.0)).norm().item())
        for g in grads
    ]
    assert lengths[-1][0] > 1e7
    assert lengths[-1][1] < 5


def test_sgd_scale_adds_the_vector():
    grads = gradients(5, 4)
    plain = reference.GGTReference(window=3, eps=0.1, history="momentum")
    mixed = reference.GGTReference(window=3, eps=0.1, history="momentum", sgd_scale=0.5)
    v = torch.zeros(4, dtype=torch.float64)
    for g in grads:
        v = 0.9 * v + g
        torch.testing.assert_close(mixed.step(g, betas=(0.9, 1.0)), plain.step(g, betas=(0.9, 1.0)) + 0.5 * v)


def test_reference_imports_nothing_from_the_fast_path():
    import ast
    import pathlib

    tree = ast.parse(pathlib.Path(reference.__file__).read_text())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"collections.abc", "math", "torch"}
