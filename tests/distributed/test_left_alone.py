"""A rank that is left alone ends with an error by the timeout of its group, and says where it was."""

import datetime
import time

import pytest
import torch
import torch.distributed as dist
from ranks import outcomes_on_ranks
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import step

SECONDS = 2  # the timeout of the group
LONGEST = 20  # and what a busy machine may add


def fail_after_the_sum(block, taken):
    raise MemoryError("no room on this rank")


def load_alone(optimizer, saved):
    """Rank 1 does not load: it has gone on to something else, without a collective."""
    if dist.get_rank() == 0:
        optimizer.load_state_dict(saved)


def load_while_the_other_steps(optimizer, saved):
    if dist.get_rank() == 0:
        optimizer.load_state_dict(saved)
    else:
        optimizer.step()


def step_alone(optimizer, saved):
    if dist.get_rank() == 0:
        optimizer.step()


def error_after_the_sum(optimizer, saved):
    if dist.get_rank() == 1:
        step.push = fail_after_the_sum
    optimizer.step()


def left_alone(work):
    """(seconds, the error in words with its notes, whether state and options are what they were) of this rank."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=SECONDS))
    parameters = [nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(5))]
    optimizer = GGT(parameters, window=4, process_group=group)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = optimizer.state_dict()
    before = {key: value.clone() for entry in optimizer.state.values() for key, value in entry.items()}
    start, words = time.perf_counter(), None
    try:
        work(optimizer, saved)
    except Exception as error:
        words = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    seconds = time.perf_counter() - start
    after = {key: value for entry in optimizer.state.values() for key, value in entry.items()}
    dist.barrier()  # of the other group, which works: nobody ends before the other has its error
    return seconds, words, all(torch.equal(before[key], after[key]) for key in before)


SAID = {  # what rank 0 says, and what rank 1 says
    load_alone: (["the exchange when state is made or loaded", "rank 0 of 2", "Ranks 1 failed"], None),
    load_while_the_other_steps: (["made or loaded", "Ranks 1 failed"], ["a sum over all ranks", "rank 1 of 2"]),
    step_alone: (["Timed out", "a sum over all ranks", "rank 0 of 2"], None),
    error_after_the_sum: (["the exchange of changed parameters (they may differ"], ["no room on this rank"]),
}


@pytest.mark.parametrize("work", SAID, ids=lambda work: work.__name__)
def test_whoever_is_left_ends_with_an_error(work):
    outcomes = outcomes_on_ranks(2, left_alone, work)
    for (kind, value), said in zip(outcomes, SAID[work], strict=True):
        assert kind == "returned", value
        seconds, words, unchanged = value
        assert seconds < SECONDS + LONGEST
        if said is None:
            assert words is None
            continue
        assert all(part in words for part in said), words
        assert unchanged or work is error_after_the_sum  # rank 0 has made its own part of the step
