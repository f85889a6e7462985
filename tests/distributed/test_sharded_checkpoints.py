"""Saved by any number of ranks in any mode, loaded by any other: the run goes on as if it had not stopped."""

import itertools
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from modes import distance, make, train, whole_parameters
from ranks import assert_the_others_end, on_ranks, outcomes_on_ranks
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process needs none

HALF, WHOLE = 8, 14
MODES = {1: ("single",), 2: ("ddp", "fsdp"), 4: ("ddp", "hsdp", "fsdp_tp")}
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def state_of(model, optimizer, options=None):
    return {
        "model": get_model_state_dict(model, options=options),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
    }


def set_state(model, optimizer, state, options=None):
    set_model_state_dict(model, state["model"], options=options)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)


def local_state(optimizer):
    return {
        (index, key): value.to_local().clone() if hasattr(value, "to_local") else value.clone()
        for index, entry in optimizer.state_dict()["state"].items()
        for key, value in entry.items()
    }


def save_all(modes, folder, options):
    """Half a run in each mode, saved; then its other half."""
    ends = {}
    for mode in modes:
        model, optimizer = make(mode, **options)
        train(mode, model, optimizer, 0, HALF)
        name = f"{mode}-{dist.get_world_size() if dist.is_initialized() else 1}"
        dcp.save(state_of(model, optimizer), checkpoint_id=folder / name, no_dist=not dist.is_initialized())
        # Contiguous, for broadcast_from_rank0: torch 2.11 makes views of uneven parts, and damages them later.
        full = tree_map_only(torch.Tensor, torch.Tensor.contiguous, state_of(model, optimizer, FULL))
        if not dist.is_initialized() or dist.get_rank() == 0:
            torch.save(full, folder / f"{name}.pt")
        train(mode, model, optimizer, HALF, WHOLE)
        ends[mode] = whole_parameters(model), local_state(optimizer)
    return ends


def load_all(modes, folder, options, names):
    """The ends of runs that go on in each mode from each checkpoint, sharded and full."""
    ends = {}
    for mode, name in itertools.product(modes, names):
        model, optimizer = make(mode, **options)
        state = state_of(model, optimizer)  # a dry-run step: torch learns the layout
        dcp.load(state, checkpoint_id=folder / name, no_dist=not dist.is_initialized())
        set_state(model, optimizer, state)
        train(mode, model, optimizer, HALF, WHOLE)
        ends[mode, name, "sharded"] = whole_parameters(model), local_state(optimizer)

        if mode != modes[0] and not name.startswith(mode):
            continue
        model, optimizer = make(mode, **options)
        first = not dist.is_initialized() or dist.get_rank() == 0
        full = torch.load(folder / f"{name}.pt", weights_only=True) if first else {"model": {}, "optimizer": {}}
        set_state(model, optimizer, full, FROM_FIRST if dist.is_initialized() else None)
        train(mode, model, optimizer, HALF, WHOLE)
        ends[mode, name, "full"] = whole_parameters(model), local_state(optimizer)
    return ends


def run(n, function, *arguments):
    """One result per rank; one rank is this process, without a process group."""
    return [function(*arguments)] if n == 1 else on_ranks(n, function, *arguments)


def check_resharding(folder, ranks, **options):
    modes = {n: MODES[n] for n in ranks}
    names = [f"{mode}-{n}" for n in ranks for mode in modes[n]]
    saved = {n: run(n, save_all, modes[n], folder, options) for n in ranks}
    loaded = {n: run(n, load_all, modes[n], folder, options, names) for n in ranks}
    uninterrupted, _ = saved[1][0]["single"]
    for n in ranks:
        for rank, ends in enumerate(loaded[n]):
            for (mode, name, kind), (parameters, state) in ends.items():
                assert distance(parameters, uninterrupted) < 1e-9, (mode, n, name, kind)
                if name == f"{mode}-{n}":  # the same layout: the same bits
                    expected, expected_state = saved[n][rank][mode]
                    assert all(torch.equal(parameters[key], expected[key]) for key in expected), (mode, n, kind)
                    assert state.keys() == expected_state.keys()
                    assert all(torch.equal(state[key], expected_state[key]) for key in state), (mode, n, kind)


def test_one_two_and_four_ranks_read_each_other(tmp_path):
    check_resharding(tmp_path, (1, 2, 4))


def test_one_and_two_ranks_read_each_other_with_a_matrix_per_parameter_and_a_finish(tmp_path):
    """Weights finish by rows of their polar factor, biases as in Adam: every kind of state that a finish has."""
    check_resharding(tmp_path, (1, 2), scope="parameter", finish="polar_rows", history="gradient")


@pytest.mark.soak
@pytest.mark.parametrize("scope", ["group", "parameter"])
def test_one_two_and_four_ranks_read_each_other_whatever_the_scope(tmp_path, scope):
    check_resharding(tmp_path, (1, 2, 4), scope=scope)
    check_resharding(tmp_path / "finished", (1, 2, 4), scope=scope, finish="polar_rows", history="gradient")


def save_once(mode, folder):
    model, optimizer = make(mode)
    train(mode, model, optimizer, 0, HALF)
    dcp.save(state_of(model, optimizer), checkpoint_id=folder / "first")
    train(mode, model, optimizer, HALF, HALF + 2)
    if dist.get_rank() == 1:
        dcp.FileSystemWriter.write_data = lambda *_: os._exit(9)
    started = time.monotonic()
    try:
        dcp.save(state_of(model, optimizer), checkpoint_id=folder / "second")
    except BaseException as error:  # torch's CheckpointException is not an Exception
        return time.monotonic() - started, f"{type(error).__name__}: {error}"


