"""Options edited in mid-run, numbers near the end of float32, and what a user may do to the surroundings."""

import gc
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from mutations import MEMBERS, NONSENSE, alike, build, train

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt.step import judged

LIVE = [(name, value) for name, values in NONSENSE.items() for value in values if (name, value) != ("split", 1000)]


def test_nonsense_in_a_param_group_raises_before_anything_is_written():
    for name, value in LIVE:
        parameters, optimizer = build("ggt", 3, 1)
        good, before = optimizer.param_groups[0][name], optimizer.state_dict()["state"]
        kept = [p.detach().clone() for p in parameters]
        for group in optimizer.param_groups:
            group[name] = value
        try:
            train(parameters, optimizer, 1, 7)
        except (ValueError, TypeError):
            pass
        else:
            pytest.fail(f"{name}={value!r} was taken")
        assert alike(kept, [p.detach() for p in parameters]), (name, value)
        optimizer.param_groups[0][name] = good
        assert alike(before, optimizer.state_dict()["state"]), (name, value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e30])
def test_a_tensor_lr_that_becomes_nonsense_in_place(value):
    parameters, optimizer = build("ggt", 3, 1)
    optimizer.param_groups[0]["lr"] = rate = torch.tensor(1e-3)
    train(parameters, optimizer, 1, 7)
    before, kept = optimizer.state_dict()["state"], [p.detach().clone() for p in parameters]
    rate.fill_(value)
    with pytest.raises(ValueError, match="lr must be a finite number"):
        train(parameters, optimizer, 1, 8)
    assert alike(kept, [p.detach() for p in parameters])
    assert alike(before, optimizer.state_dict()["state"])


def test_a_rate_on_a_device_is_judged_there():
    class OnDevice(torch.Tensor):
        is_cpu = False  # as of a GPU, whose numbers the host must not read

    def verdict(value):
        block = type("Block", (), {"runs": [({"lr": torch.tensor([value]).as_subclass(OnDevice)}, 0, 1)]})
        return bool(judged([block], torch.tensor(True)))

    assert verdict(1e-3)
    assert not any(verdict(value) for value in (math.nan, math.inf, -1.0))


def large(g, step):
    return g.sign() * 3e38


def growing(g, step):
    return g.clamp(-3, 3) * 1e38


def spike(g, step):
    return g * (1e38 if step == 3 else 1)


def tiny(g, step):
    return g * 1e-40


EDGES = {
    **MEMBERS,
    "sgd_scale": lambda p: GGT(p, window=6, sgd_scale=10.0, lr=10.0),
    "sgd_scale at its end": lambda p: GGT(p, window=6, sgd_scale=1e18, lr=1e18),
    "keep_norm": lambda p: GGT(p, window=6, adjust_lr_fn="keep_norm", lr=10.0),
    "nesterov": lambda p: GGT(p, window=6, nesterov=True),
}


@pytest.mark.filterwarnings("ignore:GGT skipped a step")
@pytest.mark.parametrize("make", EDGES.values(), ids=EDGES.keys())
def test_finite_gradients_give_finite_parameters_or_a_skip(make):
    for gradients in (large, growing, spike, tiny):
        parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5))]
        optimizer = make(parameters)
        for step in range(8):
            for parameter in parameters:
                parameter.grad = gradients(torch.randn(parameter.shape), step)
            optimizer.step()
        assert all(p.isfinite().all() for p in parameters), gradients.__name__
        state = optimizer.state if isinstance(optimizer, GGT) else {}
        assert all(t.isfinite().all() for entry in state.values() for t in entry.values()), gradients.__name__


def test_denormals_that_are_flushed():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        parameters, optimizer = build("ggt", 2, 1)
        for step in range(8):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 1e-40 if step % 2 else 1e-30)
            optimizer.step()
        assert all(p.isfinite().all() for p in parameters)
    finally:
        torch.set_flush_denormal(False)


def test_patterns_of_missing_gradients_are_not_kept():
    parameters = [nn.Parameter(torch.randn(3)) for _ in range(12)]
    optimizer = GGT(parameters, window=2, scope="parameter")
    numbers = []
    for step in range(1, 301):
        for place, parameter in enumerate(parameters):
            parameter.grad = torch.ones(3) if step >> (place % 9) & 1 or place == 0 or step == 1 else None
        optimizer.step()
        if step in (150, 300):
            gc.collect()
            numbers.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    assert numbers[1] <= numbers[0] + 12  # one gradient for each parameter, at most


@pytest.mark.parametrize("member", list(MEMBERS))
def test_a_default_device_that_is_not_the_models(member):
    parameters, optimizer = build(member, 3, 1)
    twins, twin = build(member, 3, 1)
    grads = [[torch.randn(p.shape) for p in parameters] for _ in range(3)]
    for current, stepper, device in ((parameters, optimizer, "meta"), (twins, twin, "cpu")):
        torch.set_default_device(device)
        try:
            for turn in grads:
                for parameter, grad in zip(current, turn, strict=True):
                    parameter.grad = grad.clone()
                stepper.step()
                stepper.load_state_dict(stepper.state_dict())
        finally:
            torch.set_default_device(None)
    assert alike(parameters, twins)


def test_data_of_another_shape_are_refused():
    parameters, optimizer = build("ggt", 3, 1)
    before = optimizer.state_dict()["state"]
    old = parameters[0].data
    parameters[0].data = torch.zeros(1, 3)
    parameters[0].grad = torch.ones(1, 3)
    with pytest.raises(RuntimeError, match=r"had shape \(4, 3\)"):
        optimizer.step()
    assert alike(before, optimizer.state_dict()["state"])
    parameters[0].data, parameters[0].grad = old, torch.ones(4, 3)
    optimizer.step()
