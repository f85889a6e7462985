"""GGT does what torch.optim.AdamW does: one table of conventions, checked on both."""

import copy
import functools
import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import Adadelta, AdaGrad, NAdam, RMSprop, whiten

SMALL = functools.partial(GGT, window=4)


def whitened(kind):
    def make(params, **options):
        return whiten(kind(params, **options), window=4)

    return make


OPTIMIZERS = [
    pytest.param(SMALL, id="GGT"),
    pytest.param(functools.partial(SMALL, history="gradient"), id="GGT-gradient"),
    pytest.param(functools.partial(SMALL, scope="parameter", solver="cholesky"), id="GGT-parameter"),
    pytest.param(functools.partial(SMALL, scope="group", window_dtype=torch.bfloat16), id="GGT-group-bf16"),
    pytest.param(whitened(torch.optim.AdamW), id="whitened-AdamW"),
    pytest.param(whitened(functools.partial(torch.optim.SGD, momentum=0.9)), id="whitened-SGD"),
    pytest.param(torch.optim.AdamW, id="AdamW"),
]
RELATIVES = [
    # Its steps are long, 1/√(1 - α). Without jitter they would make rounding grow where all gradients are collinear.
    pytest.param(functools.partial(RMSprop, window=4, momentum=0.9, jitter=1e-2), id="RMSprop"),
    pytest.param(functools.partial(NAdam, window=4), id="NAdam"),
    pytest.param(functools.partial(Adadelta, window=4, scope="parameter"), id="Adadelta"),
    pytest.param(functools.partial(AdaGrad, window=4, scope="group"), id="AdaGrad"),
]
MUON = [  # it takes matrices alone, so that it has the rows of the table that need nothing else
    pytest.param(whitened(torch.optim.Muon), id="whitened-Muon"),
    pytest.param(torch.optim.Muon, id="Muon"),
]
every_optimizer = pytest.mark.parametrize("make", [*OPTIMIZERS, *MUON])
every_optimizer_of_vectors = pytest.mark.parametrize("make", OPTIMIZERS)
every_member = pytest.mark.parametrize("make", [*OPTIMIZERS, *RELATIVES, *MUON])
every_member_of_vectors = pytest.mark.parametrize("make", [*OPTIMIZERS, *RELATIVES])


@pytest.fixture(autouse=True)
def no_bias_for_muon(request, monkeypatch):
    monkeypatch.setattr(small_model, "bias", "Muon" not in request.node.name)


def small_model(dtype=torch.float32):
    torch.manual_seed(1)
    bias = small_model.bias
    return nn.Sequential(nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 2, bias=bias)).to(dtype)


small_model.bias = True


def batch(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(8, 4, generator=generator, dtype=torch.float64).to(dtype),
        torch.randn(8, 2, generator=generator, dtype=torch.float64).to(dtype),
    )


def loss_of(model, seed=0, dtype=torch.float32):
    x, y = batch(seed, dtype)
    return (model(x) - y).square().mean()


def train(model, optimizer, steps=5, start=0):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def snapshot(model):
    return [p.detach().clone() for p in model.parameters()]


def moved(before, model):
    return [not torch.equal(a, p) for a, p in zip(before, model.parameters(), strict=True)]


def first_layer_alone_rests(model):
    return [name.startswith("2.") for name, _ in model.named_parameters()]


