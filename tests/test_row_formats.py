"""Rows of 8-bit and 4-bit integers: what is stored, the step that follows from it, and the state."""

import copy
import io
import math
import pickle

import pytest
import torch
from helpers import flat, words
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_ggt
from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import Window, backends, whiten
from torch_ggt import formats as formats_module
from torch_ggt.backends import host_rows
from torch_ggt.backends.host_rows import HostRows
from torch_ggt.backends.plain import HostBackend, TorchBackend
from torch_ggt.formats import BLOCK, FORMATS, format_of
from torch_ggt.memory import allocate_window, check_host_rows
from torch_ggt.reference import inverse_root

CODED = {name: stored for name, stored in FORMATS.items() if stored.coded}
formats = pytest.mark.parametrize("name", list(CODED))
POWER = {"int8": 2, "int4": 3}
SHAPES = [(), (7,), (33, 5), (3, 0), (2, 64), (70,)]


def read(entry, name, numel):
    """The rows of a parameter, read from its state by a loop over bytes: s·i·|i|, or s·i³ for 4 bits."""
    codes, scales = entry["window"].reshape(len(entry["window"]), -1).tolist(), entry["window_scale"].tolist()
    rows = []
    for row, own in zip(codes, scales, strict=True):
        integers = row
        if name == "int4":
            blocks = [row[left : left + BLOCK // 2] for left in range(0, len(row), BLOCK // 2)]
            integers = [
                i for block in blocks for half in ((b % 16 for b in block), (b // 16 for b in block)) for i in half
            ]
            integers = [i - 8 for i in integers]
        rows.append([own[place // BLOCK] * i * abs(i) ** (POWER[name] - 1) for place, i in enumerate(integers[:numel])])
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), numel)


def nearest(row, name):
    """How ``row`` (d,) should be stored: the scale in 10 bits, and the root rounded to an integer, in float64."""
    power = POWER[name]
    largest = {"int8": 127, "int4": 7}[name] ** power
    stored = []
    for block in torch.split(row.double(), BLOCK):
        fraction, exponent = math.frexp(float(block.abs().max()) / largest)
        scale = math.ldexp(round(fraction * 2**10), exponent - 10)
        integers = [math.copysign(round((abs(x) / scale) ** (1 / power)), x) if scale else 0 for x in block.tolist()]
        stored += [scale * i * abs(i) ** (power - 1) for i in integers]
    return torch.tensor(stored, dtype=torch.float64)


@formats
@settings(max_examples=40, deadline=None)
@given(exponent=st.floats(-30, 30), spread=st.floats(0, 5), seed=st.integers(0, 2**16))
def test_what_is_read_back_is_near_and_is_stored_in_the_same_bits(name, exponent, spread, seed):
    stored, generator = CODED[name], torch.Generator().manual_seed(seed)
    row = torch.randn(4 * BLOCK, generator=generator) * (spread * torch.randn(4 * BLOCK, generator=generator)).exp()
    row = row / row.abs().max() * 10.0**exponent
    codes, scales = stored.encode(row)
    numbers = stored.decode(codes, scales)
    top = row.view(-1, BLOCK).abs().amax(1, keepdim=True)
    error = (numbers - row).view(-1, BLOCK).abs()
    root = (row.view(-1, BLOCK).abs() / top) ** (1 / POWER[name])
    half = 0.5 / stored.largest
    step = ((root + half) ** POWER[name] - (root - half).clamp(min=0) ** POWER[name]) / top.sign()
    assert (error <= (step + 2e-3) * top).all()
    assert (numbers.double() - nearest(row, name)).norm() <= 1e-5 * row.double().norm()
    again = stored.encode(numbers)
    assert torch.equal(again[0], codes)
    assert torch.equal(again[1], scales)
    wide = stored.decode(codes, scales, torch.empty(len(row), dtype=torch.float64))
    assert torch.equal(wide, numbers.double())  # nothing was rounded in float32


@formats
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_not_finite_when_stored(name, bad):
    row = torch.randn(3 * BLOCK)
    row[BLOCK + 5] = bad
    assert CODED[name].decode(*CODED[name].encode(row)).view(3, BLOCK).square().sum(1).isfinite().tolist() == [1, 0, 1]


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0x7F800000])
def test_scales_that_are_not_finite_stay_so(bits):
    """0x7FFFFFFF is what arithmetic on a GPU returns for NaN; a CPU returns 0x7FC00000."""
    given = torch.tensor([bits, 0x3F800000], dtype=torch.int32).view(torch.float32)
    assert formats_module._scales(given).isfinite().tolist() == [False, True]


@formats
def test_no_integer_saturates(name):
    """The largest number of a block gets the largest integer, whatever it is; zeros and dust become zeros."""
    stored = CODED[name]
    for exponent in range(-120, 127):
        row = torch.zeros(2 * BLOCK)
        row[3] = 2.0**exponent * (1 + torch.rand(()))
        codes, scales = stored.encode(row)
        assert abs(float(stored.decode(codes, scales)[3]) / float(row[3]) - 1) <= 2e-3 or exponent < -110
        assert float(scales[1]) == 0
    assert not stored.decode(*stored.encode(torch.full((BLOCK,), 1e-38))).any()


@formats
@pytest.mark.parametrize("backend", [HostBackend, TorchBackend], ids=words)
@pytest.mark.parametrize("borders", [None, [0, 64, 64, 320]])
def test_ring_and_gram(name, backend, borders):
    """The Gram matrix is the Gram matrix of the rows as stored, and a row that is refused changes nothing."""
    window = Window(4, 320, borders=borders, dtype=name, backend=backend())
    for step in range(11):
        row = torch.randn(320) * 10.0 ** (step % 3)
        newest = window.push(row, window.measure(row), betas=(0.5, 0.9), accept=torch.tensor(step != 7))
        assert bool(newest.any()) == (step != 7)
    wide = window.rows.double()
    for own, part in zip(
        window.matrices(),
        [slice(None)] if borders is None else [slice(0, 64), slice(64, 64), slice(64, 320)],
        strict=True,
    ):
        torch.testing.assert_close(own.gram, wide[:, part] @ wide[:, part].T, rtol=1e-13, atol=1e-10)
        out = torch.empty(wide[:, part].shape[1])
        c = torch.randn(4, dtype=torch.float64)
        torch.testing.assert_close(own.expand(c, out).double(), (own.decay * c) @ wide[:, part], rtol=1e-5, atol=1e-4)


# ---- steps ---------------------------------------------------------------------------------------------------------


def gradients_of(parameters, generator, rank=3):
    """Correlated gradients of a low rank and a little noise, of different sizes."""
    for number, parameter in enumerate(parameters):
        size = 10.0 ** (number % 3 - 1)
        mixed = torch.randn(rank, generator=generator) @ torch.randn(
            rank, parameter.numel(), generator=torch.Generator().manual_seed(number)
        )
        noise = torch.randn(parameter.numel(), generator=generator)
        parameter.grad = (size * (mixed + 0.1 * noise)).reshape(parameter.shape).to(parameter.dtype)


@formats
@pytest.mark.parametrize(
    ("history", "betas", "scope", "solver"),
    [
        ("momentum", (0.9, 0.99), "model", "eigh"),
        ("momentum", (0.9, 1.0), "parameter", "cholesky"),
        ("gradient", (0.5, 0.9), "model", "cholesky"),
        ("newest", (0.0, 1.0), "parameter", "eigh"),
    ],
)
def test_a_hundred_steps_are_those_of_the_dense_matrix_of_the_stored_rows(name, history, betas, scope, solver):
    """u = [(GGᵀ + δI)^½ + εI]⁻¹ G a with the rows that the state holds, read by a loop of our own: to 1e-6.

    What was cut off from the newest row comes back, by the share of that row in the step.
    """
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    options = {"betas": betas, "eps": 1e-4, "jitter": 1e-3}  # the oracle computes with float32 rows in float64
    optimizer = GGT(
        parameters, lr=1.0, window=5, window_dtype=name, history=history, scope=scope, solver=solver,
        adjust_lr_fn="original", finish="none", shrinkage=0.0, weight_decay=0.0, **options,
    )  # fmt: skip
    ages, entered = [], [torch.zeros(p.numel()) for p in parameters]
    for step in range(100):
        with torch.no_grad():
            for parameter in parameters:
                parameter.zero_()
        gradients_of(parameters, generator)
        beta = betas[0] if history == "momentum" else 0.0
        entered = [p.grad.flatten() + beta * v for v, p in zip(entered, parameters, strict=True)]
        optimizer.step()
        ages = [0, *(age + 1 for age in ages)][:5]
        slots = [(step - age) % 5 for age in ages]
        if step % 7 and step != 99:  # the oracle is slow
            continue
        for matrix in [parameters] if scope == "model" else [[p] for p in parameters]:
            rows = torch.cat([read(optimizer.state[p], name, p.numel()) for p in matrix], 1)[slots]
            G = torch.zeros(rows.shape[1], 5, dtype=torch.float64)
            G[:, : len(ages)] = torch.stack([betas[1] ** age * row for age, row in zip(ages, rows, strict=True)], 1)
            v = (
                rows[0]
                if history != "gradient"
                else sum(betas[0] ** age * row for age, row in zip(ages, rows, strict=True))
            )
            if not rows.shape[1]:
                continue
            expected = inverse_root(G, v, eps=options["eps"], jitter=options["jitter"])
            whole = torch.cat([entered[i] for i, p in enumerate(parameters) if any(p is q for q in matrix)]).double()
            expected += (expected @ rows[0]) / (rows[0] @ rows[0]) * (whole - rows[0])
            found = -flat(matrix).double()
            assert (found - expected).norm() <= 1e-6 * max(1.0, expected.norm()), (step, scope)


@formats
@pytest.mark.parametrize("history", ["momentum", "gradient"])
def test_the_rows_are_the_nearest_that_the_format_has(name, history):
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.zeros(3, 50))
    optimizer = GGT([parameter], window=3, window_dtype=name, history=history, betas=(0.5, 1.0), finish="none")
    expected, momentum = [], torch.zeros(150)
    for _ in range(5):
        gradients_of([parameter], generator)
        momentum = 0.5 * momentum + parameter.grad.flatten()
        row = momentum if history == "momentum" else parameter.grad.flatten()
        expected = [*expected, nearest(torch.nn.functional.pad(row, (0, 42)), name)[:150]][-3:]
        optimizer.step()
    found = read(optimizer.state[parameter], name, 150)[[2, 0, 1]]
    error = (found - torch.stack(expected)).norm() / torch.stack(expected).norm()
    assert error <= 1e-6


MEMBERS = {
    "nadam": torch_ggt.NAdam,
    "rmsprop": lambda p, **o: torch_ggt.RMSprop(p, momentum=0.5, **o),
    "adadelta": torch_ggt.Adadelta,
    "adagrad": torch_ggt.AdaGrad,
    "whiten": lambda p, **o: whiten(torch.optim.AdamW(p), **o),
    "adam": lambda p, **o: GGT(p, history="gradient", finish="adam", shrinkage="auto", **o),
    "polar": lambda p, **o: GGT(p, history="momentum", finish="polar", **o),
}


def train(model, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 20, generator=generator)
        optimizer.zero_grad()
        (model(x) - x[:, :3].sin()).square().mean().backward()
        optimizer.step()
    return (model(x) - x[:, :3].sin()).square().mean().item()


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 16, bias=False), torch.nn.Tanh(), torch.nn.Linear(16, 3, bias=False))


