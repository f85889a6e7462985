"""The compiled passes of torch-ggt-cpu: against plain torch, on every shape; and what happens without them."""

import ctypes
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_ggt
from torch_ggt import GGT, backends
from torch_ggt.backends import native, plain
from torch_ggt.formats import FORMATS

ROOT = Path(__file__).resolve().parents[1]
SHORT_FORMATS = ("float32", "bfloat16", "int8", "int4")


@pytest.fixture
def asked_for(monkeypatch):
    """The environment asks for the compiled passes, and nothing remembers that it did not."""
    monkeypatch.setenv("TORCH_GGT_NATIVE", "1")
    for function in (native.library, backends.choose):
        function.cache_clear()
    yield
    for function in (native.library, backends.choose):
        function.cache_clear()


@pytest.fixture
def compiled(asked_for):
    if native.library() is None:
        pytest.skip("torch-ggt-cpu is not installed: pip install ./native")
    return native.NativeBackend(native.library())


def rows_of(name, size, columns):
    """Stored rows, and the numbers that they stand for."""
    numbers = torch.randn(size, columns) * 10.0 ** torch.randint(-3, 4, (size, 1))
    if not FORMATS[name].coded:
        rows = numbers.to(FORMATS[name].dtype)
        return rows, rows.double()
    rows = FORMATS[name].allocate(size, columns, "cpu")
    for slot, row in enumerate(numbers):
        rows.write(slot, row)
    return rows, rows.double()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(SHORT_FORMATS),
    size=st.integers(1, 9),
    columns=st.sampled_from([1, 7, 63, 64, 65, 640, 33_000, 66_560]),
    threads=st.sampled_from([1, 2, 3]),
    part=st.booleans(),
)
def test_both_passes_are_those_of_plain_torch(compiled, name, size, columns, threads, part):
    """Rows that are a part of a wider window, sizes that no vector divides, and more threads than cores included."""
    columns = -(-columns // 64) * 64 if FORMATS[name].coded else columns
    rows, wide = rows_of(name, size, columns + 128 * part)
    if part:
        rows, wide = rows[:, 64 : 64 + columns], wide[:, 64 : 64 + columns]
    row, c = torch.randn(columns), torch.randn(size, dtype=torch.float64)
    torch.set_num_threads(threads)
    try:
        sums = compiled.measure(rows, row)
        out = compiled.expand(rows, c, wide @ wide.T, torch.full((columns,), torch.nan))
        kept = torch.tensor(-0.7, dtype=torch.float64)
        added = compiled.expand(rows, c, wide @ wide.T, row.clone(), kept=kept) if FORMATS[name].coded else out
    finally:
        torch.set_num_threads(1)
    stored = (rows.stored(row) if FORMATS[name].coded else row.to(rows.dtype)).double()
    scale = wide.norm(dim=1) * stored.norm() + 1e-300
    assert ((sums[:-1] - wide @ stored).abs() <= 1e-14 * scale).all()
    torch.testing.assert_close(sums[-1], stored @ stored, rtol=1e-13, atol=0)
    torch.testing.assert_close(sums, plain.gram_row(rows, row), rtol=1e-12, atol=1e-13 * float(scale.max()))
    for found, before in ((out, 0 * row), (added, -0.7 * row.double() * FORMATS[name].coded)):
        expected = wide.t() @ c + before
        largest = float((wide.abs().t() @ c.abs() + abs(before)).max())
        assert ((found.double() - expected).abs() <= 1.2e-7 * (expected.abs() + before.abs()) + 1e-13 * largest).all()


def test_the_default_device_is_not_asked(compiled):
    rows, row = torch.randn(5, 1000), torch.randn(1000)
    torch.set_default_device("meta")
    try:
        sums = compiled.measure(rows, row)
    finally:
        torch.set_default_device(None)
    assert torch.equal(sums, compiled.measure(rows, row))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_show(compiled, bad):
    rows, row = torch.randn(5, 1000), torch.randn(1000)
    row[777] = bad
    assert not compiled.measure(rows, row)[-1].isfinite()
    assert not compiled.measure(rows.bfloat16(), row)[-1].isfinite()


def test_a_sum_depends_on_the_number_of_threads_and_on_nothing_else(compiled):
    rows, row = torch.randn(20, 40_000), torch.randn(40_000)
    torch.set_num_threads(2)
    try:
        sums = [compiled.measure(rows, row) for _ in range(20)]
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(sums[0], other) for other in sums)


