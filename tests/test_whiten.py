"""whiten: what the optimizer sees is the dense formula, however it is called; and its state is never lost."""

import copy
import functools
import io
import pickle
import warnings

import pytest
import torch
from helpers import flat
from test_conventions import loss_of, small_model, train
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import Whitening, whiten
from torch_ggt.shrinkage import noise_share
from torch_ggt.state import saved as saving


def literal_noise_share(rows):
    """The mean share of a row that least squares cannot make of the other rows."""
    shares = [1.0] if len(rows) == 1 else []
    for index, row in enumerate(rows if len(rows) > 1 else []):
        others = torch.stack([other for number, other in enumerate(rows) if number != index], 1)
        rest = row - others @ torch.linalg.lstsq(others, row, driver="gelsd").solution
        shares.append(float(rest.square().sum() / row.square().sum()))
    return sum(shares) / len(shares)


class Dense:
    """u = s [((1 - q) GGᵀ + q tr I + δI)^½]⁻¹ g from a plain list of gradients, as the paper writes it."""

    def __init__(self, window, *, jitter=1e-6, decay=1.0, keep_norm=True, shrinkage="auto"):
        self.window, self.jitter, self.decay, self.keep_norm = window, jitter, decay, keep_norm
        self.shrinkage, self.rows = shrinkage, []

    def __call__(self, gradient):
        gradient = gradient.double()
        if not gradient.isfinite().all() or not gradient.any():
            return gradient
        self.rows = [self.decay * row for row in self.rows[-self.window + 1 :]] + [gradient]
        share = literal_noise_share(self.rows) if self.shrinkage == "auto" else self.shrinkage
        trace = sum(row.square().sum() for row in self.rows)
        delta = self.jitter * trace * (1 - share + self.window * share) / self.window
        columns = (1 - share) ** 0.5 * torch.stack(self.rows, 1)
        outer = columns @ columns.T + (share * trace + delta) * torch.eye(len(gradient), dtype=torch.float64)
        values, vectors = torch.linalg.eigh(outer)
        step = vectors @ ((vectors.T @ gradient) / values.clamp_min(1e-300).sqrt())
        weights = sum(self.decay ** (2 * age) for age in range(len(self.rows)))
        return step * (gradient.norm() / step.norm() if self.keep_norm else weights**0.5)


def watched(optimizer, seen):
    """Note the gradients that the optimizer is about to use: a hook that runs after the whitening."""
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(flat(_gradients(o)).double()))
    return optimizer


def _gradients(optimizer):
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def prescribe(parameters, gradients):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()


# ---- the gradient that an optimizer sees ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"window": 5},
        {"window": 5, "jitter": 1e-2, "decay": 0.8, "shrinkage": 0.0},
        {"window": 5, "keep_norm": False, "decay": 0.8},
        {"window": 5, "keep_norm": False, "shrinkage": 0.3},
        {
            "window": 2,
            "scope": "parameter",
            "solver": "cholesky",
            "shrinkage": 0.0,
        },  # the smallest tensor has two elements
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_optimizer_sees_the_dense_formula(options, dtype):
    model = small_model(dtype)
    parameters = list(model.parameters())
    seen = []
    optimizer = watched(whiten(torch.optim.SGD(parameters, lr=0.0), **options), seen)
    plain = {key: value for key, value in options.items() if key not in ("scope", "solver")}
    parts = [[p] for p in parameters] if "scope" in options else [parameters]
    dense = [Dense(**plain) for _ in parts]
    signal = {p: torch.randn(p.shape, dtype=dtype) * ("scope" not in options) for p in parameters}
    for step in range(12):
        gradients = {p: (signal[p] + 0.3 * torch.randn(p.shape, dtype=dtype)) * 1.5**-step for p in parameters}
        prescribe(parameters, list(gradients.values()))
        expected = torch.cat([d(flat(gradients[p] for p in part)) for d, part in zip(dense, parts, strict=True)])
        optimizer.step()
        error = (seen[-1] - expected).norm() / expected.norm()
        assert error < (1e-6 if dtype == torch.float32 else 1e-8)
    raw = flat(gradients.values()).double()
    turned = 1 - torch.dot(seen[-1], raw) / (seen[-1].norm() * raw.norm())
    assert turned > 1e-2  # whitening is not the identity


