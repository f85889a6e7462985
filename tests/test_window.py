"""The ring, its Gram and its ages, by themselves."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import Window
from torch_ggt.backends import plain
from torch_ggt.layout import Layout
from torch_ggt.memory import window_bytes


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 9),
    columns=st.integers(1, 40),
    pushes=st.integers(0, 30),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    refuse=st.sets(st.integers(0, 29)),
)
def test_ring_gram_and_ages(size, columns, pushes, dtype, refuse):
    window = Window(size, columns, dtype=dtype)
    kept = []
    for step in range(pushes):
        row, betas = torch.randn(columns, dtype=torch.float64), (0.5 + 0.01 * step, 1 - 0.01 * step)
        accept = torch.tensor(step not in refuse)
        newest = window.push(row, window.measure(row), betas=betas, accept=accept)
        assert newest.sum() == float(accept)
        if accept:
            kept = [(row.to(dtype), 1.0, 1.0), *((r, m * betas[0], d * betas[1]) for r, m, d in kept)][:size]
    assert int(window.count) == len(kept)
    order = [(int(window.position) - 1 - age) % size for age in range(len(kept))]  # newest first
    for slot, (row, momentum, decay) in zip(order, kept, strict=True):
        assert torch.equal(window.rows[slot], row)
        torch.testing.assert_close(window.momentum[slot].item(), momentum)
        torch.testing.assert_close(window.decay[slot].item(), decay)
    wide = window.rows.double()
    torch.testing.assert_close(window.gram, wide @ wide.T, rtol=1e-12, atol=1e-12)
    G = (window.decay[:, None] * wide).T
    torch.testing.assert_close(window.moment(), G.T @ G, rtol=1e-12, atol=1e-12)
    c = torch.randn(size, dtype=torch.float64)
    out = torch.empty(columns, dtype=torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(window.expand(c, out).double(), G @ c, rtol=1e-5, atol=1e-5)
    singular = torch.linalg.svdvals(G)
    torch.testing.assert_close(window.singular_values()[: len(singular)], singular, rtol=1e-6, atol=1e-6)


def test_the_gram_does_not_drift():
    window = Window(5, 50)
    for _ in range(5000):
        row = torch.randn(50)
        window.push(row, window.measure(row), betas=(0.9, 1.0))
    exact = window.rows.double() @ window.rows.double().T
    assert (window.gram - exact).abs().max() <= 1e-13 * exact.abs().max()


def test_momentum_coefficients_survive_underflow():
    """β₂^age underflows to zero for small β₂ and old rows: such a row weighs nothing, and is not 0/0."""
    window = Window(400, 2, dtype=torch.float64)
    for _ in range(400):
        row = torch.randn(2, dtype=torch.float64)
        window.push(row, window.measure(row), betas=(0.01, 0.02))
    assert window.momentum_coefficients().isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [1, 131_071, 131_072, 131_073, 300_001])
def test_products_over_blocks(dtype, columns):
    """Sizes around the edges of the blocks; the sums are those of float64."""
    rows, row = torch.randn(11, columns).to(dtype), torch.randn(columns).to(dtype)
    found = plain.gram_row(rows, row)
    wide, v = rows.double(), row.double()
    scale = v.norm() * wide.norm(dim=1).max()
    assert (found[:-1] - wide @ v).abs().max() <= 1e-13 * scale
    assert (found[-1] - v @ v).abs() <= 1e-13 * (v @ v)
    c = torch.randn(11, dtype=torch.float64)
    out = torch.full((columns,), torch.nan, dtype=torch.promote_types(dtype, torch.float32))
    plain.expand(rows, c, wide @ wide.T, out)
    torch.testing.assert_close(out.double(), wide.T @ c, rtol=1e-5, atol=1e-5)


def test_expand_of_nearly_collinear_rows_keeps_its_digits():
    """Huge coefficients of opposite sign: rounding them to float32 alone would leave an error of 1e-3."""
    base = torch.rand(50_000) + 0.5
    rows = base + 1e-4 * torch.randn(2, 50_000)
    c = torch.tensor([1e4 + 1 / 3, -1e4 + 1 / 7], dtype=torch.float64)
    out = torch.empty(50_000)
    wide = rows.double()
    plain.expand(rows, c, wide @ wide.T, out)
    exact = wide.T @ c
    rounded = rows.T @ c.float()
    mean_error = (out.double() - exact).mean().abs()
    assert mean_error <= 2e-6 * exact.norm() / 50_000**0.5
    assert (rounded.double() - exact).mean().abs() > 5 * mean_error


def test_layout_views():
    parameters = [torch.zeros(()), torch.zeros(2, 3), torch.zeros(0, 4), torch.zeros(2, dtype=torch.complex64)]
    layout = Layout(parameters)
    assert layout.numel == 1 + 6 + 0 + 4
    flat = torch.arange(2.0 * layout.numel).view(2, -1)
    views = layout.views(flat)
    assert [tuple(v.shape) for v in views] == [(2,), (2, 2, 3), (2, 0, 4), (2, 2, 2)]
    torch.testing.assert_close(torch.cat([v.flatten(1) if v.ndim > 1 else v[:, None] for v in views], 1), flat)


def test_window_bytes():
    assert window_bytes(20, 1000, torch.bfloat16) == 40_000


def test_spectrum_is_the_singular_values_of_the_window():
    p = torch.nn.Parameter(torch.zeros(30, dtype=torch.float64))
    optimizer = GGT([p], betas=(0.0, 0.9), window=4)
    columns = []
    for _ in range(6):
        p.grad = torch.randn(30, dtype=torch.float64)
        columns = [p.grad.clone(), *(0.9 * c for c in columns)][:4]
        optimizer.step()
    (spectrum,) = optimizer.spectrum()
    torch.testing.assert_close(spectrum, torch.linalg.svdvals(torch.stack(columns, 1)))


def test_match_rms_adamw_has_the_scale_of_adamw():
    """0.2·√d times a unit vector: RMS 0.2 per element, so that AdamW's learning rates carry over."""
    p, q = (torch.nn.Parameter(torch.zeros(40, 50)) for _ in range(2))
    optimizer = GGT([p, q], lr=1e-2, betas=(0.0, 1.0))
    for _ in range(30):
        before = torch.cat([p, q]).detach().clone()
        p.grad, q.grad = torch.randn(40, 50), torch.randn(40, 50)
        optimizer.step()
    rms = (torch.cat([p, q]).detach() - before).square().mean().sqrt()
    assert rms.item() == pytest.approx(0.2 * 1e-2, rel=0.02)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_memory_beyond_the_window():
    """At most 4·d float32 beyond parameters, gradients and the window itself: measured in a process of its own."""
    from ggt_lab.bench.cpu_step import memory

    assert 2 <= memory(d=4_000_000, r=5)["beyond_window"] <= 4
