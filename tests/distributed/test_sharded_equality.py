"""Every way to split a window is the optimizer of one process, step by step, and all ranks have the same bits."""

import functools

import pytest
import torch
import torch.distributed as dist
from modes import distance, local_parameters, make, same_everywhere, small_state, train, whole_parameters
from ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt.distributed import gathering
from torch_ggt.window import Window

STEPS, MANY = 100, 500
BOUND = {torch.float64: 1e-9, torch.float32: 1e-4}
SCOPES = ("model", "group", "parameter")
MODES = {2: ("ddp-scalar", "fsdp", "mixed", "mixed-split", "tp"), 4: ("ddp-scalar", "fsdp", "hsdp", "tp")}
ALL = {2: MODES[2], 4: (*MODES[4], "mixed", "fsdp_tp")}
MORE = [
    (2, torch.float32, {}),
    (2, torch.float64, {}),
    (4, torch.float32, {}),
    (4, torch.float64, {}),
    (2, torch.float64, {"history": "gradient", "betas": (0.9, 0.99)}),
    (4, torch.float64, {"nesterov": True, "window_dtype": torch.float32}),
    (4, torch.float64, {"solver": "cholesky", "sgd_scale": 0.1, "maximize": True, "lr": 1e-3}),
    *((4, torch.float64, {"finish": finish, "history": "gradient"}) for finish in ("adam", "polar", "polar_rows")),
]
# The history and the finish; a finish by its name, or the function `unit_length`.
FINISHED = (("gradient", "adam"), ("gradient", "polar"), ("momentum", "polar_rows"), ("momentum", "polar_exact"))
FINISHED_STEPS = 20


def trajectories(modes, dtype, options, long=()):
    """On every rank: the parameters after STEPS steps, for every mode and scope; and whether bits agree after MANY."""
    found, agreed = {}, {}
    for mode in modes:
        for scope in SCOPES:
            model, optimizer = make(mode, dtype, scope, **options)
            train(mode, model, optimizer, 0, STEPS)
            found[mode, scope] = whole_parameters(model)
            if mode in long and scope == "model":
                train(mode, model, optimizer, STEPS, MANY)
                agreed[mode] = ranks_agree(mode, model, optimizer)
    return found, agreed


