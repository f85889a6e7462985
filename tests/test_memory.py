"""GGT.memory says before the first step which bytes the optimizer has after it."""

import itertools

import pytest
import torch
from helpers import words
from torch import nn

from torch_ggt import GGT, Whitening, param_groups
from torch_ggt.finish import FINISHES, Finish
from torch_ggt.memory import Memory, readable


class Complex(nn.Module):
    """Shapes that need padding, a scalar, a complex and a frozen parameter."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 13), nn.Conv1d(3, 5, 3)).to(dtype)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        self.phase = nn.Parameter(torch.ones(5, 9, dtype=torch.complex64))
        self.frozen = nn.Parameter(torch.ones(1000), requires_grad=False)


def bytes_after_a_step(parameters, **options):
    """(window, row, buffers, small): each storage of the state once, and the row."""
    return bytes_of(GGT(parameters, **options))


def bytes_of(optimizer):
    """What `bytes_after_a_step` says, after a step of ``optimizer``."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    found = {"window": {}, "buffers": {}, "small": {}}
    for entry in optimizer.state.values():
        for key, tensor in entry.items():
            kind = (
                "window"
                if key.startswith("window")
                else "buffers"
                if key.endswith(("buffer", "avg", "sq"))
                else "small"
            )
            storage = tensor.untyped_storage()
            found[kind][storage.data_ptr()] = storage.nbytes()
    row = sum(block.row.untyped_storage().nbytes() for block in optimizer.attached_blocks())
    sums = {kind: sum(storages.values()) for kind, storages in found.items()}
    return sums["window"], row, sums["buffers"], sums["small"]


class Heavy(Finish):
    """Remembers one tensor of the shape of the parameter."""

    buffers = ("heavy_buffer",)


@pytest.fixture
def _heavy():
    FINISHES["heavy"] = Heavy()
    yield
    del FINISHES["heavy"]


@pytest.mark.usefixtures("_heavy")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 7, "window_dtype": "bfloat16"},
        {"window": 7, "window_dtype": "int8"},
        {"window": 3, "window_dtype": "int4", "scope": "parameter", "finish": "adam"},
        {"window": 3, "window_dtype": torch.float64, "history": "gradient"},
        {"window": 5, "scope": "parameter"},
        {"window": 4, "scope": "parameter", "history": "gradient", "window_dtype": "bfloat16"},
        {"window": 6, "finish": "heavy"},
        {"window": 6, "finish": "heavy", "history": "gradient", "scope": "group"},
        {"window": 4, "finish": "adam"},
        {"window": 4, "finish": "adam", "history": "gradient", "scope": "parameter"},
    ],
    ids=words,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=words)
def test_the_bytes_are_those_of_a_real_optimizer(options, dtype):
    model = Complex(dtype)
    predicted = GGT.memory(model, **options)
    assert predicted[1:] == (*bytes_after_a_step(model.parameters(), **options), 0, 0)
    assert predicted.parameters == 7 * 13 + 13 + 3 * 5 * 3 + 5 + 1 + 2 * 45
    assert predicted.total == predicted.peak == sum(predicted[1:])
    with torch.device("meta"):
        assert GGT.memory(Complex(dtype), **options) == predicted  # nothing is allocated


@pytest.mark.parametrize("finish", ["polar", "polar_rows", torch.sign], ids=words)
@pytest.mark.parametrize("history", ["momentum", "gradient"])
@pytest.mark.parametrize("scope", ["model", "group", "parameter"])
def test_the_bytes_of_finishes(finish, history, scope):
    """What a finish remembers, of the groups that `param_groups` makes: qkv, experts, convolutions, and the rest."""
    model = nn.Sequential(nn.Embedding(9, 5), nn.Conv2d(3, 8, 3), nn.MultiheadAttention(4, 2))
    model.experts = nn.Parameter(torch.randn(3, 6, 5))
    options = {"history": history, "scope": scope, "window": 4}
    predicted = GGT.memory(param_groups(model, finish=finish), **options)
    assert predicted[1:] == (*bytes_after_a_step(param_groups(model, finish=finish), **options), 0, 0)


@pytest.mark.parametrize("scope", ["model", "parameter"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "int8", "int4"])
def test_the_bytes_of_whitening(stored, scope):
    """With rows of few bytes the flat row is there only during a step, skipped or not; after it nothing is left."""
    model = Complex()
    optimizer = Whitening(model.parameters(), 7, window_dtype=stored, scope=scope)
    predicted = Whitening.memory(model, window=7, window_dtype=stored, scope=scope)
    row = GGT.memory(model, window=7, window_dtype=stored, scope=scope).row
    assert predicted[1:5] == bytes_of(optimizer)
    assert (predicted.row, predicted.lent) == ((0, row) if stored.startswith("int") else (row, 0))
    assert predicted.peak == predicted.total + predicted.lent
    next(model.parameters()).grad.fill_(torch.nan)
    optimizer.step()
    assert optimizer.skipped == 1
    assert sum(block.row.untyped_storage().nbytes() for block in optimizer.attached_blocks()) == predicted.row