def test_float64_rows_and_columns_that_are_not_neighbours_are_left_to_torch(compiled):
    row, c = torch.randn(6), torch.randn(4, dtype=torch.float64)
    for rows in (torch.randn(4, 6, dtype=torch.float64), torch.randn(6, 4).t()):
        gram = rows.double() @ rows.double().t()
        assert torch.equal(compiled.measure(rows, row.to(rows.dtype)), plain.gram_row(rows, row.to(rows.dtype)))
        out = torch.empty(6, dtype=rows.dtype)
        assert torch.equal(compiled.expand(rows, c, gram, out).clone(), plain.expand(rows, c, gram, out))


@pytest.mark.parametrize("scope", ["model", "parameter"])
@pytest.mark.parametrize("name", SHORT_FORMATS)
def test_a_run_makes_the_steps_of_plain_torch(compiled, monkeypatch, name, scope):
    """Ten steps of all the rest of the optimizer around them; float32 decides how far apart they may be."""

    def run():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3))
        optimizer = GGT(model.parameters(), lr=1e-2, window=6, window_dtype=name, scope=scope, finish="none")
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(40, 20)).square().sum().backward()
            optimizer.step()
        (first, *_) = optimizer.attached_blocks()
        return first.backend, [p.detach().clone() for p in model.parameters()]

    backend, found = run()
    assert isinstance(backend, native.NativeBackend)
    monkeypatch.setenv("TORCH_GGT_NATIVE", "0")
    native.library.cache_clear()
    backends.choose.cache_clear()
    backend, expected = run()
    assert type(backend) is plain.HostBackend
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("fault", ["absent", "another interface", "not a library"])
def test_without_the_library_plain_torch_serves(asked_for, monkeypatch, tmp_path, caplog, fault):
    broken = tmp_path / "passes.so"
    broken.write_text("not a library")
    package = types.SimpleNamespace(INTERFACE=native._INTERFACE, LIBRARY=broken, __version__="9")
    if fault == "another interface":
        package.INTERFACE = native._INTERFACE + 1
    monkeypatch.setitem(sys.modules, "torch_ggt_cpu", None if fault == "absent" else package)
    with caplog.at_level("INFO", logger="torch_ggt"):
        assert type(backends.choose(torch.device("cpu"))) is plain.HostBackend
    assert "using plain torch" in caplog.text


def test_the_library_needs_no_openmp_of_its_own(compiled):
    """Where torch has brought no OpenMP, one thread does all: the library names nothing that must be there."""
    script = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); "
        "rows = (ctypes.c_float * 6)(1, 2, 3, 4, 5, 6); sums = (ctypes.c_double * 9)(); long = ctypes.c_long; "
        "library.torch_ggt_measure(0, rows, None, long(3), long(0), long(2), long(3), 3, rows, sums); print(*sums[:3])"
    )
    library = sys.modules["torch_ggt_cpu"].LIBRARY
    done = subprocess.run([sys.executable, "-c", script, library], capture_output=True, text=True, check=True)
    assert [float(number) for number in done.stdout.split()] == [14.0, 32.0, 14.0]
    assert isinstance(compiled.passes, ctypes.CDLL)


def test_the_package_is_that_of_this_version():
    source = (ROOT / "native/src/torch_ggt_cpu/__init__.py").read_text()
    assert f'__version__ = "{torch_ggt.__version__}"' in source
    assert f"INTERFACE = {native._INTERFACE}\n" in source


@pytest.mark.soak
def test_the_tests_of_the_step_pass_with_the_compiled_passes(compiled):
    """But for one that compares float32 with float64 rows where the sums of both must be rounded alike."""
    files = ["test_equality.py", "test_step_length.py", "test_invariance.py", "test_row_formats.py", "test_window.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not with_little_jitter"]
    done = subprocess.run(
        [*command, *(f"tests/{file}" for file in files)], cwd=ROOT, env={**os.environ, "TORCH_GGT_NATIVE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