def test_the_noise_in_a_window_is_what_least_squares_cannot_explain():
    rows = torch.randn(3, 6, 9, dtype=torch.float64)
    rows[1, 3:] = rows[1, :3] @ torch.randn(3, 9, 9, dtype=torch.float64)[0] * 0.1 + rows[1, :3]
    rows[2, 4:] = 0.0  # rows that are not there
    found = noise_share(rows @ rows.mT)
    expected = [literal_noise_share(list(part[part.any(1)])) for part in rows]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-9)
    scale = torch.rand(6, dtype=torch.float64)[:, None] + 0.1
    torch.testing.assert_close(noise_share(scale * (rows @ rows.mT) * scale.mT), found, rtol=1e-6, atol=1e-9)
    collinear = torch.ones(5, 5, dtype=torch.float64)
    assert noise_share(collinear) < 1e-8
    assert noise_share(torch.zeros(4, 4, dtype=torch.float64)) == 0
    assert noise_share(torch.eye(4, dtype=torch.float64)) == pytest.approx(1)


def _closure(model, optimizer, seed):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, seed)
        loss.backward()
        return loss

    return closure


def _plain(model, optimizer, seed):
    optimizer.zero_grad()
    loss_of(model, seed).backward()
    optimizer.step()


def _by_closure(model, optimizer, seed):
    optimizer.step(_closure(model, optimizer, seed))


def _by_named_closure(model, optimizer, seed):
    optimizer.step(closure=_closure(model, optimizer, seed))


def _accumulated(model, optimizer, seed):
    optimizer.zero_grad()
    for _ in range(2):
        (loss_of(model, seed) / 2).backward()
    optimizer.step()


def _clipped(model, optimizer, seed):
    optimizer.zero_grad()
    loss_of(model, seed).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)
    optimizer.step()


SCALER = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)


def _scaled(model, optimizer, seed, scaler=SCALER):
    optimizer.zero_grad()
    scaler.scale(loss_of(model, seed)).backward()
    scaler.step(optimizer)
    scaler.update()


def _by_accumulated_graph(model, optimizer, seed):
    optimizer.zero_grad(set_to_none=False)
    loss_of(model, seed).backward()
    optimizer.step()


@pytest.mark.parametrize(
    "call", [_plain, _by_closure, _by_named_closure, _accumulated, _clipped, _scaled, _by_accumulated_graph]
)
@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_every_way_of_calling_sees_the_dense_formula(call, kind):
    """The moments of AdamW with β₁ = 0 are the gradient that it saw."""
    model = small_model()
    optimizer = whiten(torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.0, 0.9), **{kind: True}), window=4)
    dense = Dense(4, keep_norm=False)
    for seed in range(7):
        gradient = flat(torch.autograd.grad(loss_of(model, seed), list(model.parameters())))
        expected = dense(gradient)
        call(model, optimizer, seed)
        saw = flat(optimizer.state[p]["exp_avg"] for p in model.parameters()).double()
        assert (saw - expected).norm() < 2e-6 * expected.norm()
        assert seed == 0 or (saw - gradient).norm() > 1e-3 * gradient.norm()


def test_a_wrapped_adamw_is_adamw_on_whitened_gradients():
    """Against torch's own AdamW that is given the dense formula: parameters agree, those without whitening do not."""
    models = [small_model(torch.float64) for _ in range(3)]
    wrapped = whiten(torch.optim.AdamW(models[0].parameters(), lr=1e-2), window=6)
    given, alone = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in models[1:])
    dense = Dense(6, keep_norm=False)
    for seed in range(20):
        for model, optimizer in zip(models, (wrapped, given, alone), strict=True):
            optimizer.zero_grad()
            loss_of(model, seed, torch.float64).backward()
            if optimizer is given:
                parameters = list(model.parameters())
                step = dense(flat(p.grad for p in parameters)).split([p.numel() for p in parameters])
                prescribe(parameters, [u.view_as(p) for u, p in zip(step, parameters, strict=True)])
            optimizer.step()
    ours, theirs, raw = (flat(m.parameters()) for m in models)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert (ours - raw).norm() > 1e-3 * raw.norm()


