"""What ranks cannot do together ends with a clear error on each of them, at once: none waits for one that gave up."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from modes import Model, compute_gradients, make, train, whole_parameters
from ranks import assert_the_others_end, on_ranks, outcomes_on_ranks
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt.distributed.columns import Sharded
from torch_ggt.state import block

CASES = {}
"""What rank 1 does otherwise, and what each rank must say: (rank 0's words, rank 1's)."""


def case(zero, one=None):
    def remember(function):
        CASES[function.__name__] = function, (zero, zero if one is None else one)
        return function

    return remember


SKIPPED = "GGT skipped 1 step, and warned"


def skips(optimizer):
    return f"GGT skipped {optimizer.skipped} step, and warned" if optimizer._warned else "no warning"


def odd():
    """The rank that does something else."""
    return dist.get_rank() == 1


def give_gradients(parameters):
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)


def parameters_of(*shapes, dtype=torch.float32):
    return [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]


def first_step(parameters, **options):
    optimizer = GGT(parameters, process_group=dist.group.WORLD, **{"window": 5, **options})
    give_gradients(p for group in optimizer.param_groups for p in group["params"])
    optimizer.step()
    return optimizer


# ---- before the first step -------------------------------------------------------------------------------------------


@case("'parameters': 3")
def another_list():
    first_step(parameters_of((3, 2), (4,), *([(5,)] if odd() else [])))


@case("rank 0 has parameter 0 of its group of shape (3, 2)")
def another_shape():
    first_step(parameters_of((2, 3) if odd() else (3, 2), (4,)))


@case("torch.float64")
def another_dtype():
    first_step(parameters_of((3, 2), (4,), dtype=torch.float64 if odd() else torch.float32))


@case("'window': 5")
def another_window():
    first_step(parameters_of((3, 2)), window=7 if odd() else 5)


@case("'window_dtype': 'torch.bfloat16'")
def another_window_dtype():
    first_step(parameters_of((3, 2)), window_dtype=torch.bfloat16 if odd() else torch.float32)


@case("has failed", "with scope='model' they must agree")
def groups_that_disagree():
    first, second = parameters_of((3, 2), (4,))
    optimizer = GGT([{"params": [first]}, {"params": [second]}], process_group=dist.group.WORLD)
    if odd():
        optimizer.param_groups[1]["eps"] = 1.0
    give_gradients([first, second])
    optimizer.step()


@case("has failed. rank 1: RuntimeError: torch_ggt does not support sparse", "sparse gradients")
def a_sparse_gradient():
    parameters = parameters_of((3, 2), (4,))
    optimizer = GGT(parameters, process_group=dist.group.WORLD)
    give_gradients(parameters)
    if odd():
        parameters[1].grad = parameters[1].grad.to_sparse()
    optimizer.step()


@case("rank 1: OutOfMemoryError: nothing left", "nothing left")
def no_memory():
    original = block.allocate_window

    def full(*arguments, **options):
        raise torch.OutOfMemoryError("nothing left")

    block.allocate_window = full if odd() else original
    try:
        first_step(parameters_of((3, 2)))
    finally:
        block.allocate_window = original


# ---- later -----------------------------------------------------------------------------------------------------------


@case("rank 0 has a gradient for parameter 1 of its group, and rank 1 has none")
def no_gradient_at_first():
    parameters = parameters_of((3, 2), (4,))
    optimizer = GGT(parameters, process_group=dist.group.WORLD)
    give_gradients(parameters[:1] if odd() else parameters)
    optimizer.step()


@case(SKIPPED, "this rank has gradients for other parameters")
def no_gradient_later():
    parameters = parameters_of((3, 2), (4,))
    optimizer = first_step(parameters)
    if odd():
        parameters[1].grad = None
    optimizer.step()
    return skips(optimizer)


def convert(parameters, dtype):
    for p in parameters:
        p.grad = None
        p.data = p.data.to(dtype)
        p.grad = torch.ones_like(p)


@case(SKIPPED, "this rank has gradients for other parameters than in the step before, other dtypes")
def another_dtype_later():
    parameters = parameters_of((3, 2), (4,))
    optimizer = first_step(parameters)
    if odd():
        convert(parameters, torch.float64)
    optimizer.step()
    return skips(optimizer)


@case("torch.float64")
def other_dtypes_later():
    parameters = parameters_of((3, 2), (4,))
    optimizer = first_step(parameters)
    convert(parameters, torch.float64 if odd() else torch.bfloat16)
    optimizer.step()


@case("rank 0 has a gradient for parameter 0 of its group, and rank 1 has none")
def gradients_of_others():
    parameters = parameters_of((3, 2), (4,))
    optimizer = first_step(parameters)
    parameters[0 if odd() else 1].grad = None
    optimizer.step()


@case(SKIPPED, "this rank has gradients for other parameters")
def no_gradients_at_all():
    optimizer = first_step(parameters_of((3, 2), (4,)))
    if odd():
        optimizer.zero_grad()
    optimizer.step()
    return skips(optimizer)


@case(SKIPPED, "this rank has gradients for other parameters")
def a_late_parameter():
    parameters = parameters_of((3, 2), (4,))
    optimizer = GGT(parameters, scope="parameter", process_group=dist.group.WORLD)
    give_gradients(parameters[:1])
    optimizer.step()
    give_gradients(parameters if odd() else parameters[:1])
    optimizer.step()
    return skips(optimizer)


@case(SKIPPED, "this rank has gradients for other parameters")
def an_added_group():
    optimizer = first_step(parameters_of((3, 2)))
    if odd():
        more = parameters_of((4,))
        give_gradients(more)
        optimizer.add_param_group({"params": more})
    optimizer.step()
    return skips(optimizer)


@case("not finite on another rank", "the gradient of parameter 0 of its group")
def a_nan_that_raises():
    (parameter,) = parameters_of((6, 2))
    optimizer = first_step([parameter], nonfinite="raise")
    if odd():
        parameter.grad.fill_(torch.nan)
    optimizer.step()


# ---- loading ---------------------------------------------------------------------------------------------------------


def trained():
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)
    return model, optimizer


@case("ranks disagree: rank 0 has")
def loads_another_model():
    _, optimizer = trained()
    state = optimizer.state_dict()
    if odd():
        other = nn.Linear(3, 3).double()
        stranger = GGT([{"params": [other.weight]}, {"params": [other.bias]}], window=5)
        give_gradients(other.parameters())
        stranger.step()
        state = stranger.state_dict()
    optimizer.load_state_dict(state)


@case("is this the state of another model?")
def all_load_another_model():
    _, optimizer = trained()
    other = nn.Sequential(nn.Linear(7, 13), nn.Linear(13, 10), nn.Linear(10, 2)).double()
    groups = [{"params": list(other[0].parameters())}, {"params": list(other[1:].parameters())}]
    stranger = GGT(groups, window=5, process_group=dist.group.WORLD)
    give_gradients(other.parameters())
    stranger.step()
    optimizer.load_state_dict(stranger.state_dict())


@case("ranks disagree: rank 0 has")
def loads_nothing():
    _, optimizer = trained()
    state = optimizer.state_dict()
    optimizer.load_state_dict({"state": {}, "param_groups": state["param_groups"]} if odd() else state)


@case("'digest of the state'")
def loads_other_numbers():
    _, optimizer = trained()
    state = optimizer.state_dict()
    if odd():
        state["state"][0]["skipped"] = state["state"][0]["skipped"] + 1
    optimizer.load_state_dict(state)


@case("hold 42 of the 84 elements")
def part_of_the_ranks():
    model, _ = make("fsdp")
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    optimizer = GGT(model.parameters(), process_group=groups[dist.get_rank()])
    compute_gradients("fsdp", model, 0)
    optimizer.step()


@case("was destroyed")
def destroyed_subgroup():
    group = dist.new_group([0, 1])
    model = Model().double()
    optimizer = GGT(model.parameters(), window=5, process_group=group)
    give_gradients(model.parameters())
    optimizer.step()
    dist.barrier()
    dist.destroy_process_group(group)
    optimizer.step()


@case("process_group must be a torch.distributed.ProcessGroup, 'world' or None, got 'gloo'")
def no_group():
    GGT(parameters_of((2,)), process_group="gloo")


def run_cases():
    """{case: what it raised}; and after each of them the ranks are still in step."""
    found = {}
    for name, (function, _) in CASES.items():
        try:
            found[name] = str(function())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        together = torch.tensor([1.0, dist.get_rank()])
        dist.all_reduce(together)
        found[name] += "" if together.tolist() == [2.0, 1.0] else " AND THE RANKS ARE OUT OF STEP"
    return found


@pytest.fixture(scope="module")
def raised():
    return on_ranks(2, run_cases)  # who waits for a timeout ends with gloo's words, and not with ours


@pytest.mark.parametrize("name", CASES)
def test_an_error_on_every_rank(raised, name):
    _, words = CASES[name]
    for by_rank, expected in zip(raised, words, strict=True):
        assert by_rank[name].startswith(SKIPPED) or "torch_ggt" in by_rank[name] or name.startswith("no_memory")
        assert expected in by_rank[name]
        assert "OUT OF STEP" not in by_rank[name]


def fail_and_go_on():
    """A step that fails on one rank leaves no trace on any: a run with such a step is a run without it."""
    ends = []
    for trouble in (False, True):
        model, optimizer = make("ddp")
        train("ddp", model, optimizer, 0, 3)
        if trouble:
            compute_gradients("ddp", model, 99)
            kept = [p.grad for p in model.parameters()]
            if odd():
                model.module.first.bias.grad = None
            with pytest.raises(RuntimeError, match="ranks disagree") if odd() else pytest.warns(match="GGT skipped"):
                optimizer.step()
            assert optimizer.skipped == 1
            for parameter, gradient in zip(model.parameters(), kept, strict=True):
                parameter.grad = gradient
        train("ddp", model, optimizer, 3, 9)
        ends.append(whole_parameters(model))
    return all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_step_that_failed_leaves_no_trace():
    assert on_ranks(2, fail_and_go_on) == [True, True]


def destroyed():
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)
    compute_gradients("ddp", model, 2)
    dist.barrier()
    dist.destroy_process_group()
    optimizer.step()


def test_a_group_that_was_destroyed():
    for kind, value in outcomes_on_ranks(2, destroyed):
        assert kind == "raised"
        assert "destroyed" in value.splitlines()[0]


def dying_in_a_step(when):
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)
    compute_gradients("ddp", model, 2)
    if odd():
        setattr(Sharded, when, lambda *_: os._exit(9))
    started = time.monotonic()
    try:
        optimizer.step()
    except RuntimeError as error:
        return time.monotonic() - started, str(error)


@pytest.mark.parametrize(("ranks", "when"), [(2, "total"), (2, "share"), (4, "total"), (4, "share")])
def test_a_rank_that_dies_in_a_step(ranks, when):
    """Before the sums, or between the sums and the all-gather."""
    assert_the_others_end(outcomes_on_ranks(ranks, dying_in_a_step, when))
