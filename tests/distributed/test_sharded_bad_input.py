"""What ranks cannot do together ends with a clear error on each of them, within the timeout."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from modes import Model, compute_gradients, make, train
from ranks import TIMEOUT, outcomes_on_ranks
from torch import nn

import torch_ggt.sharding
from torch_ggt import GGT


def give_gradients(parameters):
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)


def different(what):
    rank = dist.get_rank()
    dtype = torch.float64 if what == "dtype" and rank == 1 else torch.float32
    shapes = [(3, 2), (4,)] + ([(5,)] if what == "list" and rank == 1 else [])
    shapes[0] = (2, 3) if what == "shape" and rank == 1 else shapes[0]
    parameters = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    window = 7 if what == "window" and rank == 1 else 5
    optimizer = GGT(parameters, window=window, process_group=dist.group.WORLD)
    give_gradients(parameters)
    if what == "sparse" and rank == 1:
        parameters[1].grad = parameters[1].grad.to_sparse()
    if what == "gradients" and rank == 1:
        parameters[1].grad = None
    optimizer.step()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("list", "'parameters': 3"),
        ("gradients", "'parameters': 1"),
        ("shape", r"rank 0 has parameter 0 of its group of shape (3, 2)"),
        ("dtype", "torch.float64"),
        ("window", "'window': 5"),
        ("sparse", "sparse gradients"),
    ],
)
def test_ranks_that_differ(what, message):
    for kind, value in outcomes_on_ranks(2, different, what):
        assert kind == "raised"
        assert "GGT" in value.splitlines()[0]
        assert message in value.splitlines()[0]


def one_rank_loads(what):
    """Rank 1 loads the state of another model, or alone."""
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)
    state = optimizer.state_dict()
    if what == "another model" and dist.get_rank() == 1:
        other = nn.Linear(3, 3).double()
        stranger = GGT([{"params": [other.weight]}, {"params": [other.bias]}], window=5)
        give_gradients(other.parameters())
        stranger.step()
        state = stranger.state_dict()
    if what == "nothing" and dist.get_rank() == 1:
        state = {"state": {}, "param_groups": state["param_groups"]}
    optimizer.load_state_dict(state)
    train("ddp", model, optimizer, 2, 3)


@pytest.mark.parametrize("what", ["another model", "nothing"])
def test_a_rank_that_loads_something_else(what):
    for kind, value in outcomes_on_ranks(2, one_rank_loads, what):
        assert kind == "raised"
        assert value.startswith("ValueError: GGT: ranks disagree: rank 0 has")


def destroyed():
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)
    compute_gradients("ddp", model, 2)
    dist.barrier()
    dist.destroy_process_group()
    optimizer.step()


def destroyed_subgroup():
    group = dist.new_group([0, 1])
    model = Model().double()
    optimizer = GGT(model.parameters(), window=5, process_group=group)
    give_gradients(model.parameters())
    optimizer.step()
    dist.barrier()
    dist.destroy_process_group(group)
    optimizer.step()


@pytest.mark.parametrize("function", [destroyed, destroyed_subgroup])
def test_a_group_that_was_destroyed(function):
    for kind, value in outcomes_on_ranks(2, function):
        assert kind == "raised"
        assert "destroyed" in value.splitlines()[0]


def part_of_the_ranks():
    """A hybrid split of which the process group has one half only."""
    model, _ = make("fsdp")
    groups = [dist.new_group([rank]) for rank in range(2)]
    optimizer = GGT(model.parameters(), process_group=groups[dist.get_rank()])
    compute_gradients("fsdp", model, 0)
    optimizer.step()


def test_a_group_without_all_shards():
    for kind, value in outcomes_on_ranks(2, part_of_the_ranks):
        assert kind == "raised"
        assert "hold 42 of the 84 elements" in value


def dying_in_a_step():
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)
    compute_gradients("ddp", model, 2)
    if dist.get_rank() == 1:
        torch_ggt.sharding.Sharded.share = lambda *_: os._exit(9)  # killed between its all-reduce and its all-gather
    started = time.monotonic()
    try:
        optimizer.step()
    except RuntimeError as error:
        return time.monotonic() - started, str(error)


def test_a_rank_that_dies_in_a_step():
    survivor, dead = outcomes_on_ranks(2, dying_in_a_step)
    assert dead[0] == "died"
    kind, (seconds, message) = survivor
    assert kind == "returned"
    assert message
    assert seconds < TIMEOUT + 5