def test_gradients_keep_their_storage_strides_and_dtype_and_none_stays_none():
    parameters = [
        nn.Parameter(torch.randn(4, 6).t()),
        nn.Parameter(torch.randn(3).bfloat16()),
        nn.Parameter(torch.ones(2)),
    ]
    gradients = [torch.randn(4, 6).t(), torch.randn(3).bfloat16(), None]
    whitening = Whitening(parameters, window=3)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    raw = torch.cat([g.reshape(-1).double() for g in gradients[:2]])
    whitening()
    prescribed = [torch.randn(4, 6).t(), torch.randn(3).bfloat16()]
    for gradient, value in zip(gradients, prescribed, strict=False):
        gradient.copy_(value)
    whitening()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert parameter.grad is gradient
    assert gradients[0].stride() == (1, 6)
    dense = Dense(3)
    dense(raw)
    expected = dense(torch.cat([g.reshape(-1).double() for g in prescribed]))
    found = torch.cat([g.reshape(-1).double() for g in gradients[:2]])
    torch.testing.assert_close(found[:24], expected[:24], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[24:], expected[24:], rtol=1e-2, atol=1e-2)


def test_a_gradient_that_is_not_finite_is_left_alone_and_counted():
    model = small_model()
    optimizer = whiten(torch.optim.SGD(model.parameters(), lr=0.0), window=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 4)
        before = copy.deepcopy(optimizer.whitening.state_dict())
        gradients = [torch.randn_like(p) for p in model.parameters()]
        gradients[1][0] = torch.inf
        prescribe(model.parameters(), gradients)
        optimizer.step()
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(p.grad, gradient)
    assert optimizer.whitening.skipped == 1
    after = optimizer.whitening.state_dict()["state"]
    for index, entry in before["state"].items():
        assert all(torch.equal(after[index][key], value) for key, value in entry.items() if key != "skipped")


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_skips_an_overflow_as_it_would_alone(fused):
    model = small_model()
    optimizer = whiten(torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused), window=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    _scaled(model, optimizer, 0, scaler)
    parameters = [p.detach().clone() for p in model.parameters()]
    prescribe(model.parameters(), [torch.full_like(p, torch.inf) for p in model.parameters()])
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**3
    assert all(torch.equal(p, before) for p, before in zip(model.parameters(), parameters, strict=True))
    assert int(next(iter(optimizer.whitening.state.values()))["count"]) == 1


# ---- several optimizers --------------------------------------------------------------------------------------------


