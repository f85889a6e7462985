"""Saving, loading, copying: an interrupted run continues bit by bit."""

import copy
import io
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT

WINDOW = 5
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
OPTIONS = [
    {},
    {"history": "gradient", "betas": (0.9, 0.99)},
    {"scope": "parameter", "solver": "cholesky"},
    {"scope": "group", "nesterov": True, "weight_decay": 0.1},
]


def make(options, window_dtype=None, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 2e-2}]
    return model, GGT(groups, lr=1e-2, window=WINDOW, window_dtype=window_dtype, **options)


def train(model, optimizer, start, stop):
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(6, 3, generator=generator).to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        model(x).square().sum().backward()
        if step == 4:
            model[2].bias.grad = None
        optimizer.step()


def assert_same(a, b):
    for p, q in zip(a[0].parameters(), b[0].parameters(), strict=True):
        assert torch.equal(p, q)
    flat_a, flat_b = (tensors_of(pair[1].state_dict()["state"]) for pair in (a, b))
    assert flat_a.keys() == flat_b.keys()
    for key, tensor in flat_a.items():
        assert tensor.dtype == flat_b[key].dtype, key
        assert torch.equal(tensor, flat_b[key]), key


def tensors_of(state):
    return {(index, key): value for index, entry in state.items() for key, value in entry.items()}