def load_once(mode, folder):
    model, optimizer = make(mode)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder / "first")
    set_state(model, optimizer, state)
    train(mode, model, optimizer, HALF, WHOLE)
    return whole_parameters(model)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_dies_while_saving(tmp_path, ranks):
    assert_the_others_end(outcomes_on_ranks(ranks, save_once, "ddp", tmp_path))
    assert not (tmp_path / "second" / ".metadata").exists()  # so that nobody takes it for complete
    model, optimizer = make("single")
    train("single", model, optimizer, 0, WHOLE)
    for parameters in on_ranks(2, load_once, "ddp", tmp_path):
        assert distance(parameters, whole_parameters(model)) < 1e-9


def load_of_another_model(folder):
    model, optimizer = make("ddp-scalar")
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder / "single-1")


def test_a_checkpoint_of_another_model(tmp_path):
    save_all(("single",), tmp_path, {})
    for kind, value in outcomes_on_ranks(2, load_of_another_model, tmp_path):
        assert kind == "raised"
        assert "scale" in value  # the parameter that it has not


def load_damaged(what):
    """What loading says of a state whose rows were changed on their way; then the run goes on from a good one."""
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, HALF)
    good, damaged = optimizer.state_dict(), optimizer.state_dict()
    before = local_state(optimizer)
    entry = damaged["state"][2]
    if what == "rows":
        entry["window"] = 2 * entry["window"]
    else:  # what torch.save on rank 0 alone would have kept: its own part, on every rank
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, entry["window"].to_local())
        mesh, placements = entry["window"].device_mesh, entry["window"].placements
        entry["window"] = DTensor.from_local(parts[0], mesh, placements, run_check=False)
    try:
        optimizer.load_state_dict(damaged)
    except ValueError as error:
        words = str(error)
    unchanged = same_state(local_state(optimizer), before)
    optimizer.load_state_dict(good)
    train("ddp", model, optimizer, HALF, WHOLE)
    return words, unchanged, whole_parameters(model)


@pytest.mark.parametrize("what", ["rows", "part"])
def test_a_damaged_state_is_refused(what):
    model, optimizer = make("single")
    train("single", model, optimizer, 0, WHOLE)
    for words, unchanged, parameters in on_ranks(2, load_damaged, what):
        assert "damaged or lost on their way. The state was refused" in words
        assert unchanged
        assert distance(parameters, whole_parameters(model)) < 1e-9


def same_state(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def before_the_first_step(mode):
    """Saving and loading before there is anything to save: no trace, bit by bit."""
    other = make(mode)
    train(mode, *other, 0, HALF)
    expected = local_state(other[1])
    found = {}

    model, optimizer = make(mode)
    before = whole_parameters(model)
    get_optimizer_state_dict(model, optimizer)  # makes a step with gradients of zeros
    found["parameters"] = all(torch.equal(before[name], p) for name, p in whole_parameters(model).items())
    found["rows"] = [int(entry["count"]) for entry in optimizer.state.values() if "count" in entry] == [0]
    set_optimizer_state_dict(model, optimizer, get_optimizer_state_dict(model, optimizer))
    train(mode, model, optimizer, 0, HALF)
    found["torch's tools"] = same_state(local_state(optimizer), expected)

    model, optimizer = make(mode)
    optimizer.load_state_dict(optimizer.state_dict())
    train(mode, model, optimizer, 0, HALF)
    found["state_dict"] = same_state(local_state(optimizer), expected)
    return found


def test_before_the_first_step_nothing_leaves_a_trace():
    for mode in ("ddp", "fsdp"):
        for found in on_ranks(2, before_the_first_step, mode):
            assert found == dict.fromkeys(("parameters", "rows", "torch's tools", "state_dict"), True)


def flattened(mode, folder):
    """A state of one level, as torchtitan and others save it."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    ends = []
    for resume in (False, True):
        model, optimizer = make(mode)
        if resume:
            state = state_of(model, optimizer, options)
            dcp.load(state, checkpoint_id=folder)
            set_state(model, optimizer, state, options)
        else:
            train(mode, model, optimizer, 0, HALF)
            dcp.save(state_of(model, optimizer, options), checkpoint_id=folder)
        train(mode, model, optimizer, HALF, WHOLE)
        ends.append(local_state(optimizer))
    return same_state(*ends)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_flattened_state_goes_on_bitwise(tmp_path, mode):
    assert on_ranks(2, flattened, mode, tmp_path) == [True, True]


STORED = Path(__file__).parent / "data" / "format-1.pt"


def continue_stored(mode):
    model, optimizer = make(mode)
    stored = torch.load(STORED, weights_only=True)
    options = StateDictOptions(full_state_dict=True)
    set_state(model, optimizer, {"model": stored["model"], "optimizer": stored["optimizer"]}, options)
    train(mode, model, optimizer, 8, 17)
    return distance(whole_parameters(model), stored["end"])


def test_old_checkpoints_keep_loading():
    """Made by version 0.1.0 before it knew of ranks: the state after 8 steps, and the parameters after 17."""
    with pytest.warns(UserWarning, match="format 1, which has no sums"):
        assert continue_stored("single") < 1e-9
    for mode in ("ddp", "fsdp"):
        assert max(on_ranks(2, continue_stored, mode)) < 1e-9
