"""Every way to split a window is the optimizer of one process, step by step."""

import functools

import pytest
import torch
from modes import distance, make, train, whole_parameters
from ranks import on_ranks

STEPS = 100
BOUND = {torch.float64: 1e-9, torch.float32: 1e-4}
SCOPES = ("model", "group", "parameter")
MODES = {2: ("ddp-scalar", "fsdp", "mixed", "tp"), 4: ("ddp-scalar", "fsdp", "mixed", "hsdp", "tp", "fsdp_tp")}
MORE = [
    (2, torch.float64, {}),
    (4, torch.float64, {}),
    (4, torch.float32, {}),
    (2, torch.float64, {"history": "gradient", "betas": (0.9, 0.99)}),
    (4, torch.float64, {"nesterov": True, "window_dtype": torch.float32}),
    (4, torch.float64, {"solver": "cholesky", "sgd_scale": 0.1, "maximize": True, "lr": 1e-3}),
]


def trajectories(modes, dtype, options):
    """On every rank: the parameters after all steps, for every mode and scope."""
    found = {}
    for mode in modes:
        for scope in SCOPES:
            model, optimizer = make(mode, dtype, scope, **options)
            train(mode, model, optimizer, 0, STEPS)
            found[mode, scope] = whole_parameters(model)
    return found


@functools.cache
def in_one_process(scalar, scope, dtype, options):
    mode = "single-scalar" if scalar else "single"
    model, optimizer = make(mode, dtype, scope, **dict(options))
    train(mode, model, optimizer, 0, STEPS)
    return whole_parameters(model)


def check(ranks, modes, dtype, options):
    results = on_ranks(ranks, trajectories, modes, dtype, options)
    for (mode, scope), parameters in results[0].items():
        expected = in_one_process("scalar" in mode, scope, dtype, tuple(options.items()))
        assert distance(parameters, expected) < BOUND[dtype], (mode, scope)
        for other in results[1:]:
            assert all(torch.equal(parameters[name], other[mode, scope][name]) for name in parameters)


def test_two_ranks_are_one_process():
    check(2, MODES[2], torch.float32, {})


def test_four_ranks_are_one_process():
    check(4, ("ddp-scalar", "hsdp", "fsdp_tp"), torch.float64, {})


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "dtype", "options"), MORE, ids=str)
def test_with_every_option(ranks, dtype, options):
    check(ranks, MODES[ranks], dtype, options)