def through_torch_save(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("window_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_resume_in_mid_window_is_bitwise(options, window_dtype, dtype):
    uninterrupted = make(options, window_dtype, dtype)
    train(*uninterrupted, 0, 17)
    first = make(options, window_dtype, dtype)
    train(*first, 0, 8)
    model_state, optimizer_state = through_torch_save([first[0].state_dict(), first[1].state_dict()])
    resumed = make(options, window_dtype, dtype)
    resumed[0].load_state_dict(model_state)
    resumed[1].load_state_dict(optimizer_state)
    assert_same(first, resumed)
    train(*resumed, 8, 17)
    assert_same(uninterrupted, resumed)


SCRIPT = """
    import itertools, pathlib, sys, torch
    tests, folder, source, target, start, stop = sys.argv[1:]
    sys.path.insert(0, tests)
    torch.set_num_threads(1)
    from test_state import DTYPES, OPTIONS, make, train
    for index, case in enumerate(itertools.product(OPTIONS, DTYPES, DTYPES)):
        model, optimizer = make(*case)
        if source != "-":
            saved = torch.load(pathlib.Path(folder) / f"{source}-{index}.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        train(model, optimizer, int(start), int(stop))
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            pathlib.Path(folder) / f"{target}-{index}.pt",
        )
"""


def test_resume_in_a_new_process_is_bitwise(tmp_path):
    """Every window dtype × parameter dtype × kind of state, each of the three parts in a process of its own."""

    def run(*arguments):
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(Path(__file__).parent), str(tmp_path)]
        subprocess.run([*command, *map(str, arguments)], check=True)

    run("-", "whole", 0, 17)
    run("-", "half", 0, 8)
    run("half", "resumed", 8, 17)
    for index in range(len(OPTIONS) * len(DTYPES) ** 2):
        whole, resumed = (
            torch.load(tmp_path / f"{name}-{index}.pt", weights_only=True) for name in ("whole", "resumed")
        )
        for key, value in whole["model"].items():
            assert torch.equal(value, resumed["model"][key])
        ours, theirs = tensors_of(whole["optimizer"]["state"]), tensors_of(resumed["optimizer"]["state"])
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pickle_and_deepcopy_continue_alike(options):
    original = make(options, torch.bfloat16)
    train(*original, 0, 8)
    pickled = pickle.loads(pickle.dumps(original))
    copied = copy.deepcopy(original)
    for twin in (pickled, copied):
        assert_same(original, twin)
    for run in (original, pickled, copied):
        train(*run, 8, 17)
    assert_same(original, pickled)
    assert_same(original, copied)


def test_copies_share_no_memory():
    original = make({})
    train(*original, 0, 3)
    twin = copy.deepcopy(original)
    loaded = make({})
    loaded[1].load_state_dict(original[1].state_dict())
    before = {key: value.clone() for key, value in tensors_of(loaded[1].state_dict()["state"]).items()}
    train(*original, 3, 6)
    for other in (twin, loaded):
        assert int(other[1].state[other[0][0].weight]["count"]) == 3
    after = tensors_of(loaded[1].state_dict()["state"])
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_saved_size_is_one_window():
    p = nn.Parameter(torch.zeros(50_000))
    q = nn.Parameter(torch.zeros(50_000))
    optimizer = GGT([p, q], window=10)
    p.grad, q.grad = torch.ones(50_000), torch.ones(50_000)
    optimizer.step()
    row = 100_000 * 4
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    assert buffer.tell() < 12.1 * row  # ten rows, momentum, and sums
    assert len(pickle.dumps(optimizer)) < 15 * row  # the parameters are in it, too


def test_every_state_tensor_keeps_its_dtype():
    model, optimizer = make({}, torch.bfloat16, torch.float64)
    train(model, optimizer, 0, 3)
    optimizer.state[model[0].weight]["skipped"].fill_(1_000_001)  # bf16 or float32 would round it
    twin_model, twin = make({}, torch.bfloat16, torch.float64)
    twin.load_state_dict(through_torch_save(optimizer.state_dict()))
    entry = twin.state[twin_model[0].weight]
    kinds = {key: value.dtype for key, value in entry.items()}
    assert kinds == {
        "window": torch.bfloat16,
        "momentum_buffer": torch.float32,
        "gram": torch.float64,
        "decay": torch.float64,
        "momentum": torch.float64,
        "position": torch.int64,
        "count": torch.int64,
        "skipped": torch.int64,
    }
    assert twin.skipped == 1_000_001


def test_state_per_parameter_is_a_view_of_the_flat_window():
    model, optimizer = make({})
    train(model, optimizer, 0, 2)
    windows = [optimizer.state[p]["window"] for p in model.parameters()]
    assert [tuple(w.shape) for w in windows] == [(WINDOW, *p.shape) for p in model.parameters()]
    assert len({w.untyped_storage().data_ptr() for w in windows}) == 1


def test_replaced_state_is_adopted():
    """Offload loops put other tensors into the state: their values count from then on."""
    plain, offloaded = make({}), make({})
    train(*plain, 0, 5)
    train(*offloaded, 0, 5)
    for entry in offloaded[1].state.values():
        for key, value in entry.items():
            entry[key] = value.clone()
    train(*plain, 5, 12)
    train(*offloaded, 5, 12)
    assert_same(plain, offloaded)


def test_replaced_entries_are_adopted():
    """Some trainers replace the whole dictionary of a parameter."""
    plain, moved = make({}), make({})
    train(*plain, 0, 5)
    train(*moved, 0, 5)
    for parameter, entry in list(moved[1].state.items()):
        moved[1].state[parameter] = {key: value.clone() for key, value in entry.items()}
    train(*plain, 5, 12)
    train(*moved, 5, 12)
    assert_same(plain, moved)


def test_cleared_state_starts_afresh():
    model, optimizer = make({})
    train(model, optimizer, 0, 5)
    optimizer.state.clear()
    train(model, optimizer, 5, 7)
    assert int(optimizer.state[model[0].weight]["count"]) == 2


def test_unpickled_optimizers_take_on_new_parameters():
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    optimizer = GGT([p, q], window=WINDOW)
    for _ in range(2):  # before the first step, and with one parameter still without state
        optimizer = pickle.loads(pickle.dumps(optimizer))
        p, q = optimizer.param_groups[0]["params"]
        p.grad = torch.ones(3)
        optimizer.step()
    q.grad = torch.ones(2)
    optimizer.step()
    assert (q < 1).all()


def gram_error(optimizer):
    (block,) = optimizer.attached_blocks()
    rows = block.window.rows.double()
    return (block.window.gram - rows @ rows.T).abs().max().item()


def test_lost_state_of_one_parameter_does_not_leave_a_wrong_gram():
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    optimizer = GGT([p, q], window=4)

    def step():
        p.grad, q.grad = torch.randn(3), torch.randn(2)
        optimizer.step()

    for _ in range(3):
        step()
    saved = copy.deepcopy(optimizer.state_dict())
    del optimizer.state[q]
    step()
    assert gram_error(optimizer) < 1e-12
    del saved["state"][1]
    with pytest.raises(ValueError, match="damaged or lost"):  # in a file it is no wish of anybody
        optimizer.load_state_dict(saved)
    step()
    assert gram_error(optimizer) < 1e-12


@pytest.mark.parametrize("lost", ["gram", "decay", "position"])
def test_an_incomplete_state_dict_is_refused_and_changes_nothing(lost):
    model, optimizer = make({})
    train(model, optimizer, 0, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][0][lost]
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="incomplete"):
        optimizer.load_state_dict(saved)
    ours, theirs = tensors_of(before["state"]), tensors_of(optimizer.state_dict()["state"])
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    train(model, optimizer, 3, 5)