def pair(model, **options):
    """Muon for matrices and SGD for the rest, over one window."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return whiten(torch.optim.Muon(matrices, lr=1e-2), torch.optim.SGD(rest, lr=1e-2), window=4, **options)


def test_two_optimizers_share_one_window_and_are_whitened_once_in_a_round():
    model = small_model()
    seen = {}
    optimizers = pair(model)
    for optimizer in optimizers:
        watched(optimizer, seen.setdefault(type(optimizer).__name__, []))
    dense = Dense(4)
    order = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    for seed in range(8):
        model.zero_grad()
        loss_of(model, seed).backward()
        expected = dense(flat(p.grad for p in order))
        for optimizer in optimizers if seed % 2 else reversed(optimizers):
            optimizer.step()
        found = torch.cat([seen["Muon"][-1], seen["SGD"][-1]])
        assert (found - expected).norm() < 1e-6 * expected.norm()
    assert int(next(iter(optimizers[0].whitening.state.values()))["count"]) == 4


def test_optimizers_that_do_not_step_together_are_told_so():
    model = small_model()
    muon, sgd = pair(model)
    loss_of(model).backward()
    muon.step()
    with pytest.raises(RuntimeError, match="SGD shares a window with Muon but has not stepped"):
        muon.step()
    model.zero_grad()
    loss_of(model).backward()
    muon.step()
    nn.utils.clip_grad_norm_(sgd.param_groups[0]["params"], 1e-3)
    with pytest.raises(RuntimeError, match=r"gradients of SGD have changed.*scaler\.unscale_"):
        sgd.step()


def rows_in(whitening):
    return next((int(entry["count"]) for entry in whitening.state.values() if "count" in entry), 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_an_optimizer_without_gradients_takes_no_part_in_a_round(order):
    """Its step would begin a second round, and whiten the whitened gradients of the others."""
    models = [small_model() for _ in range(3)]
    models[1].requires_grad_(False)
    optimizers = whiten(*(torch.optim.SGD(m.parameters(), lr=0.1) for m in models), window=9)
    for number in range(3):
        for model in models:
            model.zero_grad()
        (loss_of(models[0]) + loss_of(models[2])).backward()
        for place in order:
            optimizers[place].step()
        assert rows_in(optimizers[0].whitening) == number + 1


def test_a_round_of_which_a_scaler_skips_one_optimizer_does_not_spoil_the_next():
    model = small_model()
    optimizers, scaler = pair(model), torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(4):
        model.zero_grad()
        scaler.scale(loss_of(model, number)).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        for optimizer in optimizers[number == 1 :]:  # as if the gradients of the first one had overflowed
            scaler.step(optimizer)
        scaler.update()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_of_a_shared_window_are_refused(fused):
    """The scaler would unscale the second optimizer in its own step, after its gradients were whitened."""
    model = small_model()
    parameters = list(model.parameters())
    kinds = [functools.partial(torch.optim.AdamW, lr=1e-2, fused=fused)] * 2
    optimizers = whiten(kinds[0](parameters[:2]), kinds[1](parameters[2:]), window=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(loss_of(model)).backward()
    with pytest.raises(RuntimeError, match=r"still scaled. Call scaler.unscale_\(optimizer\) for each"):
        scaler.step(optimizers[0])
    scaler.update()
    model.zero_grad()
    scaler.scale(loss_of(model)).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    for optimizer in optimizers:
        scaler.step(optimizer)
    assert rows_in(optimizers[0].whitening) == 1
    off = torch.amp.GradScaler("cpu", enabled=False)
    model.zero_grad()
    loss_of(model, 1).backward()
    for optimizer in optimizers:
        off.step(optimizer)


def test_an_optimizer_saves_the_rows_of_its_own_parameters_only(monkeypatch):
    """Two that share a window would copy it twice."""
    model = small_model()
    optimizers = pair(model)
    loss_of(model).backward()
    for optimizer in optimizers:
        optimizer.step()
    copied = []
    monkeypatch.setattr(saving, "_copied", lambda value: copied.append(value) or value)
    for optimizer in optimizers:
        copied.clear()
        parameters = optimizer.param_groups[0]["params"]
        optimizer.state_dict()
        assert len(copied) == sum(len(optimizer.whitening.state[p]) for p in parameters) < 20


def test_a_state_that_was_loaded_before_whitening_is_refused():
    model = small_model()
    whitened, plain = whiten(torch.optim.AdamW(model.parameters()), window=5), torch.optim.AdamW(model.parameters())
    train(model, whitened)
    plain.load_state_dict(whitened.state_dict())
    with pytest.raises(ValueError, match="whiten it first, and then load"):
        whiten(plain)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (lambda p: [torch.optim.SGD(p, lr=1.0)], {"windows": 5}, "no option 'windows'; did you mean window?"),
        (lambda p: [torch.optim.SGD(p, lr=1.0)], {"lr": 5}, "Options such as lr belong to the optimizer"),
        (lambda p: [torch.optim.SGD(p, lr=1.0), 20], {}, "given by name: window=20"),
        (lambda p: [[torch.optim.SGD(p, lr=1.0)]], {}, r"write whiten\(\*optimizers\)"),
        (lambda p: [torch.optim.AdamW], {}, "the class AdamW; make the optimizer first"),
        (lambda p: [torch.optim.SGD(p, lr=1.0)], {"keep_norm": "no"}, "keep_norm must be True or False"),
        (lambda p: [torch.optim.SGD(p, lr=1.0)], {"decay": 0}, r"whiten: decay must be .* in \(0, 1\], got decay=0"),
    ],
)
def test_calls_that_cannot_be_meant_say_what_to_write(given, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        whiten(*given(small_model().parameters()), **options)


def test_sparse_adam_is_refused_when_it_is_whitened():
    with pytest.raises(ValueError, match="SparseAdam takes sparse gradients alone"):
        whiten(torch.optim.SparseAdam(small_model().parameters()))


def test_the_length_is_kept_for_optimizers_whose_steps_are_proportional_to_it():
    parameters = [nn.Parameter(torch.zeros(2, 2))]
    kinds = {kind: kind(parameters) for kind in (torch.optim.AdamW, torch.optim.NAdam, torch.optim.RMSprop)}
    kinds |= {kind: kind(parameters) for kind in (torch.optim.Adafactor, torch.optim.Muon, torch.optim.Adadelta)}
    kinds |= {kind: kind(parameters) for kind in (torch.optim.Adagrad, torch.optim.Rprop)}
    kinds |= {"options in groups": torch.optim.Optimizer([{"params": parameters, "ns_steps": 5}], {"foreach": None})}
    kinds |= {kind: kind(parameters, lr=1.0) for kind in (torch.optim.SGD, torch.optim.ASGD)}
    for kind, optimizer in kinds.items():
        kept = whiten(optimizer).whitening.param_groups[0]["adjust_lr_fn"] == "keep_norm"
        assert kept == (kind in (torch.optim.SGD, torch.optim.ASGD)), kind
    assert whiten(torch.optim.AdamW(parameters), keep_norm=True).whitening.defaults["adjust_lr_fn"] == "keep_norm"


def test_a_gan_has_two_windows():
    models = small_model(), small_model()
    optimizers = [whiten(torch.optim.AdamW(m.parameters(), lr=1e-2), window=3) for m in models]
    for seed in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            _plain(model, optimizer, seed)
    assert optimizers[0].whitening is not optimizers[1].whitening


@pytest.mark.parametrize("swap", [False, True])
def test_two_optimizers_save_and_load_together(swap):
    model = small_model()
    optimizers = pair(model)
    round_of(model, optimizers, range(6))
    saved = [copy.deepcopy(o.state_dict()) for o in optimizers]
    twin = copy.deepcopy(model)
    again = pair(twin)
    loading = list(zip(again, saved, strict=True))
    loading = loading[::-1] if swap else loading
    loading[0][0].load_state_dict(loading[0][1])
    loss_of(twin).backward()
    with pytest.raises(RuntimeError, match="load their states together"):
        loading[0][0].step()
    loading[1][0].load_state_dict(loading[1][1])
    round_of(model, optimizers, range(6, 12))
    round_of(twin, again, range(6, 12))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def round_of(model, optimizers, seeds):
    for seed in seeds:
        model.zero_grad()
        loss_of(model, seed).backward()
        for optimizer in optimizers:
            optimizer.step()


# ---- the state -----------------------------------------------------------------------------------------------------


def _by_torch_save(optimizer, model, twin, make):
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    made = make(twin)
    made.load_state_dict(torch.load(buffer, weights_only=True))
    return made


def _by_pickle_of_the_state(optimizer, model, twin, make):
    made = make(twin)
    made.load_state_dict(pickle.loads(pickle.dumps(copy.deepcopy(optimizer.state_dict()))))
    return made


def _by_dcp(optimizer, model, twin, make, **options):
    """torch.distributed.checkpoint drops unknown keys of the top level, and makes a dry run of an empty optimizer."""
    saved = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(**options))
    made = make(twin)
    set_optimizer_state_dict(twin, made, copy.deepcopy(saved), options=StateDictOptions(**options))
    return made


class RestoresTypes(torch.optim.AdamW):
    """SOAP of pytorch_optimizer loads in this way: after torch has cast the state, it looks at the state_dict again."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for p, index in zip(group["params"], saved["params"], strict=True):
                entry = state_dict["state"].get(index, {})
                self.state[p] = {key: self.state[p][key].to(value.dtype) for key, value in entry.items()}