@every_optimizer
def test_training_lowers_the_loss(make):
    model = small_model()
    before = loss_of(model).item()
    optimizer = make(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert loss_of(model).item() < 0.7 * before


@every_optimizer
def test_closure_is_evaluated_once_with_grad_and_its_loss_returned(make):
    model = small_model()
    optimizer = make(model.parameters(), lr=1e-2)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == calls[0]
    assert len(calls) == 1
    assert optimizer.step() is None


@every_member
def test_groups_have_their_own_lr_and_weight_decay(make):
    model = small_model()
    first, second = list(model[0].parameters()), list(model[2].parameters())
    optimizer = make([{"params": first, "lr": 0.0}, {"params": second, "weight_decay": 0.5}], lr=1e-2, weight_decay=0.0)
    before = snapshot(model)
    train(model, optimizer, 2)
    assert moved(before, model) == first_layer_alone_rests(model)


@every_member
def test_weight_decay_is_decoupled(make):
    """On a zero gradient the parameter shrinks by exactly lr·weight_decay, as in AdamW."""
    p = nn.Parameter(torch.full((3, 2), 2.0))
    optimizer = make([p], lr=0.1, weight_decay=0.3)
    p.grad = torch.zeros(3, 2)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3, 2), 2.0 * (1 - 0.03)))


@every_member
def test_add_param_group_in_mid_run(make):
    model = small_model()
    optimizer = make(model[0].parameters(), lr=1e-2)
    train(model, optimizer, 3)
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 1e-3})
    before = snapshot(model)
    train(model, optimizer, 3)
    assert all(moved(before, model))


def test_added_columns_do_not_change_the_gram():
    model = small_model()
    optimizer = SMALL(model[0].parameters(), lr=1e-2)
    train(model, optimizer, 3)
    owner = model[0].weight
    gram = optimizer.state[owner]["gram"].clone()
    optimizer.add_param_group({"params": model[2].parameters()})
    assert optimizer.spectrum()[0].shape == (3,)
    assert torch.equal(optimizer.state[owner]["gram"], gram)
    train(model, optimizer, 1, start=3)
    assert torch.equal(optimizer.state[owner]["gram"][:3, :3], gram[:3, :3])
    assert optimizer.state[model[2].weight]["window"][:3].count_nonzero() == 0


SCHEDULERS = {
    "LambdaLR": {"lr_lambda": lambda e: 0.9**e},
    "MultiplicativeLR": {"lr_lambda": lambda _: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2]},
    "ConstantLR": {},
    "LinearLR": {},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 1e-4, "max_lr": 1e-2, "cycle_momentum": True},
    "OneCycleLR": {"max_lr": 1e-2, "total_steps": 10},
    "PolynomialLR": {},
    "ReduceLROnPlateau": {"patience": 0},
}


@every_optimizer
@pytest.mark.parametrize("name", [*SCHEDULERS, "SequentialLR", "ChainedScheduler", "SWALR"])
def test_every_scheduler(make, name):
    model = small_model()
    optimizer = make(model.parameters(), lr=1e-2)
    if name == "SequentialLR":
        parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
    elif name == "ChainedScheduler":
        scheduler = lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.9)])
    elif name == "SWALR":
        scheduler = SWALR(optimizer, swa_lr=1e-3)
    else:
        scheduler = getattr(lr_scheduler, name)(optimizer, **SCHEDULERS[name])
    before = snapshot(model)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        scheduler.step(*([loss.item()] if name == "ReduceLROnPlateau" else []))
    assert all(moved(before, model))
    if name in ("CyclicLR", "OneCycleLR"):
        group = optimizer.param_groups[0]
        assert group.get("betas", [group.get("momentum")])[0] != 0.9  # they cycle β₁, too


def test_no_scheduler_of_torch_was_forgotten():
    known = {*SCHEDULERS, "SequentialLR", "ChainedScheduler", "SWALR", "LRScheduler", "_LRScheduler"}
    theirs = {
        name
        for name, thing in vars(lr_scheduler).items()
        if inspect.isclass(thing) and issubclass(thing, lr_scheduler.LRScheduler)
    }
    assert theirs <= known


@every_member
def test_tensor_lr_equals_float_lr(make):
    runs = []
    for lr in (1e-2, torch.tensor(1e-2)):
        model = small_model()
        optimizer = make(model.parameters(), lr=lr, weight_decay=0.1)
        train(model, optimizer)
        assert optimizer.param_groups[0]["lr"] is lr
        runs.append(snapshot(model))
    torch.testing.assert_close(*runs)


