"""The r × r functions against dense oracles: SciPy's matrix square root, the SVD reference, each other."""

import math

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_ggt import apply_inverse_root, coefficients, reference


def matrix_with(singular_values, rows, seed):
    """A (rows, r) matrix with the given singular values."""
    generator = torch.Generator().manual_seed(seed)
    r = len(singular_values)
    left, _ = torch.linalg.qr(torch.randn(rows, r, generator=generator, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(r, r, generator=generator, dtype=torch.float64))
    return left @ torch.diag(singular_values) @ right.T


@pytest.mark.parametrize("solver", ["eigh", "cholesky"])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-2, 1.0, 1e3])
def test_coefficients_against_scipy_sqrtm(solver, eps):
    G = matrix_with(torch.tensor([3.0, 1.0, 0.5, 0.1], dtype=torch.float64), 9, seed=1)
    M, a = G.T @ G, torch.randn(4, dtype=torch.float64)
    delta = 1e-6 * M.trace().item() / 4
    root = scipy.linalg.sqrtm(M.numpy() + delta * scipy.linalg.block_diag(*[1.0] * 4))
    expected = scipy.linalg.solve(root + eps * scipy.linalg.block_diag(*[1.0] * 4), a.numpy())
    found = coefficients(M, a, eps=eps, jitter=1e-6, solver=solver, tolerance=1e-11)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-8, atol=0)


@settings(max_examples=150, deadline=None)
@given(
    r=st.integers(1, 64) | st.sampled_from([100, 200, 256]),
    condition=st.floats(0, 8),
    eps=st.just(0.0) | st.floats(-14, 1).map(lambda x: 10**x),
    filled=st.floats(0.05, 1),
    scale=st.floats(-12, 12),
    seed=st.integers(0, 2**16),
)
def test_cholesky_equals_eigh(r, condition, eps, filled, scale, seed):
    """Rank-deficient and partly filled windows included; ε relative to the largest singular value."""
    sigma = torch.logspace(0, -condition, r, dtype=torch.float64) * 10**scale
    G = matrix_with(sigma, r + 5, seed)
    G[:, max(1, int(filled * r)) :] = 0
    if seed % 3 == 0:
        G[:, : r // 2] = G[:, :1]  # repeated rows: rank-deficient
    M = G.T @ G
    a = torch.zeros(r, dtype=torch.float64)
    a[seed % max(1, int(filled * r))] = 1
    eps = eps * torch.linalg.matrix_norm(G, 2).item()
    by_eigh = G @ coefficients(M, a, eps=eps, jitter=1e-6, solver="eigh")
    by_cholesky = G @ coefficients(M, a, eps=eps, jitter=1e-6, solver="cholesky", tolerance=1e-8)
    assert by_cholesky.isfinite().all()
    assert (by_cholesky - by_eigh).norm() <= 1e-6 * by_eigh.norm()


@pytest.mark.parametrize("solver", ["eigh", "cholesky"])
def test_batches_are_independent(solver):
    G = torch.randn(5, 7, 3, dtype=torch.float64) * torch.logspace(-3, 3, 5, dtype=torch.float64)[:, None, None]
    M, a = G.mT @ G, torch.randn(5, 3, dtype=torch.float64)
    together = coefficients(M, a, eps=1e-2, jitter=1e-6, solver=solver)
    for i in range(5):
        alone = coefficients(M[i], a[i], eps=1e-2, jitter=1e-6, solver=solver)
        torch.testing.assert_close(together[i], alone, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("solver", "jitter"), [("eigh", 0.0), ("eigh", 1e-6), ("cholesky", 1e-6)])
@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_a_zero_window_gives_finite_coefficients(solver, jitter, eps):
    c = coefficients(torch.zeros(3, 3).double(), torch.ones(3).double(), eps=eps, jitter=jitter, solver=solver)
    assert c.isfinite().all()


@pytest.mark.parametrize("solver", ["eigh", "cholesky"])
@pytest.mark.parametrize("size", [1e-150, 1e-60, 1e60, 1e150])
def test_extreme_scales(solver, size):
    G = matrix_with(torch.tensor([2.0, 1.0], dtype=torch.float64), 4, seed=0)
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    unit = G @ coefficients(G.T @ G, a, eps=0.0, jitter=1e-6, solver=solver)
    scaled = G * size
    c = coefficients(scaled.T @ scaled, a, eps=0.0, jitter=1e-6, solver=solver)
    torch.testing.assert_close(scaled @ c, unit, rtol=1e-7, atol=0)
    with_eps = coefficients(scaled.T @ scaled, a, eps=1e-8, jitter=1e-6, solver=solver)
    assert with_eps.isfinite().all()


def test_eigh_that_fails_to_converge_is_recovered(monkeypatch):
    real = torch.linalg.eigh
    calls = []

    def failing_once(matrix):
        calls.append(matrix)
        if len(calls) == 1:
            raise torch.linalg.LinAlgError("failed to converge")
        return real(matrix)

    M, a = torch.diag(torch.tensor([4.0, 9.0]).double()), torch.ones(2).double()
    expected = coefficients(M, a, eps=0.1, jitter=1e-6)
    monkeypatch.setattr(torch.linalg, "eigh", failing_once)
    torch.testing.assert_close(coefficients(M, a, eps=0.1, jitter=1e-6), expected)
    assert len(calls) == 2


@pytest.mark.parametrize("solver", ["eigh", "cholesky"])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 10.0])
@pytest.mark.parametrize("jitter", [1e-6, 1e-2])
def test_any_vector_against_the_reference(solver, eps, jitter):
    """In the span, outside of it, and mixed; fewer and more rows than columns."""
    for r, d in ((3, 8), (8, 3), (1, 1), (5, 5)):
        rows = torch.randn(r, d, dtype=torch.float64)
        for v in (rows.sum(0), torch.randn(d, dtype=torch.float64)):
            found = apply_inverse_root(rows, v, eps=eps, jitter=jitter, solver=solver)
            expected = reference.inverse_root(rows.T, v, eps=eps, jitter=jitter)
            assert (found - expected).norm() <= 1e-8 * max(expected.norm(), v.norm())


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_any_vector_without_jitter(eps):
    rows, v = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    found = apply_inverse_root(rows, v, eps=eps, jitter=0.0)
    torch.testing.assert_close(found, reference.inverse_root(rows.T, v, eps=eps), rtol=1e-9, atol=1e-9)