WRAPPED = {
    "AdamW": functools.partial(torch.optim.AdamW, lr=1e-2),
    "AdamW-fused": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "SGD": functools.partial(torch.optim.SGD, lr=1e-2),
    "SGD-momentum": functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "NAdam": functools.partial(torch.optim.NAdam, lr=1e-2),
    "Adafactor": functools.partial(torch.optim.Adafactor, lr=1e-2),
    "RestoresTypes": functools.partial(RestoresTypes, lr=1e-2),
}


@pytest.mark.parametrize("how", [_by_torch_save, _by_pickle_of_the_state, _by_dcp])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_run_resumes_bitwise(wrapped, how):
    def make(model):
        return whiten(WRAPPED[wrapped](model.parameters()), window=4, decay=0.9)

    model = small_model()
    optimizer = make(model)
    train(model, optimizer, 6)
    model.zero_grad()  # torch.distributed.checkpoint makes its dry run of optimizers without state, as this SGD is
    twin = copy.deepcopy(model)
    made = how(optimizer, model, twin, make)
    assert type(made) is type(optimizer)
    train(model, optimizer, 6, start=6)
    train(twin, made, 6, start=6)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
@pytest.mark.parametrize("make", [lambda m: (whiten(WRAPPED["AdamW"](m.parameters()), window=4),), pair])
def test_a_deep_copy_keeps_its_whitening_and_a_shallow_one_is_refused(copied, make):
    model = small_model()
    optimizers = make(model)
    round_of(model, optimizers, range(5))
    twin, twins = copied((model, optimizers))
    assert len({id(t.whitening) for t in twins}) == 1
    assert twins[0].whitening is not optimizers[0].whitening
    round_of(model, optimizers, range(5, 10))
    round_of(twin, twins, range(5, 10))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    twins[0].state_dict()
    with pytest.raises(TypeError, match=r"shallow copy of this .* would lose its whitening"):
        copy.copy(optimizers[0])