def ranks_agree(mode, model, optimizer):
    """Whether all ranks have the same bits: of whole parameters, of the Gram, and replicas of their shards."""
    agreed = same_everywhere(whole_parameters(model).values()) and same_everywhere(small_state(optimizer))
    if mode == "hsdp":  # ranks r and r + N/2 hold the same shard
        ranks = dist.get_world_size()
        mine = torch.cat([p.reshape(-1) for p in local_parameters(model)])
        everyone = [None] * ranks
        dist.all_gather_object(everyone, mine)
        agreed = agreed and torch.equal(mine, everyone[(dist.get_rank() + ranks // 2) % ranks])
    return agreed


@functools.cache
def in_one_process(scalar, scope, dtype, options):
    mode = "single-scalar" if scalar else "single"
    model, optimizer = make(mode, dtype, scope, **dict(options))
    train(mode, model, optimizer, 0, STEPS)
    return whole_parameters(model)


def check(ranks, modes, dtype, options, long=()):
    results = on_ranks(ranks, trajectories, modes, dtype, options, long, seconds=900)
    ends, _ = results[0]
    bound = BOUND[options.get("window_dtype", dtype)]
    for (mode, scope), parameters in ends.items():
        expected = in_one_process("scalar" in mode, scope, dtype, tuple(options.items()))
        assert distance(parameters, expected) < bound, (mode, scope)
        for other, _ in results[1:]:
            assert all(torch.equal(parameters[name], other[mode, scope][name]) for name in parameters)
    for _, agreed in results:
        assert agreed == dict.fromkeys(long, True)


def test_two_ranks_are_one_process_float64():
    check(2, ("ddp-scalar", "mixed", "mixed-split"), torch.float64, {})


def test_two_ranks_are_one_process_float32_and_agree_after_500_steps():
    modes = ("ddp-scalar", "fsdp", "tp")
    check(2, modes, torch.float32, {}, long=modes)


def test_four_ranks_are_one_process_float64():
    check(4, MODES[4], torch.float64, {})


@pytest.mark.soak  # two ranks do it in the quick suite
def test_four_ranks_are_one_process_float32_and_agree_after_500_steps():
    check(4, ("ddp", "hsdp"), torch.float32, {}, long=("ddp", "hsdp"))


# ---- finishes: a polar factor needs whole matrices ------------------------------------------------------------------


def unit_length(step):
    """It needs the whole tensor."""
    return step / step.norm()


class Spoiled:
    """A finish whose third call on a rank makes a NaN."""

    calls = 0

    def __call__(self, step):
        self.calls += 1
        return step * torch.nan if self.calls == 3 else 0.01 * step.sign()


def finished_trajectories(modes, dtype):
    found = {}
    for mode in modes:
        for history, finish in (*FINISHED, ("gradient", unit_length)):
            model, optimizer = make(mode, dtype, history=history, finish=finish)
            train(mode, model, optimizer, 0, FINISHED_STEPS)
            alike = mode.startswith("single") or ranks_agree(mode, model, optimizer)
            found[mode, history, finish] = whole_parameters(model), alike
    if not modes[0].startswith("single"):
        model, optimizer = make(modes[0], dtype, finish=Spoiled())
        train(modes[0], model, optimizer, 0, 5)
        agreed = ranks_agree(modes[0], model, optimizer)
        found["spoiled"] = whole_parameters(model), agreed and optimizer.skipped > 0
    return found


@pytest.mark.parametrize(
    ("ranks", "modes", "dtype"),
    [
        (2, ("ddp-scalar", "fsdp", "tp"), torch.float64),
        (2, ("ddp-scalar", "fsdp"), torch.float32),
        (4, ("hsdp",), torch.float64),
        pytest.param(4, ALL[4], torch.float64, marks=pytest.mark.soak),
        pytest.param(4, ALL[4], torch.float32, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_every_finish_is_that_of_one_process(ranks, modes, dtype):
    expected = finished_trajectories(("single", "single-scalar"), dtype)
    results = on_ranks(ranks, finished_trajectories, modes, dtype, seconds=900)
    for found in results:
        for case, (parameters, alike) in found.items():
            assert alike, case
            assert all(p.isfinite().all() for p in parameters.values())
            assert all(torch.equal(p, results[0][case][0][name]) for name, p in parameters.items()), case
            if case != "spoiled":
                mode, *which = case
                wanted, _ = expected["single-scalar" if "scalar" in mode else "single", *which]
                assert distance(parameters, wanted) < BOUND[dtype], case


# ---- what a model may have beside plain weights --------------------------------------------------------------------


def odd_parameters():
    """Scalars, nothing at all, complex, bfloat16, rows that are columns, and more ranks than elements."""
    torch.manual_seed(0)
    made = [torch.randn(shape) for shape in ((), (0, 3), (1,), (5, 1, 3), (2, 3), (13, 4))]
    made += [torch.randn(3, dtype=torch.complex64), torch.randn((), dtype=torch.complex64)]
    made += [torch.randn(6, 5).t(), torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)]
    return [nn.Parameter(tensor) for tensor in (*made, torch.randn(9, 2).bfloat16())]


def train_odd_parameters(number):
    """{scope: parameters}."""
    group = None
    if dist.is_initialized():
        ranks = dist.get_world_size() // number
        groups = [dist.new_group(list(range(i * ranks, (i + 1) * ranks))) for i in range(number)]
        group = groups[dist.get_rank() // ranks]
    return {scope: train_with(group, scope) for scope in SCOPES}


def train_with(group, scope):
    """Gradients come and go, and a param group is added on the way."""
    parameters = odd_parameters()
    optimizer = GGT(parameters[:6], lr=1e-2, weight_decay=0.1, window=4, scope=scope, process_group=group)
    for step in range(20):
        if step == 5:
            optimizer.add_param_group({"params": parameters[6:]})
        generator = torch.Generator().manual_seed(step)
        for index, p in enumerate(parameters):
            gradient = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.grad = None if (step + index) % 7 == 0 or step == 11 else gradient
        optimizer.step()
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize(("ranks", "groups"), [(2, 1), (3, 1), (4, 2)])
def test_odd_parameters(ranks, groups):
    """In one group of ranks, and in two of them side by side."""
    expected = train_odd_parameters(1)
    results = on_ranks(ranks, train_odd_parameters, groups)
    for found in results:
        for scope in SCOPES:
            for ours, theirs, first in zip(found[scope], expected[scope], results[0][scope], strict=True):
                tolerance = 1e-2 if ours.dtype == torch.bfloat16 else 1e-5
                torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
                assert torch.equal(ours, first)


def train_in_small_buckets():
    """Several all-gathers on their way at once: how many, and the parameters."""
    original = gathering._BUCKET
    gathering._BUCKET = 50
    try:
        model, optimizer = make("ddp-scalar")
        train("ddp-scalar", model, optimizer, 0, 20)
    finally:
        gathering._BUCKET = original
    return len(optimizer._live.columns._gathering._buckets), whole_parameters(model)


def test_many_buckets_are_one():
    model, optimizer = make("single-scalar")
    train("single-scalar", model, optimizer, 0, 20)
    for buckets, parameters in on_ranks(2, train_in_small_buckets):
        assert buckets >= 3
        assert distance(parameters, whole_parameters(model)) < 1e-9


def train_one_row(mode):
    """A model of one row of five: as a DTensor it is on the first rank alone, the others have no columns at all."""
    torch.manual_seed(0)
    model = nn.Linear(5, 1, bias=False).double()
    if mode == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    group = dist.group.WORLD if mode == "ddp" else None
    found = []
    for scope in SCOPES:
        optimizer = GGT(model.parameters(), lr=0.1, window=3, scope=scope, process_group=group)
        for step in range(6):
            x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
            model.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        found.append(whole_parameters(model)["weight"])
    return found


def lengths_without_jitter(alone):
    """The lengths of steps that only the cut of `Window.shorten` keeps at one; every rank adds its part of a step."""
    generator = torch.Generator().manual_seed(4)
    base, found = torch.randn(40, 500, generator=generator).double(), []
    parameter = nn.Parameter(torch.zeros_like(base))
    options = {"window": 2, "jitter": 0.0, "eps": 0.0, "betas": (0.0, 1.0), "adjust_lr_fn": "original"}
    optimizer = GGT([parameter], lr=1.0, process_group=None if alone else dist.group.WORLD, **options)
    for _ in range(30):
        parameter.data.zero_()
        parameter.grad = base + 5e-8 * torch.randn(base.shape, generator=generator)
        optimizer.step()
        found.append(float(parameter.detach().norm()))
    return found


def test_without_jitter_the_length_of_a_step_is_that_over_all_ranks(monkeypatch):
    for found in on_ranks(2, lengths_without_jitter, False):
        assert max(found) <= 1 + 1e-12
        assert max(found) > 1 - 1e-9  # some steps were cut
    monkeypatch.setattr(Window, "shorten", lambda *given: None)
    assert max(lengths_without_jitter(True)) > 1.01


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_ranks_without_any_column(mode):
    expected = train_one_row("single")
    for found in on_ranks(4, train_one_row, mode):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "dtype", "options"), MORE, ids=str)
def test_with_every_option(ranks, dtype, options):
    check(ranks, ALL[ranks], dtype, options, long=() if options else ALL[ranks])