@every_optimizer_of_vectors
def test_tensor_lr_of_one_element(make):
    p = nn.Parameter(torch.ones(3))
    optimizer = make([p], lr=torch.tensor([1e-2]), weight_decay=0.1)
    p.grad = torch.ones(3)
    optimizer.step()
    assert (p < 1).all()
    assert p.shape == (3,)


@every_member_of_vectors
def test_replaced_parameters_and_groups_count(make):
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = make([p], lr=1e-2)
    p.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0]["params"][0] = q
    p.grad, q.grad = None, torch.ones(3)
    optimizer.step()
    assert (q < 1).all()
    optimizer.param_groups = [{**group, "lr": 0.0, "weight_decay": 0.0} for group in optimizer.param_groups]
    before = q.detach().clone()
    optimizer.step()
    assert torch.equal(q.detach(), before)


@every_optimizer
def test_step_hooks(make):
    model = small_model()
    optimizer = make(model.parameters())
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(model, optimizer, 1)
    assert seen == ["before", "after"]


@every_member
def test_state_dict_hooks(make):
    model = small_model()
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda *_: seen.append("save"))
    optimizer.register_load_state_dict_pre_hook(
        lambda _, d: seen.append(all(isinstance(v, torch.Tensor) for e in d["state"].values() for v in e.values()))
    )
    optimizer.register_load_state_dict_post_hook(
        lambda o: seen.append(all(isinstance(v, torch.Tensor) for e in o.state.values() for v in e.values()))
    )
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["save", True, True]


@every_optimizer
def test_grad_scaler_skips_outside_and_unscales(make):
    model, plain = small_model(), small_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled_optimizer, plain_optimizer = make(model.parameters(), lr=1e-2), make(plain.parameters(), lr=1e-2)
    for step in range(3):
        scaled_optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        scaler.step(scaled_optimizer)
        scaler.update()
    train(plain, plain_optimizer, 3)
    torch.testing.assert_close(snapshot(model), snapshot(plain))
    before = snapshot(model)
    scaled_optimizer.zero_grad()
    scaler.scale(loss_of(model) * float("inf")).backward()
    scaler.step(scaled_optimizer)
    assert not any(moved(before, model))
    assert getattr(scaled_optimizer, "skipped", 0) == 0


@every_optimizer
def test_accumulated_gradients(make):
    whole, parts = small_model(), small_model()
    a, b = make(whole.parameters(), lr=1e-2), make(parts.parameters(), lr=1e-2)
    for step in range(3):
        a.zero_grad()
        (loss_of(whole, 2 * step) + loss_of(whole, 2 * step + 1)).backward()
        a.step()
        b.zero_grad()
        loss_of(parts, 2 * step).backward()
        loss_of(parts, 2 * step + 1).backward()
        b.step()
    torch.testing.assert_close(snapshot(whole), snapshot(parts))