def test_a_checkpoint_that_lost_the_window_is_refused():
    model = small_model()
    optimizer = whiten(WRAPPED["AdamW"](model.parameters()), window=4)
    train(model, optimizer, 3)
    with pytest.raises(ValueError, match="window was lost on its way"):
        _by_dcp(
            optimizer,
            model,
            copy.deepcopy(model),
            lambda twin: whiten(WRAPPED["AdamW"](twin.parameters()), window=4),
            flatten_optimizer_state_dict=True,
        )


def test_the_state_of_the_optimizer_is_its_own():
    model = small_model()
    optimizer = whiten(WRAPPED["AdamW"](model.parameters()), window=4)
    assert not optimizer.state
    train(model, optimizer, 2)
    assert all(entry.keys() == {"step", "exp_avg", "exp_avg_sq"} for entry in optimizer.state.values())


def test_a_state_that_is_refused_changes_nothing_and_a_foreign_one_starts_an_empty_window():
    model = small_model()
    optimizer = whiten(WRAPPED["AdamW"](model.parameters()), window=4)
    train(model, optimizer, 6)
    good = copy.deepcopy(optimizer.state_dict())
    other = whiten(WRAPPED["AdamW"](small_model().parameters()), window=5)
    with pytest.raises(ValueError, match="made with window=4 and this optimizer has window=5"):
        other.load_state_dict(good)
    damaged = copy.deepcopy(good)
    damaged["state"][0]["whiten_window"][1] += 1
    train(model, optimizer, 2)
    kept = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="rows in this state are not"):
        optimizer.load_state_dict(damaged)
    with pytest.raises(ValueError, match="this is the state of a GGT, and AdamW cannot go on from it"):
        optimizer.load_state_dict(GGT(small_model().parameters()).state_dict())
    now = optimizer.state_dict()
    for index, entry in kept["state"].items():
        assert all(torch.equal(now["state"][index][key], value) for key, value in entry.items())
    alone = torch.optim.AdamW(small_model().parameters(), lr=1e-2)
    with pytest.warns(UserWarning, match="not whitened; the window starts empty"):
        optimizer.load_state_dict(alone.state_dict())
    assert not optimizer.whitening.state


