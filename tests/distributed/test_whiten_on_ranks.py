"""whiten on several ranks is whiten in one process, and its checkpoints load on another number of ranks."""

import copy

import pytest
import torch
from modes import distance, make, train, whole_parameters
from ranks import on_ranks
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

from torch_ggt import whiten

STEPS, MORE = 24, 6
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def whitened_adamw(groups, *, lr, window, scope, process_group=None):
    return whiten(torch.optim.AdamW(groups, lr=lr), window=window, scope=scope, process_group=process_group)


def whitened_pair(groups, *, lr, window, scope, process_group=None):
    """Two optimizers that share one window; as one object, so that `train` can step it."""
    parts = [
        torch.optim.AdamW(groups[:1], lr=lr),
        torch.optim.SGD([{"params": groups[1]["params"]}], lr=lr, momentum=0.9),
    ]
    return Both(whiten(*parts, window=window, scope=scope, process_group=process_group))


class Both:
    def __init__(self, optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def trajectories(modes, dtype):
    """{(mode, scope): parameters}, for one optimizer and for a pair."""
    found = {}
    for mode in modes:
        for scope, kind in (("model", whitened_adamw), ("parameter", whitened_adamw), ("model", whitened_pair)):
            model, optimizer = make(mode, dtype, scope, kind)
            train(mode, model, optimizer, 0, STEPS)
            found[mode, scope, kind.__name__] = whole_parameters(model)
    return found


@pytest.mark.parametrize(
    ("ranks", "modes", "dtype"),
    [
        (2, ("ddp-scalar", "fsdp", "tp", "mixed-split"), torch.float64),
        (4, ("ddp-scalar", "hsdp"), torch.float64),
        (2, ("ddp-scalar", "fsdp"), torch.float32),
    ],
)
def test_ranks_are_one_process(ranks, modes, dtype):
    results = on_ranks(ranks, trajectories, modes, dtype)
    expected = trajectories(("single", "single-scalar"), dtype)
    for (mode, scope, kind), parameters in results[0].items():
        alone = expected["single-scalar" if "scalar" in mode else "single", scope, kind]
        assert distance(parameters, alone) < (1e-9 if dtype == torch.float64 else 1e-4), (mode, scope, kind)
        for other in results[1:]:
            assert all(torch.equal(parameters[name], other[mode, scope, kind][name]) for name in parameters)


def saved_on_ranks(mode):
    """The parameters and the whole state after STEPS steps, and the parameters after MORE."""
    model, optimizer = make(mode, kind_of_optimizer=whitened_adamw)
    train(mode, model, optimizer, 0, STEPS)
    there = whole_parameters(model)
    if mode == "ddp":
        optimizer.whitening.consolidate_state_dict(to=0)
        state = optimizer.state_dict()
        state = state if torch.distributed.get_rank() == 0 else None
    else:
        state = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    state = copy.deepcopy(state)
    train(mode, model, optimizer, STEPS, STEPS + MORE)
    return there, state, whole_parameters(model)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_ranks_continues_in_one_process(mode):
    there, state, expected = on_ranks(2, saved_on_ranks, mode)[0]
    model, optimizer = make("single", kind_of_optimizer=whitened_adamw)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(there[name])
    if mode == "ddp":
        optimizer.load_state_dict(state)
    else:
        set_optimizer_state_dict(model, optimizer, state, options=WHOLE)
    train("single", model, optimizer, STEPS, STEPS + MORE)
    assert distance(whole_parameters(model), expected) < 1e-9


def load_the_part_of_another():
    model, optimizer = make("ddp", kind_of_optimizer=whitened_adamw)
    train("ddp", model, optimizer, 0, 3)
    rank = torch.distributed.get_rank()
    parts = [None, None]
    torch.distributed.all_gather_object(parts, optimizer.state_dict()["ggt_part"])
    state = {**optimizer.state_dict(), "ggt_part": parts[1 - rank]}
    with pytest.raises(ValueError, match=rf"part of rank {1 - rank} of 2, and this is rank {rank}"):
        optimizer.load_state_dict(state)
    optimizer.load_state_dict(optimizer.state_dict())
    train("ddp", model, optimizer, 3, 5)
    return parts


def test_the_part_of_another_rank_is_refused():
    assert on_ranks(2, load_the_part_of_another)[0] == [{"rank": 0, "ranks": 2}, {"rank": 1, "ranks": 2}]
