"""The state of a split window: plain tensors while it lives, DTensors of their own when it is saved."""

import collections
import copy
import io
import multiprocessing
import pickle
import threading
import weakref

import pytest
import torch
import torch.distributed as dist
from modes import distance, make, train, whole_parameters
from ranks import on_ranks
from torch.distributed.tensor import DTensor

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT

MODES = ("ddp", "fsdp")
PARTS = ("window", "momentum_buffer")


def through_torch_save(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def echo(connection):
    connection.send_bytes(connection.recv_bytes())


def through_spawn(state):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=echo, args=(there,))
    process.start()
    here.send_bytes(pickle.dumps(state))
    found = pickle.loads(here.recv_bytes())
    process.join()
    return found


WAYS = {
    "torch.save": through_torch_save,
    "deepcopy": copy.deepcopy,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "spawn": through_spawn,
}


def save_and_resume():
    """{(mode, way): whether the run goes on bit by bit}, and what of the state is not as it should be."""
    found, wrong = {}, []
    for mode in MODES:
        model, optimizer = make(mode)
        train(mode, model, optimizer, 0, 6)
        wrong += [key for e in optimizer.state.values() for key, v in e.items() if type(v) is not torch.Tensor]
        state, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
        for entry in state["state"].values():
            for key in PARTS:
                wrong += [] if isinstance(entry[key], DTensor) else [key]
                own = entry[key].to_local()
                wrong += [] if own.untyped_storage().nbytes() == own.nbytes else [f"{key} shares its storage"]
        copies = {way: function(state) for way, function in WAYS.items()}
        train(mode, model, optimizer, 6, 10)
        expected = whole_parameters(model)
        for way, kept in copies.items():
            other, resumed = make(mode)
            other.load_state_dict(weights)
            resumed.load_state_dict(kept)
            train(mode, other, resumed, 6, 10)
            ours = whole_parameters(other)
            found[mode, way] = all(torch.equal(ours[name], expected[name]) for name in expected)
    return found, wrong


def test_every_way_to_save_works_in_every_mode():
    for found, wrong in on_ranks(2, save_and_resume):
        assert wrong == []
        assert found == {(mode, way): True for mode in MODES for way in WAYS}


def save_parts(folder):
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 6)
    torch.save(optimizer.state_dict(), folder / f"{dist.get_rank()}.pt")
    optimizer.consolidate_state_dict(to=1)
    whole = optimizer.state_dict()
    if dist.get_rank() == 1:
        torch.save({"model": model.module.state_dict(), "optimizer": whole}, folder / "whole.pt")
    train("ddp", model, optimizer, 6, 10)
    after = optimizer.state_dict()
    with pytest.raises(ValueError, match="a rank from 0 to 1, got to=2"):
        optimizer.consolidate_state_dict(to=2)
    return whole_parameters(model), "ggt_part" in whole, "ggt_part" in after


def load_part_of_the_other(folder):
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)
    before = whole_parameters(model)
    message = ""
    try:
        optimizer.load_state_dict(torch.load(folder / f"{1 - dist.get_rank()}.pt", weights_only=True))
    except ValueError as error:
        message = str(error)
    train("ddp", model, optimizer, 2, 3)  # it still works
    return message, distance(before, whole_parameters(model)) > 0


def continue_whole(folder):
    model, optimizer = make("ddp")
    kept = torch.load(folder / "whole.pt", weights_only=True)
    model.module.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    train("ddp", model, optimizer, 6, 10)
    return whole_parameters(model)


def test_parts_say_whose_they_are_and_a_consolidated_state_loads_anywhere(tmp_path):
    (expected, *zero), (_, *one) = on_ranks(2, save_parts, tmp_path)
    assert zero == [True, True]
    assert one == [False, True]  # rank 1 asked for the whole, until its next step

    for rank, (message, goes_on) in enumerate(on_ranks(2, load_part_of_the_other, tmp_path)):
        assert f"the part of rank {1 - rank} of 2, and this is rank {rank} of 2" in message
        assert "consolidate_state_dict(to=0)" in message
        assert goes_on

    model, optimizer = make("single")
    kept = torch.load(tmp_path / "0.pt", weights_only=True)
    with pytest.raises(ValueError, match="the part of rank 0 of 2, and this process has all columns"):
        optimizer.load_state_dict(kept)
    assert not optimizer.state

    kept = torch.load(tmp_path / "whole.pt", weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    train("single", model, optimizer, 6, 10)
    assert distance(whole_parameters(model), expected) < 1e-9
    for parameters in on_ranks(2, continue_whole, tmp_path):
        assert distance(parameters, expected) < 1e-9


def pickled_optimizer():
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 3)
    return pickle.dumps(optimizer)


def test_a_pickled_part_of_an_optimizer_says_so():
    for rank, data in enumerate(on_ranks(2, pickled_optimizer)):
        optimizer = pickle.loads(data)
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad = torch.ones_like(p)
        for act in (optimizer.step, optimizer.state_dict):
            with pytest.raises(RuntimeError, match=f"pickled by rank {rank} of 2"):
                act()


def test_consolidating_in_one_process_is_the_state_dict():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = GGT([p], window=3)
    p.grad = torch.ones(3)
    optimizer.step()
    optimizer.consolidate_state_dict()
    assert torch.equal(optimizer.state_dict()["state"][0]["gram"], optimizer.state[p]["gram"])


def who_frees_tensors():
    """How many of the tensors that steps give to collectives each thread has freed at the end of the last step."""
    freed, this_thread = collections.Counter(), threading.get_ident()
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 2)

    def watched(collective):
        def call(*tensors, **options):
            for tensor in tensors:
                weakref.finalize(tensor, lambda: freed.update([threading.get_ident() == this_thread]))
            return collective(*tensors, **options)

        return call

    for name in {"all_reduce", "all_gather_into_tensor", "all_gather_single"} & set(dir(dist)):
        setattr(dist, name, watched(getattr(dist, name)))
    train("ddp", model, optimizer, 2, 150)
    return freed


def test_no_thread_of_gloo_holds_a_tensor_after_a_step():
    """A thread that drops a tensor while Python shuts down aborts the process, also after it has left its group."""
    for freed in on_ranks(2, who_frees_tensors):
        assert freed[True] == 3 * 148
        assert freed[False] == 0
