"""The one table of options: what a YAML file holds is accepted, and nonsense in mid-run changes nothing."""

import copy
import math

import pytest
import torch
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT


def trained(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    optimizer = GGT(groups, **{"lr": 1e-2, "window": 4, **options})
    for step in range(6):
        give_gradients(model, step)
        optimizer.step()
    return model, optimizer


def give_gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def everything(model, optimizer):
    state = {(i, k): v.clone() for i, e in optimizer.state_dict()["state"].items() for k, v in e.items()}
    return {**state, **{name: p.detach().clone() for name, p in model.named_parameters()}}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_words_and_numbers_of_a_yaml_file():
    words = {
        **{"lr": "1e-2", "betas": ["0.9", 0.99], "eps": "1e-8", "weight_decay": "0", "window": "4"},
        **{"window_dtype": "bfloat16", "jitter": "1e-6", "sgd_scale": "0.0"},
    }
    numbers = {"betas": (0.9, 0.99), "window_dtype": torch.bfloat16}
    (model, optimizer), (twin, other) = trained(**words), trained(**numbers)
    assert same(everything(model, optimizer), everything(twin, other))
    assert optimizer.param_groups[0]["window_dtype"] is torch.bfloat16
    assert optimizer.param_groups[0]["lr"] == 0.01
    with pytest.raises(ValueError, match="got window_dtype='bfloat61'"):
        GGT([nn.Parameter(torch.ones(2))], window_dtype="bfloat61")


def test_none_is_the_dtype_it_stands_for():
    model, optimizer = trained()
    twin, other = trained(window_dtype=torch.float32)
    other.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["window_dtype"] = "float32"  # in mid-run, too
    optimizer.param_groups[1]["window_dtype"] = torch.float32
    for run in ((model, optimizer), (twin, other)):
        give_gradients(run[0], 7)
        run[1].step()
    assert same(everything(model, optimizer), everything(twin, other))


NONSENSE = [
    {"lr": math.nan},
    {"lr": "fast"},
    {"eps": -1.0},
    {"weight_decay": math.inf},
    {"betas": (1.5, 1.0)},
    {"jitter": 1e-30},
    {"solver": "svd"},
    {"scope": "layer"},
    {"finish": "polish"},
    {"window": 7},
    {"window_dtype": torch.bfloat16},
    {"history": "gradient"},
    {"scope": "parameter"},
    {"nesterov": "yes"},
    {"nonfinite": None},
]


@pytest.mark.parametrize("change", NONSENSE, ids=str)
def test_nonsense_in_mid_run_is_an_error_and_changes_nothing(change):
    model, optimizer = trained()
    before = everything(model, optimizer)
    options = [dict(group) for group in optimizer.param_groups]
    give_gradients(model, 7)
    for group in optimizer.param_groups:
        group.update(change)
    for _ in range(2):  # it does not go away by itself
        with pytest.raises((ValueError, TypeError), match=next(iter(change))):
            optimizer.step()
    assert same(everything(model, optimizer), before)
    for group, original in zip(optimizer.param_groups, options, strict=True):
        group.update(original)
    optimizer.step()
    assert not same(everything(model, optimizer), before)


@pytest.mark.parametrize("change", [{"eps": -1.0}, {"betas": (0.9, 7.0)}, {"solver": "svd"}, {"lr": math.nan}], ids=str)
def test_nonsense_in_a_saved_state_is_refused_and_changes_nothing(change):
    model, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    give_gradients(model, 7)
    optimizer.step()
    before, options = everything(model, optimizer), copy.deepcopy(optimizer.state_dict()["param_groups"])
    for group in saved["param_groups"]:
        group.update(change)
    with pytest.raises(ValueError, match=next(iter(change))):
        optimizer.load_state_dict(saved)
    assert same(everything(model, optimizer), before)
    assert optimizer.state_dict()["param_groups"] == options


def test_a_damaged_state_is_refused_and_changes_nothing():
    model, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    give_gradients(model, 7)
    optimizer.step()
    before = everything(model, optimizer)
    saved["state"][1]["window"] *= 2
    with pytest.raises(ValueError, match="damaged or lost"):
        optimizer.load_state_dict(saved)
    assert same(everything(model, optimizer), before)


def test_a_state_dict_is_a_snapshot_in_all_its_parts():
    model, optimizer = trained()
    held = optimizer.state_dict()
    before = copy.deepcopy(held["state"])
    give_gradients(model, 7)
    optimizer.step()
    assert all(torch.equal(held["state"][i][key], value) for i, entry in before.items() for key, value in entry.items())


def test_loading_takes_the_memory_of_one_window():
    """The flat tensors of the live state are used again."""
    model, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    (block,) = optimizer.attached_blocks()
    rows = block.window.rows
    give_gradients(model, 7)
    optimizer.step()
    optimizer.load_state_dict(saved)
    (block,) = optimizer.attached_blocks()
    assert block.window.rows is rows
    assert torch.equal(optimizer.state[model[0].weight]["window"], saved["state"][0]["window"])