@every_optimizer
def test_clip_grad_norm(make):
    model = small_model()
    optimizer = make(model.parameters(), lr=1e-2)
    before = snapshot(model)
    for step in range(3):
        optimizer.zero_grad()
        (1e4 * loss_of(model, step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert all(moved(before, model))


@every_optimizer
def test_zero_grad_and_set_to_none(make):
    model = small_model()
    optimizer = make(model.parameters())
    loss_of(model).backward()
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    before = snapshot(model)
    optimizer.step()  # all None: nothing happens
    assert not any(moved(before, model))


@every_member
def test_frozen_then_unfrozen(make):
    model = small_model()
    model[0].requires_grad_(False)
    optimizer = make(model.parameters(), lr=1e-2)
    before = snapshot(model)
    train(model, optimizer, 3)
    assert moved(before, model) == first_layer_alone_rests(model)
    assert model[0].weight not in optimizer.state  # frozen parameters cost nothing
    model[0].requires_grad_(True)
    train(model, optimizer, 3)
    assert all(moved(before, model))


@every_member_of_vectors
def test_grad_none_on_some_steps_leaves_that_parameter_alone(make):
    model = small_model()
    optimizer = make(model.parameters(), lr=1e-2, weight_decay=0.1)
    train(model, optimizer, 3)
    before = snapshot(model)
    state = copy.deepcopy(optimizer.state[model[0].bias])
    optimizer.zero_grad()
    loss_of(model).backward()
    model[0].bias.grad = None
    optimizer.step()
    assert moved(before, model) == [True, False, True, True]
    for key in ("momentum_buffer", "exp_avg"):
        if key in state:
            assert torch.equal(optimizer.state[model[0].bias][key], state[key])


def test_grad_none_contributes_a_zero_row():
    model = small_model()
    optimizer = SMALL(model.parameters(), lr=1e-2)
    train(model, optimizer, 1)
    optimizer.zero_grad()
    loss_of(model).backward()
    model[0].bias.grad = None
    optimizer.step()
    assert optimizer.state[model[0].bias]["window"][1].count_nonzero() == 0
    assert optimizer.state[model[0].weight]["window"][1].count_nonzero() > 0


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_parameter_dtypes(make, dtype):
    model = small_model(dtype)
    optimizer = make(model.parameters(), lr=1e-1)
    before = snapshot(model)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, dtype).backward()
        optimizer.step()
    assert all(moved(before, model))
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())


def test_float16_parameters():
    """Here GGT does what AdamW does not: its state is float32, so that nothing under- or overflows."""
    test_parameter_dtypes(SMALL, torch.float16)


@every_optimizer_of_vectors
def test_mixed_dtypes_in_one_optimizer(make):
    parameters = [nn.Parameter(torch.ones(3, dtype=d)) for d in (torch.float32, torch.bfloat16, torch.float64)]
    optimizer = make(parameters, lr=1e-1)
    for _ in range(3):
        optimizer.zero_grad()
        sum(p.double().square().sum() for p in parameters).backward()
        optimizer.step()
    assert all((p < 1).all() for p in parameters)


@every_member_of_vectors
def test_complex_parameters_are_pairs_of_real_ones(make):
    start = torch.randn(3, 2, dtype=torch.complex64)
    z, pair = nn.Parameter(start.clone()), nn.Parameter(torch.view_as_real(start).clone())
    a, b = make([z], lr=1e-2), make([pair], lr=1e-2)
    for _ in range(6):
        target = torch.randn(3, 2, dtype=torch.complex64)
        a.zero_grad()
        (z - target).abs().square().sum().backward()
        a.step()
        b.zero_grad()
        (pair - torch.view_as_real(target)).square().sum().backward()
        b.step()
    torch.testing.assert_close(torch.view_as_real(z.detach()), pair.detach())


@every_optimizer_of_vectors
def test_tied_weights_count_once(make):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = make(model.parameters(), lr=1e-2)
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 3


@every_member_of_vectors
def test_zero_size_parameters(make):
    empty, full = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(2))
    optimizer = make([empty, full], lr=1e-1)
    for _ in range(3):
        empty.grad, full.grad = torch.zeros(0, 3), torch.ones(2)
        optimizer.step()
    assert (full < 1).all()


@every_member_of_vectors
def test_noncontiguous_and_channels_last(make):
    straight = nn.Parameter(torch.randn(2, 3, 4, 4))
    last = nn.Parameter(straight.detach().clone(memory_format=torch.channels_last))
    a, b = make([straight], lr=1e-2), make([last], lr=1e-2)
    for _ in range(4):
        gradient = torch.randn(2, 3, 4, 4)
        straight.grad, last.grad = gradient.clone(), gradient.clone(memory_format=torch.channels_last)
        a.step()
        b.step()
    torch.testing.assert_close(straight.detach(), last.detach())


@every_member_of_vectors
def test_maximize_ascends(make):
    up, down = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    a, b = make([up], lr=1e-2, maximize=True), make([down], lr=1e-2)
    for _ in range(5):
        gradient = torch.randn(3)
        up.grad, down.grad = gradient.clone(), gradient.clone()
        a.step()
        b.step()
    torch.testing.assert_close(up.detach(), -down.detach())


