"""Every kernel against its specification in torch: random and poisoned data, odd sizes, unaligned spans, many matrices.

On a GPU, or, with TRITON_INTERPRET=1 and KERNEL_DEVICE=cpu, without one (`tests/test_gpu_kernels.py` does that).
"""

import itertools
import os

import pytest
import torch

DEVICE = os.environ.get("KERNEL_DEVICE", "cuda")
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of the interpreter, about NaN
    pytest.mark.filterwarnings("ignore:GGT skipped a step"),
]
INTERPRETED = DEVICE != "cuda"  # then a conversion to bfloat16 truncates, where a GPU rounds to the nearest
triton_backend = pytest.importorskip("torch_ggt.backends.triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

if INTERPRETED:
    from interpreter_like_a_gpu import make_like_a_gpu

    make_like_a_gpu()

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT  # noqa: E402
from torch_ggt import Whitening, Window, backends, shrinkage, solver, whiten  # noqa: E402
from torch_ggt import step as step_module  # noqa: E402
from torch_ggt.backends.triton import coded, noise, passes, root, tensors  # noqa: E402
from torch_ggt.backends.triton.spans import Spans  # noqa: E402
from torch_ggt.formats import BLOCK, FORMATS  # noqa: E402

#: For cases that take the interpreter ten seconds and more; a GPU needs none.
SLOW = [pytest.mark.soak] if INTERPRETED else []
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
SHAPES = pytest.mark.parametrize(
    ("size", "borders", "stride"),
    [
        (1, [0, 1], 1),
        (2, [0, 5, 5, 9], 9),  # an empty matrix between two
        (9, [0, 64, 700, 701, 1300], 1333),
        (8, [0, 64, 1024, 1088], 1088),  # aligned throughout
        (17, [0, 1100], 1101),
        (33, [0, 640], 704),
        (5, [0, 64, 9000], 9001),  # several pieces of one matrix
    ],
)


def make_rows(size, borders, stride, dtype, scale=1.0):
    """Rows of all magnitudes; what is outside of the columns is NaN."""
    store = torch.full((size, stride), torch.nan, dtype=dtype, device=DEVICE)
    rows = store[:, : borders[-1]]
    rows.copy_(scale * torch.randn(rows.shape, dtype=torch.float64) * torch.randn(size, 1, dtype=torch.float64).exp())
    return rows


def slices(borders):
    return [slice(a, b) for a, b in itertools.pairwise(borders)]


@DTYPES
@SHAPES
@pytest.mark.parametrize(
    ("scale", "variant"),
    [
        (1e-25, {}),  # the interpreter's bfloat16 has no subnormals
        (1.0, {"stages": 3, "vector": 2, "block_rows": 8, "block_columns": 128}),
        (1e36, {}),
    ],
)
def test_gram_row(dtype, size, borders, stride, scale, variant):
    rows = make_rows(size, borders, stride, dtype, scale)
    row = (scale * torch.randn(borders[-1], dtype=torch.float64)).to(DEVICE, dtype)
    found = passes.gram_row(rows, row, Spans(borders, size, DEVICE), **variant)
    assert found.shape == (len(borders) - 1, size + 1)
    for sums, part in zip(found, slices(borders), strict=True):
        wide, v = rows[:, part].double(), row[part].double()
        bound = 1e-14 * (wide.abs() @ v.abs())
        assert ((sums[:-1] - wide @ v).abs() <= bound).all()
        assert (sums[-1] - v @ v).abs() <= 1e-14 * (v @ v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_number_is_widened_exactly(dtype):
    """Signed zeros, subnormals, the smallest, the largest, and random bits."""
    integer = torch.int16 if dtype == torch.bfloat16 else torch.int32
    limits = torch.iinfo(integer)
    bits = torch.randint(limits.min, limits.max, (3000,), dtype=integer)
    special = torch.tensor([0, 1, -1, 2, limits.min, limits.min + 1], dtype=integer)
    values = torch.cat([bits, special]).view(dtype)
    values = values[values.isfinite()]
    if INTERPRETED and dtype == torch.bfloat16:  # the interpreter takes subnormals for zeros
        values = values[(values == 0) | (values.abs() >= torch.finfo(dtype).tiny)]
    values = values.to(DEVICE)
    rows = values[None].contiguous()
    for column in (0, len(values) - 1, len(values) - 2, len(values) - 3, *range(1, 40)):
        one = torch.zeros(len(values), dtype=dtype, device=DEVICE)
        one[column] = 1
        spans = Spans([column, column + 1], 1, DEVICE)
        assert passes.gram_row(rows, one, spans)[0, 0] == values[column].double()


@DTYPES
def test_the_square_is_finite_exactly_if_the_row_is(dtype):
    rows, spans = make_rows(3, [0, 500], 500, dtype), Spans([0, 200, 500], 3, DEVICE)
    for bad in (torch.nan, torch.inf, -torch.inf):
        row = torch.randn(500).to(DEVICE, dtype)
        row[300] = bad
        assert passes.gram_row(rows, row, spans)[:, -1].isfinite().tolist() == [True, False]


@DTYPES
@SHAPES
@pytest.mark.parametrize("scale", [1e-33, 1e30])
def test_expand(dtype, size, borders, stride, scale):
    rows = make_rows(size, borders, stride, dtype, scale)
    c = torch.randn(len(borders) - 1, size, dtype=torch.float64, device=DEVICE) / scale
    out = torch.full((borders[-1] + 3,), torch.nan, dtype=torch.promote_types(dtype, torch.float32), device=DEVICE)
    passes.expand(rows, c, Spans(borders, size, DEVICE), out)
    assert out[borders[-1] :].isnan().all()  # beyond the last column nothing is written
    for mine, part in zip(c, slices(borders), strict=True):
        wide = rows[:, part].double()
        bound = (1e-15 if dtype == torch.float64 else 3e-7) * (wide.abs().T @ mine.abs())
        assert ((out[part].double() - wide.T @ mine).abs() <= bound).all()


def test_expand_of_nearly_collinear_rows_keeps_its_digits():
    """Huge coefficients of opposite sign: rounding them to float32 alone would leave an error of 1e-3."""
    base = torch.rand(5000) + 0.5
    rows = (base + 1e-4 * torch.randn(2, 5000)).to(DEVICE)
    c = torch.tensor([[1e4 + 1 / 3, -1e4 + 1 / 7]], dtype=torch.float64, device=DEVICE)
    out = torch.empty(5000, device=DEVICE)
    passes.expand(rows, c, Spans([0, 5000], 2, DEVICE), out)
    exact = rows.double().T @ c[0]
    assert (out.double() - exact).mean().abs() <= 1e-5 * exact.norm() / 5000**0.5
    plain = rows.T @ c[0].float()
    assert (plain.double() - exact).mean().abs() > 5e-5 * exact.norm() / 5000**0.5


def test_expand_of_zeros_is_zero():
    rows, out = make_rows(5, [0, 100], 100, torch.float32), torch.full((100,), torch.nan, device=DEVICE)
    passes.expand(rows, torch.zeros(1, 5, dtype=torch.float64, device=DEVICE), Spans([0, 100], 5, DEVICE), out)
    assert not out.any()


@pytest.mark.skipif(INTERPRETED, reason="more than 2³¹ elements are for a GPU")
def test_more_elements_than_32_bits_count():
    size, columns = 18, 2**27
    rows = torch.zeros(size, columns, dtype=torch.bfloat16, device=DEVICE)
    rows[-1, -64:] = 2
    row = torch.ones(columns, dtype=torch.bfloat16, device=DEVICE)
    spans = Spans([0, columns], size, DEVICE)
    assert passes.gram_row(rows, row, spans)[0].tolist() == [0.0] * 17 + [128.0, float(columns)]
    out = torch.empty(columns, device=DEVICE)
    passes.expand(rows, torch.ones(1, size, dtype=torch.float64, device=DEVICE), spans, out)
    assert out.sum() == 128


@triton.jit
def _treat_nan(given, found, bits):
    x = tl.load(given)
    tl.store(bits, (x * 2.0).to(tl.int32, bitcast=True))
    tl.store(found, tl.maximum(x, 1.0))
    tl.store(found + 1, x.to(tl.int32).to(tl.float32))


def test_nan_on_a_gpu():
    """What kernels must reckon with. The interpreter does as a GPU does, so that their tests without a GPU can fail."""
    found, bits = torch.empty(2, device=DEVICE), torch.empty(1, dtype=torch.int32, device=DEVICE)
    _treat_nan[(1,)](torch.full((1,), torch.nan, device=DEVICE), found, bits)
    assert bits.tolist() == [0x7FFFFFFF]
    assert found.tolist() == [1.0, 0.0]


# ---- the r × r part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 1e-3, 1e4])
@pytest.mark.parametrize(("size", "batch", "block"), [(1, 1, 32), (5, 3, 16), (18, 1, 16), (33, 1, 32)])
def test_coefficients(size, batch, block, eps):
    """Rank-deficient Grams of condition 1e16, decays, and a partly filled window: the same as batched Cholesky."""
    G = torch.randn(batch, size + 5, size, dtype=torch.float64, device=DEVICE)
    G = G * torch.logspace(0, -8, size, dtype=torch.float64, device=DEVICE)
    G[..., : size // 2] = G[..., :1]
    G[..., size - size // 4 :] = 0
    gram, decay = G.mT @ G, 1 - 0.5 * torch.rand(batch, size, dtype=torch.float64, device=DEVICE)
    rhs = torch.randn(batch, size, dtype=torch.float64, device=DEVICE)
    options = {"eps": eps, "jitter": 1e-6, "tolerance": 1e-2}  # few nodes: the same few in both
    found = root.coefficients(gram, decay, rhs, block=block, **options)
    moment = decay[..., :, None] * gram * decay[..., None, :]
    expected = solver.coefficients(moment, rhs, solver="cholesky", **options)
    assert (found - expected).norm() <= 1e-7 * expected.norm()
    step, expected_step = (G @ (decay * c)[..., None] for c in (found, expected))
    assert (step - expected_step).norm() <= 1e-8 * expected_step.norm()


def test_many_small_matrices_are_solved_by_small_programs(monkeypatch):
    """Fewer programs than problems, so that a program solves several; and one warp gives what four give."""
    G = torch.randn(4, 25, 18, dtype=torch.float64, device=DEVICE)
    decay, rhs = torch.rand(2, 4, 18, dtype=torch.float64, device=DEVICE) + 0.5
    options = {"eps": 1e-8, "jitter": 1e-6, "tolerance": 1e-2}
    expected = root.coefficients(G.mT @ G, decay, rhs, **options)
    monkeypatch.setattr(root, "_FEW", (4, 128, 5))
    monkeypatch.setattr(root, "_MANY", (1, 32, 7))
    torch.testing.assert_close(root.coefficients(G.mT @ G, decay, rhs, **options), expected, rtol=1e-10, atol=1e-12)


def test_coefficients_of_nothing_and_of_extremes():
    rhs, decay = (
        torch.ones(1, 3, dtype=torch.float64, device=DEVICE),
        torch.ones(1, 3, dtype=torch.float64, device=DEVICE),
    )
    options = {"jitter": 1e-2, "tolerance": 1e-2}
    for scale in (0.0, 1e-150, 1e150):
        gram = scale**2 * torch.eye(3, dtype=torch.float64, device=DEVICE)[None]
        for eps in (0.0, 1e-8, 1.0):
            found = root.coefficients(gram, decay, rhs, eps=eps, **options)
            expected = solver.coefficients(gram, rhs, eps=eps, solver="cholesky", **options)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)
            assert found.isfinite().all()


def grams_of_noise(size, batch, filled):
    """Gram matrices of rows that share a direction, of very different lengths; only ``filled`` rows are there."""
    rows = torch.randn(batch, size, size + 9, dtype=torch.float64) + 3 * torch.randn(batch, 1, size + 9).double()
    rows[:, filled:] = 0
    rows = rows * torch.logspace(-4, 4, size, dtype=torch.float64)[:, None]
    return (rows @ rows.mT).to(DEVICE)


NOISE_SIZES = [(1, 2, 1), (5, 3, 5), (16, 1, 9), (33, 2, 30)] + ([] if INTERPRETED else [(200, 2, 180), (400, 1, 400)])


@pytest.mark.parametrize(("size", "batch", "filled"), NOISE_SIZES)
def test_noise_share(size, batch, filled):
    """Many sizes, rows that are not there, several panels, and the number that stands for rounding's victims."""
    gram = grams_of_noise(size, batch, filled)
    expected = shrinkage.noise_share(gram)
    assert ((expected > 0) & (expected <= 1)).all()
    for options in ({}, {"panel": 16, "block": 32}):
        torch.testing.assert_close(noise.noise_share(gram, **options), expected, rtol=1e-9, atol=1e-12)
    assert (noise.noise_share(torch.zeros_like(gram)) == 0).all()
    if filled > 1:
        gram[0, 0, 1] = gram[0, 1, 0] = 2 * (gram[0, 0, 0] * gram[0, 1, 1]).sqrt()  # no Gram matrix at all
        assert shrinkage.noise_share(gram)[0] == noise.noise_share(gram)[0] == 0
        torch.testing.assert_close(noise.noise_share(gram)[1:], expected[1:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("share", "shift"), [("auto", 0.0), (0.3, 0.0), (1.0, 0.0), (0.0, 1e-2), ("auto", 1e-2)])
@pytest.mark.parametrize(("eps", "borders"), [(0.0, None), pytest.param(1e-3, [0, 4, 8], marks=SLOW)])
def test_coefficients_of_a_shrunk_and_shifted_moment(share, shift, eps, borders):
    """One launch for what `TorchBackend.coefficients` does step by step: shrunk, shifted, solved."""
    window = Window(7, 8, borders=borders, dtype=torch.float64, device=DEVICE)
    batch = window.count.numel()
    how = {"eps": eps, "jitter": 1e-6, "solver": "cholesky", "tolerance": 1e-2, "shrinkage": share, "shift": shift}
    for filled in (0, 4):
        window.gram.copy_(grams_of_noise(7, batch, filled).view(window.gram.shape))
        window.decay.uniform_(0.5, 1)
        rhs = torch.randn(window.decay.shape, dtype=torch.float64).to(DEVICE)
        expected = backends.TorchBackend().coefficients(window, rhs, **how)
        found = triton_backend.TritonBackend().coefficients(window, rhs, **how)
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0.0)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes minutes")
@pytest.mark.parametrize("size", [50, 200, 256, 400])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-2])
def test_coefficients_against_eigh(size, eps):
    for condition in (2, 5, 8):
        G = torch.randn(2, size + 5, size, dtype=torch.float64, device=DEVICE)
        G = G * torch.logspace(0, -condition, size, dtype=torch.float64, device=DEVICE)
        gram, decay = G.mT @ G, torch.ones(2, size, dtype=torch.float64, device=DEVICE)
        rhs = torch.zeros(2, size, dtype=torch.float64, device=DEVICE)
        rhs[:, size // 3] = 1
        found = root.coefficients(gram, decay, rhs, eps=eps, jitter=1e-6, tolerance=1e-8)
        exact = solver.coefficients(gram.cpu(), rhs.cpu(), eps=eps, jitter=1e-6, solver="eigh").to(DEVICE)
        step, expected = (G @ c[..., None] for c in (found, exact))
        assert (step - expected).norm() <= 1e-6 * expected.norm()


# ---- the window, and whole steps -----------------------------------------------------------------------------------


def use_kernels(monkeypatch, yes):
    backend = triton_backend.TritonBackend() if yes else backends.TorchBackend()
    monkeypatch.setattr(backends, "choose", lambda _: backend)


@DTYPES
@pytest.mark.parametrize("borders", [None, [0, 64, 64, 100, 192]])
def test_push(dtype, borders):
    """The kernels leave the same window as plain torch, bit for bit, refusals and zero rows included."""
    plain_backend, kernels = backends.TorchBackend(), triton_backend.TritonBackend()
    plain_one, fused = (
        Window(5, 192, borders=borders, dtype=dtype, device=DEVICE, backend=backend)
        for backend in (plain_backend, kernels)
    )
    carried = [torch.zeros(192, dtype=torch.float64, device=DEVICE) for _ in range(2)]
    batch = () if borders is None else (len(borders) - 1,)
    for step in range(12):
        row = torch.randn(192, dtype=torch.promote_types(dtype, torch.float32)).to(DEVICE) * (step not in (0, 4))
        row = row.to(dtype).to(row.dtype) if INTERPRETED else row
        accept = torch.rand(batch, device=DEVICE) < 0.7 if step % 2 else torch.tensor(step != 6, device=DEVICE)
        options = {"betas": (0.5 + 0.01 * step, 0.99 - 0.01 * step), "accept": accept}
        gram_row = plain_one.measure(row)
        source = row.double() + 1
        results = []
        for ring, target in ((plain_one, carried[0]), (fused, carried[1])):
            results.append(ring.push(row, gram_row, carry=(target, source), **options))
        assert torch.equal(*results)
    for key in ("rows", "gram", "decay", "momentum", "position", "count"):
        assert torch.equal(getattr(plain_one, key), getattr(fused, key)), key
    assert torch.equal(*carried)
    assert plain_one.count.max() == 5


CODED = pytest.mark.parametrize("name", [name for name, stored in FORMATS.items() if stored.coded])
BLOCKS = pytest.mark.parametrize(("size", "borders"), [(1, [0, 64]), (9, [0, 64, 64, 704, 1344]), (5, [0, 64, 9024])])


GRAM_VARIANTS = [
    {"block_rows": 8, "block": 1024, "warps": 2, "stages": 3},
    {"block_rows": 2, "block": 4096, "warps": 8},
]
EXPAND_VARIANTS = [{"block": 1024, "warps": 2, "unroll": 4}, {"block": 4096, "warps": 8, "unroll": 16}]


def make_coded(name, size, columns):
    rows = FORMATS[name].allocate(size, columns, DEVICE)
    for slot in range(size):
        rows.write(slot, (torch.randn(columns) * torch.randn(columns).exp() * torch.randn(()).exp()).to(DEVICE))
    return rows


@CODED
@BLOCKS
def test_passes_over_integers(name, size, borders):
    """Both passes, and the integers of a row: bit by bit those of `BlockFormat`."""
    rows, row = make_coded(name, size, borders[-1]), torch.randn(borders[-1]).exp().to(DEVICE)
    spans = Spans(borders, size, DEVICE)
    for found, expected in zip(coded.encode(row, rows.format), rows.format.encode(row), strict=True):
        assert torch.equal(found, expected)
    found, v, wide = coded.gram_row(rows, row, spans), rows.stored(row).double(), rows.double()
    c = torch.randn(len(borders) - 1, size, dtype=torch.float64, device=DEVICE)
    out = coded.expand(rows, c, spans, torch.full((borders[-1] + 3,), torch.nan, device=DEVICE))
    assert out[borders[-1] :].isnan().all()
    for sums, mine, part in zip(found, c, slices(borders), strict=True):
        assert ((sums[:-1] - wide[:, part] @ v[part]).abs() <= 1e-14 * (wide[:, part].abs() @ v[part].abs())).all()
        assert (sums[-1] - v[part] @ v[part]).abs() <= 1e-14 * (v[part] @ v[part])
        bound = 3e-7 * (wide[:, part].abs().T @ mine.abs())
        assert ((out[part].double() - wide[:, part].T @ mine).abs() <= bound).all()
    for bad in (torch.nan, torch.inf, -torch.inf):
        row[5] = bad
        for encode in (lambda row: coded.encode(row, rows.format), rows.format.encode):
            assert encode(row)[1].isfinite().tolist() == [False] + [True] * (len(row) // BLOCK - 1)
        square = coded.gram_row(rows, row, spans)[:, -1]
        assert square.isfinite().tolist() == [False] + [True] * (len(borders) - 2)


@CODED
def test_variants_of_passes_over_integers(name):
    """Tiles, warps and loads ahead change the speed, and hardly a sum; columns of zeros stay exactly zero."""
    rows, row = make_coded(name, 11, 9024), torch.randn(9024).to(DEVICE)
    zeros = torch.arange(9024, device=DEVICE) % 5 == 1
    for slot in range(11):
        rows.write(slot, rows.numbers()[slot].masked_fill(zeros, 0.0))
    spans, c = Spans([0, 9024], 11, DEVICE), torch.randn(1, 11, dtype=torch.float64, device=DEVICE)
    exact, wide = torch.cat([rows.double(), rows.stored(row).double()[None]]) @ rows.stored(row).double(), rows.double()
    for options in ({}, *GRAM_VARIANTS):
        found = coded.gram_row(rows, row, spans, **options)[0]
        assert ((found - exact).abs() <= 1e-14 * (wide.abs().sum(0) @ row.abs().double() + exact[-1])).all(), options
    for options in ({}, *EXPAND_VARIANTS):
        out = coded.expand(rows, c, spans, torch.zeros(9024, dtype=torch.float64, device=DEVICE), **options)
        assert (out[zeros] == 0).all(), options
        # The smallest integer of a block has 30 bits in its product.
        assert ((out - wide.T @ c[0]).abs() <= 1e-9 * (wide.abs().T @ c[0].abs())).all(), options
    for share in (0.0, 0.7):  # a share of zero of what is not finite is nothing
        before = torch.full((9024,), 3.0 if share else torch.nan, dtype=torch.float64, device=DEVICE)
        kept = torch.full((1,), share, dtype=torch.float64, device=DEVICE)
        found = coded.expand(rows, c, spans, before, kept=kept)
        assert ((found - out - 3 * share).abs() <= 1e-15 * (3 + out.abs())).all()


@CODED
@pytest.mark.parametrize("replace", [False, True], ids=["parameters", "gradients"])
@pytest.mark.parametrize(
    ("dtype", "offset", "many", "tensor_lr"),
    [(torch.float32, 0, False, False), (torch.float32, 1, True, True), (torch.float16, 0, True, False)],
    ids=str,
)
def test_a_step_of_integers_is_applied_where_it_is_made(name, replace, dtype, offset, many, tensor_lr):
    """p ← p - lr·(weight_decay·p + Wᵀ c + κ v) or g ← Wᵀ c + κ v, and nothing at all if the step is not taken."""
    numels = [5, 0, 64, 165, 4100]
    borders = [0, *itertools.accumulate(-(-n // BLOCK) * BLOCK for n in numels)]
    rows, spans, v = make_coded(name, 7, borders[-1]), Spans(borders, 7, DEVICE), torch.randn(borders[-1]).to(DEVICE)
    matrix_of = torch.arange(len(numels), dtype=torch.int32, device=DEVICE) if many else None
    c, kept = (torch.randn(len(numels) if many else 1, *n, dtype=torch.float64, device=DEVICE) for n in ((7,), ()))
    lr = torch.tensor([0.1], device=DEVICE) if tensor_lr else 0.1
    options = {"matrix_of": matrix_of, "lr": lr, "weight_decay": 0.5, "replace": replace}
    for taken, shares in ((True, kept), (True, 0 * kept), (False, kept)):
        held = [torch.randn(n + offset).to(DEVICE, dtype)[offset:] for n in numels]
        before, table = [p.clone() for p in held], tensors.Addresses(numels, torch.device(DEVICE))
        assert table.hold(held)
        row = v if taken and bool(shares.any()) else torch.full_like(v, torch.nan)
        taking = torch.tensor(taken, device=DEVICE)
        for chosen in ((0, 3), (3, 5)):
            tensors.update(rows, c, table, spans, chosen, taken=taking, kept=(shares, row), **options)
        for i, (p, old, part) in enumerate(zip(held, before, slices(borders), strict=True)):
            if not taken:
                assert torch.equal(p, old)
                continue
            own = slice(part.start, part.start + numels[i])
            u = c[i * many] @ rows[:, part].double()[:, : numels[i]] + shares[i * many] * v[own].double()
            expected = u if replace else old.double() - 0.1 * (0.5 * old.double() + u)
            digits = 2e-3 if dtype == torch.float16 else 1e-6
            torch.testing.assert_close(p.double(), expected, rtol=digits, atol=digits)


@CODED
def test_bench_of_passes_over_integers(name, monkeypatch):
    """What `ggt bench --what kernels` reports of rows of integers; each variant is called once."""
    from ggt_lab.bench import kernel_variants

    monkeypatch.setattr(kernel_variants, "_ms", lambda call, device: (call(), 2.0)[1])
    found = kernel_variants._integer_kernels(torch.device(DEVICE), 1e9, FORMATS[name], d=640, r=5, tiles=1)
    assert found["floor_of_one_pass_ms"] == pytest.approx(5 * 640 * FORMATS[name].element_bytes / 1e9 * 1e3)
    assert max(found["errors"].values()) < 1e-6
    assert found["best W v"]["ms"] == found["best WT c"]["ms"] == found["best WT c and update"]["ms"] == 2.0
    assert found["the row"] == {"encode": 2.0, "write": 2.0}


@CODED
@pytest.mark.parametrize("borders", [None, [0, 64, 64, 192]])
def test_push_of_integers(name, borders):
    plain_one, fused = (
        Window(5, 192, borders=borders, dtype=name, device=DEVICE, backend=backend)
        for backend in (backends.plain.TorchBackend(), triton_backend.TritonBackend())
    )
    carried = [torch.zeros(192, device=DEVICE) for _ in range(2)]
    for step in range(9):
        row = torch.randn(192).to(DEVICE)
        accept = torch.tensor(step != 6, device=DEVICE)
        results = []
        for ring, target in ((plain_one, carried[0]), (fused, carried[1])):
            options = {"betas": (0.5, 0.9), "accept": accept, "carry": (target, row + 1)}
            results.append(ring.push(row, plain_one.measure(row), **options))
        assert torch.equal(*results)
        for key in ("codes", "scales"):
            assert torch.equal(getattr(plain_one.rows, key), getattr(fused.rows, key)), key
    assert torch.equal(*carried)
    assert torch.equal(plain_one.gram, fused.gram)


CASES = [
    {},
    {"window_dtype": "int8"},
    {"window_dtype": "int4", "scope": "parameter", "history": "gradient", "betas": (0.5, 0.9), "weight_decay": 0.1},
    {"window_dtype": torch.bfloat16, "nesterov": True, "eps": 1e-2},
    {"history": "gradient", "betas": (0.5, 0.9), "sgd_scale": 0.1},
    pytest.param({"scope": "parameter", "weight_decay": 0.1}, marks=SLOW),
    {"scope": "parameter", "history": "gradient", "nesterov": True, "betas": (0.5, 0.99)},
    {"history": "adadelta", "betas": (0.0, 0.9), "eps": 1e-2},
]
if not INTERPRETED:  # the interpreter is slow, and what these add to the others is plain torch
    CASES += [
        {"history": "rmsprop_momentum", "betas": (0.5, 0.9)},
        {"history": "nadam", "betas": (0.5, 0.9)},
        {"scope": "parameter", "history": "adadelta", "betas": (0.0, 0.9), "eps": 1e-2},
    ]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_steps(monkeypatch, options):
    """Steps by kernels against steps by plain torch: no gradient now and then, a NaN, a late parameter."""
    if INTERPRETED:  # fewer nodes, the same in both
        monkeypatch.setattr(step_module, "_DEFAULT_TOLERANCE", 1e-2)
    runs = []
    for yes in (False, True):
        use_kernels(monkeypatch, yes)
        generator = torch.Generator().manual_seed(1)
        shapes = [(), (7,), (33, 5), (3, 0), (70,)]
        parameters = [torch.nn.Parameter(torch.ones(shape, device=DEVICE)) for shape in shapes]
        optimizer = GGT(
            parameters, lr=1e-1, window=4, jitter=0.1 if INTERPRETED else 1e-6, solver="cholesky", **options
        )
        for step in range(7 if INTERPRETED else 30):
            for index, p in enumerate(parameters):
                p.grad = torch.randn(p.shape, generator=generator).to(DEVICE)
                if (index == step % 4 and step < 3) or (index == 4 and step < 2):
                    p.grad = None
                elif step == 4:
                    p.grad.fill_(torch.nan)
            optimizer.step()
        assert optimizer.skipped == 1
        runs.append(torch.cat([p.detach().flatten() for p in parameters]))
        assert runs[-1].isfinite().all()
    truncates = INTERPRETED and options.get("window_dtype") == torch.bfloat16
    tolerance = 2e-2 if truncates else 2e-6
    torch.testing.assert_close(*runs, rtol=tolerance, atol=tolerance)
    assert (runs[0] != 1).all()


class FakeGraph:
    """Makes the step again where a real graph would start the same launches, and looks whether they would do."""

    made = 0

    def __init__(self, graph, groups, make_step, blocks):
        type(self).made += 1
        self._again = graph, groups, make_step
        self._blocks = blocks
        self._tables = self._read_tables()
        self._options = [{k: v for k, v in group.items() if k not in ("lr", "params")} for group in groups]
        self._values = self._read_values()

    def _read_values(self):
        """Where torch writes without a table: these addresses are part of a graph."""
        return [p.data_ptr() for b in self._blocks if b.finishes for p in b.parameters]

    def _read_tables(self):
        return [table.table for b in self._blocks for table in b.addresses.values()]

    def replay(self):
        graph, groups, make_step = self._again
        assert all(now is then for now, then in zip(self._read_tables(), self._tables, strict=True))
        for b in self._blocks:
            assert b.addresses["gradients"].table.tolist() == [p.grad.data_ptr() for _, p in b.allotted]
            if "values" in b.addresses:  # whitening writes into gradients
                assert b.addresses["values"].table.tolist() == [p.data_ptr() for _, p in b.allotted]
        assert self._read_values() == self._values
        for group, options in zip(groups, self._options, strict=True):
            assert {key: group[key] for key in options} == options
        with graph._rates_in(groups):
            make_step()


def graphed(monkeypatch, optimizer):
    """An optimizer that makes fake graphs."""
    monkeypatch.setattr(
        optimizer._graph,
        "_captured",
        lambda groups, _, make_step: FakeGraph(optimizer._graph, groups, make_step, optimizer.attached_blocks()),
    )
    return optimizer


@pytest.fixture
def _a_gpu(monkeypatch):
    """What looks like one; few nodes, the same with a graph and without."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(step_module, "_DEFAULT_TOLERANCE", 1e-2)
    monkeypatch.setattr(FakeGraph, "made", 0)
    use_kernels(monkeypatch, True)


@pytest.mark.usefixtures("_a_gpu")
@pytest.mark.parametrize(
    ("scope", "finish"),
    [
        ("group", "none"),
        pytest.param("parameter", "none", marks=SLOW),
        ("group", "adam"),
    ],
)
def test_a_step_graph_follows_rates_and_addresses_and_is_made_anew_for_all_else(monkeypatch, scope, finish):
    """Torch applies a finished step, and knows no table: its graph is made anew where a parameter has moved."""
    runs, kept = [], []
    for cuda_graph in (False, True):
        generator = torch.Generator().manual_seed(1)
        parameters = [torch.nn.Parameter(torch.ones(shape, device=DEVICE)) for shape in ((), (33, 5), (70,))]
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.2}]
        options = {"window": 4, "jitter": 0.1, "solver": "cholesky", "nesterov": True, "finish": finish}
        optimizer = graphed(monkeypatch, GGT(groups, lr=0.1, scope=scope, cuda_graph=cuda_graph, **options))
        for step in range(13):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator).to(DEVICE)
                kept.append(p.grad)  # the next is elsewhere
            if step == 5:
                optimizer.param_groups[0]["weight_decay"] = 0.1
            if step == 9:
                kept.append(parameters[1].data)
                parameters[1].data = parameters[1].data.clone()
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            optimizer.step()
            assert isinstance(optimizer.param_groups[0]["lr"], float)
        runs.append(torch.cat([p.detach().flatten() for p in parameters]))
    torch.testing.assert_close(*runs, rtol=1e-6, atol=1e-6)
    assert FakeGraph.made == (2 if finish == "none" else 3)


@pytest.mark.usefixtures("_a_gpu")
def test_a_graph_whitens_gradients_wherever_they_are(monkeypatch):
    runs, kept = [], []
    for cuda_graph in (False, True):
        generator = torch.Generator().manual_seed(1)
        parameters = [torch.nn.Parameter(torch.ones(shape, device=DEVICE)) for shape in ((), (33, 5), (70,))]
        options = {"window": 4, "jitter": 0.1, "solver": "cholesky", "cuda_graph": cuda_graph}
        optimizer = whiten(torch.optim.SGD(parameters, lr=0.1, momentum=0.9), **options)
        graphed(monkeypatch, optimizer.whitening)
        for step in range(7):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator).to(DEVICE)
                kept.append(p.grad)
            if step == 5:
                parameters[0].grad.fill_(torch.nan)
                before = [p.grad.clone() for p in parameters]
            version = parameters[1].grad._version
            optimizer.whitening()
            assert parameters[1].grad._version > version  # autograd and `whiten` see that it was written
            if step == 5:
                assert all(torch.equal(p.grad, g) for p, g in zip(parameters[1:], before[1:], strict=True))
                parameters[0].grad.zero_()
            runs.append(torch.cat([p.grad.flatten() for p in parameters]))
    for plain, with_graph in zip(runs[:7], runs[7:], strict=True):
        torch.testing.assert_close(plain, with_graph, rtol=1e-6, atol=1e-6)
    assert FakeGraph.made == 1


@pytest.mark.parametrize(
    ("scope", "dtype", "rows"),
    [
        ("model", torch.float32, "float32"),
        pytest.param("parameter", torch.bfloat16, "float32", marks=SLOW),
        *((scope, torch.float32, name) for name in ("int8", "int4") for scope in ("model", "parameter")),
    ],
)
def test_whitened_gradients(monkeypatch, scope, dtype, rows):
    """Gradients that are written by the pass over the window are those of plain torch, and stay where none is taken."""
    if INTERPRETED:
        monkeypatch.setattr(step_module, "_DEFAULT_TOLERANCE", 1e-2)
    runs = []
    for yes in (False, True):
        use_kernels(monkeypatch, yes)
        if yes and dtype == torch.float32:  # a step that is written first would call one of these
            monkeypatch.setattr(passes, "expand", None)
            monkeypatch.setattr(coded, "expand", None)
        generator = torch.Generator().manual_seed(1)
        shapes = [(), (7,), (33, 5), (3, 0), (70,)]
        parameters = [torch.nn.Parameter(torch.ones(shape, dtype=dtype, device=DEVICE)) for shape in shapes]
        options = {"window": 4, "jitter": 0.1, "solver": "cholesky", "scope": scope, "window_dtype": rows}
        whitening, found = Whitening(parameters, **options), []
        for step in range(6):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator).to(DEVICE, dtype)
            if step == 4:
                parameters[2].grad[3] = torch.nan
            before = torch.cat([p.grad.flatten() for p in parameters])
            whitening()
            found.append(torch.cat([p.grad.flatten() for p in parameters]))
            stays = torch.equal(before.nan_to_num(), found[-1].nan_to_num())
            assert step == 0 or stays == (step == 4)  # one row alone keeps its direction
        assert whitening.skipped == 1
        runs.append(torch.cat(found))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(*runs, rtol=tolerance, atol=tolerance, equal_nan=True)