def peak_of(step):
    """The most bytes that ``step`` has allocated at a time, beyond those that were there before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return max(itertools.accumulate((change for _, change in sorted(changes)), initial=0))


@pytest.mark.parametrize(("stored", "rows"), [("int8", 7), ("int4", 14)])
def test_the_peak_of_whitening_at_eight_bytes(stored, rows):
    """At most 8 bytes for each parameter stay. A step takes 4 more, and scratch whose size does not grow."""
    model = nn.Linear(2000, 1000, bias=False)
    optimizer = Whitening(model.parameters(), rows, window_dtype=stored)
    predicted = Whitening.memory(model, window=rows, window_dtype=stored)
    assert predicted.per_parameter <= 8
    for _ in range(2):  # the first step makes the window and its scratch
        model.weight.grad = torch.randn(1000, 2000)
        peak = peak_of(optimizer.step)
    assert sum(bytes_of(optimizer)) == predicted.total
    assert predicted.lent <= peak <= predicted.lent + 8 * 2**20


@pytest.mark.usefixtures("_heavy")
@pytest.mark.parametrize("scope", ["model", "group", "parameter"])
def test_param_groups_have_their_own_finish(scope):
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 9))

    def groups():
        return [{"params": model[0].named_parameters(), "finish": "heavy"}, {"params": model[1].named_parameters()}]

    optimizer = GGT(groups(), scope=scope)
    model(torch.randn(2, 30)).sum().backward()
    optimizer.step()
    predicted = GGT.memory(groups(), scope=scope)
    blocks = optimizer.attached_blocks()
    assert predicted.buffers == sum(4 * flat.numel() for block in blocks for flat, _ in block.buffers.values())
    assert predicted.row == sum(4 * block.row.numel() for block in blocks)


def test_a_number_of_parameters_and_a_part_of_them():
    whole = GGT.memory(7_000_000_064, window=16, window_dtype="bfloat16")
    assert whole == GGT.memory(7_000_000_064.0, window=16, window_dtype="bfloat16")
    assert whole[1:4] == (32 * 7_000_000_064, 4 * 7_000_000_064, 8 * 7_000_000_064)  # two moments
    assert whole.small == 8 * (16 * 16 + 2 * 16 + 3) + 4  # and the finish counts its steps
    part = GGT.memory(7_000_000_064, window=16, window_dtype="bfloat16", ranks=64)
    assert part.window == 32 * 109_375_040  # the 109,375,001 columns of the first rank, rounded up to 64
    assert part.small == whole.small


def test_ranks_split_tensors_as_the_optimizer_does():
    from torch_ggt.distributed.pieces import slice_of

    model = nn.Sequential(nn.Linear(50, 64), nn.Linear(64, 3))
    pieces = [slice_of(p, 0, 4, None) for p in model.parameters()]
    elements = [torch.Size(piece.sizes).numel() for piece in pieces]
    columns = sum(-(-count // 64) * 64 for count in elements)
    assert GGT.memory(model, ranks=4).row == 4 * columns < GGT.memory(model).row


def test_it_prints_a_table():
    text = str(Memory(1_000_000, 80_000_000, 4_000_000, 0, 3544))
    assert text.splitlines()[0] == "1,000,000 parameters; bytes in all, and for each:"
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["window", "80", "MB", "80.00"],
        ["row", "4", "MB", "4.00"],
        ["buffers", "0", "B", "0.00"],
        ["small", "3.54", "kB", "0.00"],
        ["total", "84", "MB", "84.00"],
    ]
    assert readable(999.9) == "1 kB"


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (0, {}, "whole number from 1 on, got 0"),
        (1.5, {}, "whole number from 1 on, got 1.5"),
        (float("inf"), {}, "whole number from 1 on, got inf"),
        (True, {}, "got bool"),
        ("7B", {}, "a model, its parameters, param groups, or a number of parameters, got str"),
        ([], {}, "no trainable parameters"),
        ([1, 2], {}, "parameters must be tensors, or param groups, got int"),
        (10, {"window": 0}, "window must be an int ≥ 1"),
        (10, {"window_dtype": "int2"}, "window_dtype must be one of"),
        (10, {"finish": "unknown"}, "finish must be one of 'none'"),
        (10, {"ranks": 0}, "ranks must be an int ≥ 1, got ranks=0"),
    ],
)
def test_bad_input(model, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GGT.memory(model, **options)