def test_param_groups_that_are_added_later_are_whitened():
    model = small_model()
    optimizer = whiten(torch.optim.AdamW(model[0].parameters(), lr=1e-2), window=3)
    _plain(model, optimizer, 0)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    model.zero_grad()
    _plain(model, optimizer, 1)
    assert len(optimizer.whitening.state) == 4
    twin = copy.deepcopy(model)
    again = whiten(
        torch.optim.AdamW([{"params": list(twin[0].parameters())}, {"params": list(twin[2].parameters())}], lr=1e-2),
        window=3,
    )
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, other in ((model, optimizer), (twin, again)):
        _plain(one, other, 2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


# ---- what it works with --------------------------------------------------------------------------------------------


class EightBitAdam(torch.optim.Optimizer):
    """The layout of 8-bit Adam: moments in uint8 with a scale, made when the state of a parameter is empty."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["state1"], state["absmax1"] = torch.full_like(p, 128, dtype=torch.uint8), torch.zeros(())
                moment = (state["state1"].float() - 128) / 127 * state["absmax1"]
                moment = 0.9 * moment + 0.1 * p.grad
                state["step"] += 1
                state["absmax1"] = moment.abs().amax()
                state["state1"] = (moment / state["absmax1"].clamp_min(1e-12) * 127 + 128).to(torch.uint8)
                p.add_(moment.sign(), alpha=-group["lr"])


@pytest.mark.parametrize("make", [*WRAPPED.values(), functools.partial(EightBitAdam, lr=1e-2)])
def test_optimizers_train_and_are_changed_by_it(make):
    losses = []
    for wrapped in (True, False):
        model = small_model()
        optimizer = make(model.parameters())
        optimizer = whiten(optimizer, window=5) if wrapped else optimizer
        for _ in range(40):
            _plain(model, optimizer, 0)
        losses.append(loss_of(model).item())
    assert losses[0] < 0.9 * loss_of(small_model()).item()
    assert losses[0] != losses[1]


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_breaks_its_graph_and_whitens_to_the_same_bits():
    """The wrapped optimizer's own arithmetic may round otherwise when it is compiled: torch 2.11's SGD does."""
    torch._dynamo.reset()
    models = small_model(), small_model()
    optimizers = [whiten(torch.optim.SGD(m.parameters(), lr=1e-2), window=3) for m in models]
    compiled = torch.compile(optimizers[1].step, backend="eager")
    for seed in range(4):
        _plain(models[0], optimizers[0], seed)
        optimizers[1].zero_grad()
        loss_of(models[1], seed).backward()
        compiled()
        for p, q in zip(*(m.parameters() for m in models), strict=True):
            assert torch.equal(p.grad, q.grad)
            assert torch.allclose(p, q, rtol=1e-6, atol=1e-8)
            q.data.copy_(p)


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_with_what_to_do():
    model = small_model()
    parameters = list(model.parameters())
    with pytest.raises(ValueError, match="LBFGS evaluates its closure several times"):
        whiten(torch.optim.LBFGS(parameters))
    with pytest.raises(ValueError, match="GGT has a full matrix of its own"):
        whiten(GGT(parameters))
    with pytest.raises(TypeError, match="torch optimizers, got Sequential"):
        whiten(model)
    with pytest.raises(TypeError, match="one optimizer or several"):
        whiten()
    with pytest.raises(ValueError, match="a parameter in common"):
        whiten(torch.optim.SGD(parameters, lr=1.0), torch.optim.AdamW(parameters))
    with pytest.raises(ValueError, match="window must be an int ≥ 1"):
        whiten(torch.optim.SGD(parameters, lr=1.0), window=0)
    optimizer = whiten(torch.optim.SGD(parameters, lr=1.0))
    with pytest.raises(ValueError, match="this SGD is whitened already"):
        whiten(optimizer)
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = whiten(torch.optim.SGD(embedding.named_parameters(), lr=1.0))
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients, and parameter 'weight'"):
        optimizer.step()


def test_a_closure_that_is_evaluated_twice_is_refused():
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            with torch.enable_grad():
                closure()
                closure()
            return super().step()

    model = small_model()
    optimizer = whiten(Twice(model.parameters(), lr=1e-2))
    with pytest.raises(RuntimeError, match="Twice evaluates its closure several times"):
        optimizer.step(_closure(model, optimizer, 0))