@formats
@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_trains_and_resumes_bit_by_bit(name, member):
    losses = {}
    for stored in (name, "float32"):
        model = make_model()
        optimizer = MEMBERS[member](model.parameters(), window=4, window_dtype=stored)
        losses[stored] = train(model, optimizer, 25)
        if stored == name:
            assert_resumes(member, model, optimizer, window_dtype=stored, window=4)
    assert losses[name] <= 1.3 * losses["float32"]


def assert_resumes(member, model, optimizer, **options):
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    twin = copy.deepcopy(model)
    resumed = MEMBERS[member](twin.parameters(), **options)
    resumed.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    twins = [(twin, resumed)]
    if member != "whiten":
        twins += [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    train(model, optimizer, 6, seed=1)
    for other, again in twins:
        train(other, again, 6, seed=1)
        assert torch.equal(flat(other.parameters()), flat(model.parameters()))


# ---- rows in host memory -------------------------------------------------------------------------------------------

PLAIN_AND_CODED = ["float32", "bfloat16", "float64", "int8", "int4"]


@pytest.fixture(params=[False, True], ids=["views", "staged"])
def small_pieces(request, monkeypatch):
    """Pieces of few columns; they are views, as on a CPU, or go through the two staging buffers, as on a GPU."""
    made = HostRows.__init__

    def make(self, store, stored, device, stage=None):
        made(self, store, stored, device, request.param if stage is None else stage)

    monkeypatch.setattr(host_rows, "STAGE", 600)
    monkeypatch.setattr(HostRows, "__init__", make)


@pytest.mark.parametrize("name", PLAIN_AND_CODED)
@pytest.mark.parametrize("scope", ["model", "parameter"])
@pytest.mark.usefixtures("small_pieces")
def test_rows_in_host_memory_make_the_steps_of_rows_on_the_device(name, scope):
    trained = []
    for place in ("", "@host"):
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        generator = torch.Generator().manual_seed(1)
        optimizer = GGT(
            parameters, lr=1.0, window=4, window_dtype=name + place, scope=scope, history="momentum", finish="none",
            shrinkage=0.0, weight_decay=0.0, betas=(0.9, 0.99),
        )  # fmt: skip
        for step in range(9):
            gradients_of(parameters, generator)
            if step == 5:
                parameters[1].grad[3] = math.nan
                with pytest.warns(UserWarning, match="skipped a step"):
                    optimizer.step()
                continue
            optimizer.step()
        assert optimizer.skipped == 1
        trained.append(flat(parameters))
    window = optimizer.attached_blocks()[0].window
    assert len(list(window.rows.pieces(window.borders))) > 1
    assert optimizer.param_groups[0]["window_dtype"] == name + "@host"
    # Sums over pieces are rounded otherwise.
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.usefixtures("small_pieces")
def test_every_member_resumes_with_rows_in_host_memory(member):
    model = make_model()
    optimizer = MEMBERS[member](model.parameters(), window=4, window_dtype="int8@host")
    train(model, optimizer, 10)
    assert_resumes(member, model, optimizer, window_dtype="int8@host", window=4)


@pytest.mark.parametrize("stored", ["float32@host", "int4@host"])
def test_a_piece_that_was_copied_ahead_is_copied_again_if_the_rows_have_changed(stored, monkeypatch):
    monkeypatch.setattr(host_rows, "STAGE", 600)
    window = Window(4, 320, dtype=stored)
    window.rows.staged = True
    for _ in range(3):
        row = torch.randn(320)
        window.push(row, window.measure(row), betas=(0.0, 1.0))
    window.expand(torch.ones(4, dtype=torch.float64), torch.empty(320))  # copies the first pieces ahead
    window.rows.write(0, torch.randn(320))
    found = window.measure(row).products
    torch.testing.assert_close(found, window.rows.double() @ window.row(2).double(), rtol=1e-12, atol=1e-12)


def test_the_bytes_of_rows_in_host_memory(monkeypatch):
    device, host = (GGT.memory(64_000, window_dtype=name, history="gradient") for name in ("int8", "int8@host"))
    assert host == device._replace(host=device.window)
    assert "in host" in str(host)
    assert "in host" not in str(device)
    whitening = torch_ggt.Whitening.memory(64_000, window_dtype="bfloat16@host")
    assert (whitening.row, whitening.lent, whitening.host) == (0, 4 * 64_000, 40 * 64_000)
    monkeypatch.setattr("torch_ggt.memory._free_bytes", lambda _: 10**9)
    with pytest.raises(torch.OutOfMemoryError, match=r"in host memory\. It needs 10240000000 bytes .*=13 in int8@host"):
        allocate_window(40, 64_000_000, "float32@host", torch.device("cpu"))
    monkeypatch.setattr("torch_ggt.memory._free_bytes", lambda device: 10**9 if device.type == "cpu" else 10**10)
    with pytest.raises(torch.OutOfMemoryError, match=r"On the device window=35 in torch.float32 or window=70"):
        allocate_window(40, 64_000_000, "float32@host", torch.device("meta"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cuda_graph": True}, "cuda_graph=True: a graph cannot wait"),
        ({"capturable": True}, "capturable=True: a graph cannot wait"),
    ],
)
def test_where_rows_in_host_memory_are_refused(options, message):
    with pytest.raises(
        ValueError, match=rf"window_dtype='int8@host' does not go with {message}.*Use window_dtype='int8'"
    ):
        GGT([torch.nn.Parameter(torch.zeros(3))], window_dtype="int8@host", **options)
    with pytest.raises(ValueError, match="split over ranks"):
        check_host_rows({"window_dtype": "bfloat16@host", "params": [], "capturable": False}, graph=False, split=True)
    with pytest.raises(ValueError, match=r"window_dtype must be one of .* '@host' after it"):
        GGT([torch.nn.Parameter(torch.zeros(3))], window_dtype="int8@card")


# ---- state and memory ----------------------------------------------------------------------------------------------


def test_where_integers_and_scales_are():
    parameter = torch.nn.Parameter(torch.zeros(10, 13))
    for name, codes in (("int8", ((4, 10, 13), torch.int8)), ("int4", ((4, 96), torch.uint8))):
        optimizer = GGT([parameter], window=4, window_dtype=name)
        parameter.grad = torch.randn(10, 13)
        optimizer.step()
        entry = optimizer.state[parameter]
        assert (entry["window"].shape, entry["window"].dtype) == codes
        assert (entry["window_scale"].shape, entry["window_scale"].dtype) == ((4, 3), torch.float32)
        assert optimizer.param_groups[0]["window_dtype"] == name


@formats
@pytest.mark.parametrize("key", ["window", "window_scale"])
def test_damage_is_noticed(name, key):
    model = make_model()
    optimizer = GGT(model.parameters(), window=4, window_dtype=name)
    train(model, optimizer, 6)
    good = optimizer.state_dict()
    damaged = copy.deepcopy(good)
    tensor = damaged["state"][0][key]
    tensor.view(-1)[7] = tensor.view(-1)[7] + (1 if key == "window" else 1e-3 * tensor.view(-1)[7])
    lost = copy.deepcopy(good)
    del lost["state"][1][key]
    negative = copy.deepcopy(good)
    negative["state"][1]["window_scale"][0] *= -1
    for state, message in ((damaged, "damaged|does not have the sums"), (lost, "incomplete"), (negative, "damaged")):
        with pytest.raises(ValueError, match=message):
            GGT(model.parameters(), window=4, window_dtype=name).load_state_dict(state)
    other = "int4" if name == "int8" else "int8"
    with pytest.raises(ValueError, match=f"made with window_dtype='{name}'"):
        GGT(model.parameters(), window=4, window_dtype=other).load_state_dict(good)


@formats
def test_rows_that_were_changed_get_a_new_gram_matrix(name):
    model = make_model()
    optimizer = GGT(model.parameters(), window=4, window_dtype=name)
    train(model, optimizer, 6)
    entry = optimizer.state[next(model.parameters())]
    entry["window_scale"] = 2 * entry["window_scale"]
    with pytest.warns(UserWarning, match="were changed"):
        train(model, optimizer, 1)
    window = optimizer.attached_blocks()[0].window
    wide = window.rows.double()
    torch.testing.assert_close(window.gram, wide @ wide.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_states_under_other_defaults_and_of_empty_parameters_come_back(name):
    """Scales are float32 whatever torch's default dtype is, and a parameter may have no elements."""
    torch.set_default_dtype(torch.float64)
    try:
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((5, 3), (0, 3))]
        optimizer = GGT(parameters, window=4, window_dtype=name)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape)
            optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert optimizer.state[parameters[0]]["window_scale"].dtype == torch.float32


