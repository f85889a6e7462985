"""Every kernel against plain float64 sums: random and poisoned data, odd sizes, unaligned spans, many matrices.

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
]
gpu = pytest.importorskip("torch_ggt.kernels.gpu")

from torch_ggt.kernels.spans import Spans  # noqa: E402

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
    ],
)


def window(size, borders, stride, dtype, scale=1.0):
    """Rows of all magnitudes; what is outside of the columns is NaN."""
    store = torch.full((size, stride), torch.nan, dtype=dtype, device=DEVICE)
    rows = store[:, : borders[-1]]
    rows.copy_(scale * torch.randn(rows.shape, dtype=torch.float64) * torch.randn(size, 1, dtype=torch.float64).exp())
    return rows


def slices(borders):
    return [slice(a, b) for a, b in itertools.pairwise(borders)]


@DTYPES
@SHAPES
@pytest.mark.parametrize("bits", [True, False])
@pytest.mark.parametrize(
    "scale",
    [1e-25, 1.0, 1e36],  # the interpreter's bfloat16 has no subnormals
)
def test_gram_row(dtype, size, borders, stride, bits, scale):
    rows = window(size, borders, stride, dtype, scale)
    row = (scale * torch.randn(borders[-1], dtype=torch.float64)).to(DEVICE, dtype)
    found = gpu.gram_row(rows, row, Spans(borders, size, DEVICE), bits=bits)
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
    values = values[values.isfinite()].to(DEVICE)
    rows = values[None].contiguous()
    for column in (0, len(values) - 1, len(values) - 2, len(values) - 3, *range(1, 40)):
        one = torch.zeros(len(values), dtype=dtype, device=DEVICE)
        one[column] = 1
        spans = Spans([column, column + 1], 1, DEVICE)
        assert gpu.gram_row(rows, one, spans)[0, 0] == values[column].double()


@DTYPES
def test_the_square_is_finite_exactly_if_the_row_is(dtype):
    rows, spans = window(3, [0, 500], 500, dtype), Spans([0, 200, 500], 3, DEVICE)
    for bad in (torch.nan, torch.inf, -torch.inf):
        row = torch.randn(500).to(DEVICE, dtype)
        row[300] = bad
        assert gpu.gram_row(rows, row, spans)[:, -1].isfinite().tolist() == [True, False]


@DTYPES
@SHAPES
@pytest.mark.parametrize("arithmetic", ["float64", "pair"])
@pytest.mark.parametrize("scale", [1e-33, 1e30])
def test_expand(dtype, size, borders, stride, arithmetic, scale):
    rows = window(size, borders, stride, dtype, scale)
    c = torch.randn(len(borders) - 1, size, dtype=torch.float64, device=DEVICE) / scale
    out = torch.full((borders[-1] + 3,), torch.nan, dtype=torch.promote_types(dtype, torch.float32), device=DEVICE)
    gpu.expand(rows, c, Spans(borders, size, DEVICE), out, arithmetic=arithmetic)
    assert out[borders[-1] :].isnan().all()  # beyond the last column nothing is written
    for mine, part in zip(c, slices(borders), strict=True):
        wide = rows[:, part].double()
        bound = (1e-15 if dtype == torch.float64 else 3e-7) * (wide.abs().T @ mine.abs())
        assert ((out[part].double() - wide.T @ mine).abs() <= bound).all()


@pytest.mark.parametrize("arithmetic", ["float64", "pair"])
def test_expand_of_nearly_collinear_rows_keeps_its_digits(arithmetic):
    """Huge coefficients of opposite sign: rounding them to float32 alone would leave an error of 1e-3."""
    base = torch.rand(5000) + 0.5
    rows = (base + 1e-4 * torch.randn(2, 5000)).to(DEVICE)
    c = torch.tensor([[1e4 + 1 / 3, -1e4 + 1 / 7]], dtype=torch.float64, device=DEVICE)
    out = torch.empty(5000, device=DEVICE)
    gpu.expand(rows, c, Spans([0, 5000], 2, DEVICE), out, arithmetic=arithmetic)
    exact = rows.double().T @ c[0]
    assert (out.double() - exact).mean().abs() <= 1e-5 * exact.norm() / 5000**0.5
    plain = rows.T @ c[0].float()
    assert (plain.double() - exact).mean().abs() > 5e-5 * exact.norm() / 5000**0.5


def test_expand_of_zeros_is_zero():
    rows, out = window(5, [0, 100], 100, torch.float32), torch.full((100,), torch.nan, device=DEVICE)
    gpu.expand(rows, torch.zeros(1, 5, dtype=torch.float64, device=DEVICE), Spans([0, 100], 5, DEVICE), out)
    assert not out.any()


@pytest.mark.skipif(DEVICE != "cuda", reason="more than 2³¹ elements are for a GPU")
def test_more_elements_than_32_bits_count():
    size, columns = 18, 2**27
    rows = torch.zeros(size, columns, dtype=torch.bfloat16, device=DEVICE)
    rows[-1, -64:] = 2
    row = torch.ones(columns, dtype=torch.bfloat16, device=DEVICE)
    spans = Spans([0, columns], size, DEVICE)
    assert gpu.gram_row(rows, row, spans)[0].tolist() == [0.0] * 17 + [128.0, float(columns)]
    out = torch.empty(columns, device=DEVICE)
    gpu.expand(rows, torch.ones(1, size, dtype=torch.float64, device=DEVICE), spans, out)
    assert out.sum() == 128
