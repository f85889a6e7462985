"""Every way to split a window is the optimizer of one process, step by step, and all ranks have the same bits."""

import functools

import pytest
import torch
import torch.distributed as dist
from modes import distance, local_parameters, make, same_everywhere, small_state, train, whole_parameters
from ranks import on_ranks

STEPS, MANY = 100, 500
BOUND = {torch.float64: 1e-9, torch.float32: 1e-4}
SCOPES = ("model", "group", "parameter")
MODES = {2: ("ddp-scalar", "fsdp", "mixed", "tp"), 4: ("ddp-scalar", "fsdp", "hsdp", "tp")}
ALL = {2: MODES[2], 4: (*MODES[4], "mixed", "fsdp_tp")}
MORE = [
    (2, torch.float32, {}),
    (4, torch.float32, {}),
    (4, torch.float64, {}),
    (2, torch.float64, {"history": "gradient", "betas": (0.9, 0.99)}),
    (4, torch.float64, {"nesterov": True, "window_dtype": torch.float32}),
    (4, torch.float64, {"solver": "cholesky", "sgd_scale": 0.1, "maximize": True, "lr": 1e-3}),
]


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
    results = on_ranks(ranks, trajectories, modes, dtype, options, long)
    ends, _ = results[0]
    for (mode, scope), parameters in ends.items():
        expected = in_one_process("scalar" in mode, scope, dtype, tuple(options.items()))
        assert distance(parameters, expected) < BOUND[dtype], (mode, scope)
        for other, _ in results[1:]:
            assert all(torch.equal(parameters[name], other[mode, scope][name]) for name in parameters)
    for _, agreed in results:
        assert agreed == dict.fromkeys(long, True)


def test_two_ranks_are_one_process_float64():
    check(2, MODES[2], torch.float64, {})


def test_two_ranks_are_one_process_float32_and_agree_after_500_steps():
    modes = ("ddp-scalar", "fsdp", "tp")
    check(2, modes, torch.float32, {}, long=modes)


def test_four_ranks_are_one_process_float64():
    check(4, MODES[4], torch.float64, {})


def test_four_ranks_are_one_process_float32_and_agree_after_500_steps():
    check(4, ("ddp", "hsdp"), torch.float32, {}, long=("ddp", "hsdp"))


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "dtype", "options"), MORE, ids=str)
def test_with_every_option(ranks, dtype, options):
    check(ranks, ALL[ranks], dtype, options, long=ALL[ranks])