def test_bytes_for_each_parameter():
    """7 rows of int8, or 14 of int4, take less than the 8 bytes of AdamW's state."""
    for name, rows, expected in (("int8", 7, 7.4375), ("int4", 14, 7.875)):
        memory = GGT.memory(64_000_000, window=rows, window_dtype=name)
        assert memory.window == expected * 64_000_000


def test_bad_input():
    with pytest.raises(ValueError, match=r"one of None, torch.float32, .*'int8', 'int4', got window_dtype='int3'"):
        GGT([torch.nn.Parameter(torch.zeros(3))], window_dtype="int3")
    with pytest.raises(ValueError, match="window_dtype must be one of"):
        GGT([torch.nn.Parameter(torch.zeros(3))], window_dtype=torch.float8_e5m2)
    with pytest.raises(ValueError, match=r"a scale for each 64 columns, and 100 .* use 128 columns.*\(680 bytes\)"):
        Window(5, 100, dtype="int8")
    assert GGT([torch.nn.Parameter(torch.zeros(3))], window_dtype=torch.int8).param_groups[0]["window_dtype"] == "int8"
    assert format_of("torch.bfloat16") is FORMATS["bfloat16"]


def test_a_window_that_does_not_fit_says_which_one_would(monkeypatch):
    monkeypatch.setattr("torch_ggt.memory._free_bytes", lambda _: 10**9)

    def full(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("torch_ggt.memory.Window", full)
    with pytest.raises(torch.OutOfMemoryError, match=r"1\.0625 bytes of int8.*window=13 in int8 or window=25 in int4"):
        allocate_window(40, 64_000_000, "int8", torch.device("cpu"))
    with pytest.raises(torch.OutOfMemoryError, match=r"7 in torch.bfloat16 or window=13 in int8 or"):
        allocate_window(40, 64_000_000, torch.float32, torch.device("cpu"))


def test_the_backend_of_this_device_takes_them():
    assert backends.choose(torch.device("cpu")).sees_numbers
    for name in CODED:
        window = Window(2, 128, dtype=name)
        row = torch.randn(128)
        window.push(row, window.measure(row), betas=(0.9, 1.0))
        assert (window.singular_values()[0] - row.norm()).abs() <= 0.1 * row.norm()
