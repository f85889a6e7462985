"""Rows of integers that are split over ranks: the step is the step of the rows as stored, and the state moves."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
from modes import make, train, whole_parameters
from ranks import on_ranks
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt.reference import inverse_root
from torch_ggt.state.rows import numbers_of

MODES = ("ddp", "fsdp", "tp")


def whole_rows(optimizer, slots):
    """All columns of the window as numbers, in float64; only a parameter that is not split has integers in the file."""
    state, parts = optimizer.state_dict()["state"], []
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for entry, parameter in zip(state.values(), parameters, strict=True):
        part = numbers_of(optimizer.param_groups[0], entry, parameter.shape).get("window", entry["window"])
        part = part.full_tensor() if hasattr(part, "full_tensor") else part
        parts.append(part.reshape(len(part), -1).double())
    return torch.cat(parts, 1)[slots]


def run(name):
    found = {}
    for mode in MODES:
        options = {"dtype": torch.float32, "window_dtype": name, "betas": (0.9, 1.0), "jitter": 1e-3, "eps": 1e-4}
        model, optimizer = make(mode, adjust_lr_fn="original", **options)
        for group in optimizer.param_groups:
            group.update(lr=1.0, weight_decay=0.0)
        train(mode, model, optimizer, 0, 6)
        before = copy.deepcopy(whole_parameters(model))
        train(mode, model, optimizer, 6, 7)
        after = whole_parameters(model)
        names = [n for n in after if n.startswith(("first", "module.first"))]
        names += [n for n in after if n not in names]  # the order of the param groups
        step = torch.cat([(before[n] - after[n]).flatten().double() for n in names])
        rows = whole_rows(optimizer, [(6 - age) % 5 for age in range(5)])
        expected = inverse_root(rows.T, rows[0], eps=1e-4, jitter=1e-3)
        state = optimizer.state_dict()["state"].values()
        v = [getattr(e["momentum_buffer"], "full_tensor", lambda e=e: e["momentum_buffer"])() for e in state]
        v = torch.cat([part.flatten().double() for part in v])
        expected += (expected @ rows[0]) / (rows[0] @ rows[0]) * (v - rows[0])
        found[mode, "error"] = float((step - expected).norm() / expected.norm())
        found[mode, "resumes"] = resumes(mode, model, optimizer, options)
    return found


def resumes(mode, model, optimizer, options):
    """Whether a run goes on bit by bit after torch.save, and after torch.distributed.checkpoint's tools."""
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    of_tools, weights = get_optimizer_state_dict(model, optimizer), copy.deepcopy(model.state_dict())
    train(mode, model, optimizer, 7, 10)
    expected, alike = whole_parameters(model), []
    for way in ("torch.save", "tools"):
        other, resumed = make(mode, adjust_lr_fn="original", **options)
        other.load_state_dict(weights)
        if way == "tools":
            set_optimizer_state_dict(other, resumed, of_tools)
        else:
            buffer.seek(0)
            resumed.load_state_dict(torch.load(buffer, weights_only=True))
        train(mode, other, resumed, 7, 10)
        ours = whole_parameters(other)
        alike.append(all(torch.equal(ours[n], expected[n]) for n in expected))
    return alike


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_steps_and_state(name):
    for found in on_ranks(2, run, name):
        for mode in MODES:
            assert found[mode, "error"] <= 2e-5, mode  # parameters of float32 hide more of a step of length one
            assert found[mode, "resumes"] == [True, True], mode


def consolidate(name):
    model, optimizer = make("ddp", dtype=torch.float32, window_dtype=name)
    train("ddp", model, optimizer, 0, 6)
    optimizer.consolidate_state_dict()
    return optimizer.state_dict() if dist.get_rank() == 0 else None


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_state_of_two_ranks_loads_in_one_process(name):
    """Blocks are cut otherwise: rows are rounded once more, and the Gram matrix is computed anew."""
    state = on_ranks(2, consolidate, name)[0]
    model, optimizer = make("single", dtype=torch.float32, window_dtype=name)
    optimizer.load_state_dict(state)
    window = optimizer.attached_blocks()[0].window
    saved = torch.cat([entry["window"].reshape(5, -1).double() for entry in state["state"].values()], 1)
    wide = window.rows.double()
    torch.testing.assert_close(window.gram, wide @ wide.T, rtol=1e-12, atol=1e-14)
    assert abs(float(wide.norm() / saved.norm()) - 1) <= (0.01 if name == "int8" else 0.1)
    train("single", model, optimizer, 6, 8)
    assert isinstance(optimizer, GGT)
    assert all(p.isfinite().all() for p in model.parameters())