def test_apply_inverse_root_keeps_the_dtype_and_refuses_wrong_shapes():
    rows = torch.randn(3, 4)
    assert apply_inverse_root(rows, torch.randn(4)).dtype == torch.float32
    with pytest.raises(ValueError, match=r"\(r, d\)"):
        apply_inverse_root(rows, torch.randn(3))
    with pytest.raises(ValueError, match="jitter > 0"):
        apply_inverse_root(rows, torch.randn(4), jitter=0.0, solver="cholesky")
    with pytest.raises(ValueError, match="'svd'"):
        apply_inverse_root(rows, torch.randn(4), solver="svd")


def test_coefficients_refuse_an_unknown_solver():
    with pytest.raises(ValueError, match="'choleski'"):
        coefficients(torch.eye(2).double(), torch.ones(2).double(), eps=0.0, jitter=1e-6, solver="choleski")
    with pytest.raises(ValueError, match="needs jitter > 0"):
        coefficients(torch.eye(2).double(), torch.ones(2).double(), eps=0.0, jitter=0.0, solver="cholesky")


@pytest.mark.parametrize("solver", ["eigh", "cholesky"])
def test_the_smallest_jitter_allowed_is_safe(solver):
    """Constant rows: all of M but one direction is rounding."""
    rows = torch.randn(1, 500, dtype=torch.float64).expand(200, 500)
    e = torch.zeros(200, dtype=torch.float64)
    e[0] = 1
    c = coefficients(rows @ rows.T, e, eps=0.0, jitter=1e-10, solver=solver, tolerance=1e-11)
    assert (rows.T @ c).norm().item() == pytest.approx(200**-0.5, rel=1e-3)


def test_the_step_of_an_orthonormal_window_is_the_newest_row():
    rows = torch.eye(4, dtype=torch.float64)
    c = coefficients(rows @ rows.T, rows[0], eps=0.0, jitter=0.0)
    assert math.isclose((rows.T @ c).norm().item(), 1.0)