def test_maximize_may_differ_by_group():
    up, down = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = SMALL([{"params": [up], "maximize": True}, {"params": [down]}], lr=1e-2)
    up.grad, down.grad = torch.ones(3), torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(up.detach(), -down.detach())


@every_optimizer
def test_named_parameters(make):
    model = small_model()
    optimizer = make(model.named_parameters(), lr=1e-2)
    train(model, optimizer, 2)
    assert optimizer.state_dict()["param_groups"][0]["param_names"][0] == "0.weight"


@every_optimizer
def test_repr_names_the_options(make):
    text = repr(make(small_model().parameters(), lr=0.125))
    assert "lr: 0.125" in text


@every_member_of_vectors
def test_gradient_is_left_as_it_was(make):
    """Whitening is the exception: it changes the gradients, and nothing else does."""
    model = small_model()
    optimizer = make(model.parameters(), lr=1e-2, maximize=True)
    train(model, optimizer, 2)
    optimizer.zero_grad()
    loss_of(model).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    same = [torch.equal(g, p.grad) for g, p in zip(gradients, model.parameters(), strict=True)]
    assert not any(same) if hasattr(optimizer, "whitening") else all(same)


def optimizer_in_backward(model, **options):
    """One optimizer per parameter, stepped as soon as its gradient is there."""
    for p in model.parameters():
        optimizer = SMALL([p], **options)

        def hook(p, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(hook)


def test_optimizer_in_backward_is_per_parameter_scope():
    fused, plain = small_model(), small_model()
    optimizer_in_backward(fused, lr=1e-2)
    optimizer = SMALL(plain.parameters(), lr=1e-2, scope="parameter")
    for step in range(5):
        loss_of(fused, step).backward()
        optimizer.zero_grad()
        loss_of(plain, step).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(snapshot(fused), snapshot(plain), strict=True))


@every_optimizer_of_vectors
@pytest.mark.filterwarnings("ignore")
def test_compiled_step_equals_eager_and_compiles_once(make):
    """AdamW is traced. GGT breaks the graph: its step is eager, and a program around it is compiled once."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    eager, compiled = small_model(), small_model()
    a, b = make(eager.parameters(), lr=torch.tensor(1e-2)), make(compiled.parameters(), lr=torch.tensor(1e-2))
    scale = torch.ones(())

    def program():
        scale.mul_(1.0)  # something to compile
        b.step()

    step = torch.compile(program, backend=backend)
    for n in range(8):
        for model, optimizer, call in ((eager, a, a.step), (compiled, b, step)):
            optimizer.zero_grad()
            loss_of(model, n).backward()
            call()
        if n == 1:  # SGD makes its momentum in the first step, and is compiled again for it
            first = len(graphs)
    assert first >= 1
    assert len(graphs) == first  # no recompilation afterwards
    if isinstance(b, GGT):
        assert all(torch.equal(p, q) for p, q in zip(snapshot(eager), snapshot(compiled), strict=True))
    torch.testing.assert_close(snapshot(eager), snapshot(compiled), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_is_the_eager_step():
    torch._dynamo.reset()
    eager, compiled = small_model(), small_model()
    a, b = SMALL(eager.parameters(), lr=1e-2), SMALL(compiled.parameters(), lr=1e-2)
    seen = []
    b.register_step_pre_hook(lambda *_: seen.append(1))
    step = torch.compile(b.step)
    for n in range(8):
        for model, optimizer, call in ((eager, a, a.step), (compiled, b, step)):
            optimizer.zero_grad()
            loss_of(model, n).backward()
            call()
    assert len(seen) == 8  # hooks run once for each step
    assert all(torch.equal(p, q) for p, q in zip(snapshot(eager), snapshot(compiled), strict=True))


def test_no_warning_in_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small_model()
        optimizer = GGT(model.parameters())
        train(model, optimizer, 3)
        optimizer.load_state_dict(optimizer.state_dict())