def test_a_model_that_became_wider_keeps_the_rows_that_it_has():
    parameter = torch.nn.Parameter(torch.zeros(6))
    optimizer = GGT([parameter], window=3)
    parameter.grad = torch.randn(6)
    optimizer.step()
    parameter.grad, parameter.data = None, parameter.data.double()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    parameter.grad = torch.randn(6, dtype=torch.float64)
    optimizer.step()
    assert optimizer.state[parameter]["window"].dtype == torch.float32
    assert int(optimizer.state[parameter]["count"]) == 2


def test_looking_does_not_make_state():
    model, optimizer = make({})
    model(torch.ones(1, 3)).sum().backward()
    assert optimizer.spectrum() == []
    assert not optimizer.state


def test_late_parameters_resume_bitwise():
    """Columns are in the order of the parameters, whenever they came: the sums are the same after loading."""

    def unfreezing(optimizer_pair, start, stop):
        model, optimizer = optimizer_pair
        for step in range(start, stop):
            model[0].requires_grad_(step >= 4)
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            model(torch.randn(6, 3, generator=generator)).square().sum().backward()
            optimizer.step()

    whole, first, resumed = make({}), make({}), make({})
    unfreezing(whole, 0, 15)
    unfreezing(first, 0, 8)
    resumed[0].load_state_dict(first[0].state_dict())
    resumed[1].load_state_dict(through_torch_save(first[1].state_dict()))
    unfreezing(resumed, 8, 15)
    assert_same(whole, resumed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 7}, "window=5 and this optimizer has window=7"),
        ({"history": "gradient"}, "history='momentum'"),
        ({"scope": "parameter"}, "scope='model'"),
        ({"window_dtype": torch.bfloat16}, "window_dtype=None"),
    ],
)
def test_another_structure_is_refused_and_changes_nothing(change, message):
    model, optimizer = make({})
    train(model, optimizer, 0, 3)
    torch.manual_seed(0)
    other_model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    groups = [{"params": other_model[0].parameters()}, {"params": other_model[2].parameters()}]
    other = GGT(groups, **{"lr": 1e-3, "window": WINDOW, **change})
    train(other_model, other, 0, 2)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(optimizer.state_dict())
    after = other.state_dict()
    assert after["param_groups"] == before["param_groups"]
    ours, theirs = tensors_of(before["state"]), tensors_of(after["state"])
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    train(other_model, other, 2, 4)  # and it still works


def test_another_layout_of_groups_is_torchs_error():
    model, optimizer = make({})
    train(model, optimizer, 0, 3)
    single = GGT(model.parameters(), window=WINDOW)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        single.load_state_dict(optimizer.state_dict())
    assert not single.state


def test_states_that_are_not_ours_are_refused():
    model, optimizer = make({})
    train(model, optimizer, 0, 2)
    adam = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    with pytest.raises(ValueError, match="not the state of a GGT"):
        optimizer.load_state_dict(adam.state_dict())
    newer = copy.deepcopy(optimizer.state_dict())
    for group in newer["param_groups"]:
        group["ggt_format"] = 99
    with pytest.raises(ValueError, match="upgrade torch-ggt"):
        optimizer.load_state_dict(newer)
    other_model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    other = GGT([{"params": other_model[0].parameters()}, {"params": other_model[2].parameters()}], window=WINDOW)
    with pytest.raises(ValueError, match="another model"):
        other.load_state_dict(optimizer.state_dict())


def test_rows_without_their_gram_are_an_error():
    model, optimizer = make({})
    train(model, optimizer, 0, 2)
    for entry in optimizer.state.values():
        entry.pop("gram", None)
    with pytest.raises(RuntimeError, match="not its Gram"):
        train(model, optimizer, 2, 3)


def test_dry_run_step_leaves_no_trace():
    """torch.distributed.checkpoint makes a step with zero gradients and lr = 0 to learn the layout of the state."""
    dry, plain = make({}), make({})
    for p in dry[0].parameters():
        p.grad = torch.zeros_like(p)
    rates = [group["lr"] for group in dry[1].param_groups]
    for group in dry[1].param_groups:
        group["lr"] = 0.0
    dry[1].step()
    for group, lr in zip(dry[1].param_groups, rates, strict=True):
        group["lr"] = lr
    assert int(dry[1].state[dry[0][0].weight]["count"]) == 0
    train(*dry, 0, 9)
    train(*plain, 0, 9)
    assert_same(dry, plain)


def test_torch_distributed_checkpoint_state_dict_api():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    whole, first, resumed = make({}), make({}), make({})
    train(*whole, 0, 12)
    train(*first, 0, 6)
    resumed[0].load_state_dict(first[0].state_dict())
    set_optimizer_state_dict(*resumed, get_optimizer_state_dict(*first))
    train(*resumed, 6, 12)
    assert_same(whole, resumed)
