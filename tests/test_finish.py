"""Every finish against its literal form: the moments, the polar factor, their state, and what is refused."""

import copy
import functools
import io
import itertools
import pickle

import numpy as np
import pytest
import torch
from helpers import flat, make_parameters, take_step, words
from torch import nn

import torch_ggt
from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import backends
from torch_ggt.backends.plain import TorchBackend
from torch_ggt.finish import FINISHES
from torch_ggt.polar import polar
from torch_ggt.reference import FinishReference, GGTReference, polar_factor

# Two matrices of one shape, one to be split in two, a convolution, a stack, a vector, a scalar.
SHAPES = ((4, 3), (4, 3), (2, 5), (4, 1, 3, 2), (2, 2, 3), (3,), ())
GROUPS = ((0, 2, 3, 5), (1, 4, 6))
NAMED = ("adam", "polar", "polar_rows", "polar_exact")

# The five polynomials that docs/finishes.md has for "polar".
CHAIN = (
    (8.300666943488288, -24.037544230253616, 17.46613354566969),
    (4.003386568020227, -2.9228400184427032, 0.5418712697038394),
    (3.4708619972711854, -2.5494043348672903, 0.500203974995579),
    (2.4654613261824356, -1.7803293239089109, 0.4156332347667484),
    (1.917776248731451, -1.2967501911246444, 0.3797048753985847),
)


def five_polynomials(matrix):
    """The stated iteration, one matrix at a time, without its transpose: the polynomials of the singular values."""
    U, sigma, Vt = np.linalg.svd(matrix.numpy(), full_matrices=False)
    sigma = sigma / (1.01 * np.sqrt(np.linalg.norm(sigma**2)))
    for a, b, c in CHAIN:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    return torch.from_numpy(U @ np.diag(sigma) @ Vt)


def gradients_of(steps, shapes=SHAPES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes] for _ in range(steps)]


def parts(scope):
    everything = [*range(len(SHAPES))]
    return {"model": [everything], "group": GROUPS, "parameter": [[i] for i in everything]}[scope]


BETAS, EPS, STEPS = (0.8, 0.9), 1e-6, 100


@functools.cache
def whitened(history, scope, nesterov):
    """(gradients, whitened steps) of all tensors, by the dense matrix of each part: before any finish."""
    betas = BETAS if history == "momentum" else (0.0, BETAS[1])
    options = {"window": 6, "eps": EPS, "jitter": 1e-6, "history": history, "nesterov": nesterov and betas is BETAS}
    references = [(part, GGTReference(**options)) for part in parts(scope)]
    found = []
    for gradients in gradients_of(STEPS):
        steps = [None] * len(SHAPES)
        for part, reference in references:
            u = reference.step(flat(gradients[i] for i in part), betas=betas)
            for i, piece in zip(part, u.split([gradients[i].numel() for i in part]), strict=True):
                steps[i] = piece.reshape(gradients[i].shape)
        found.append((gradients, steps))
    return found


def literal_finish(finish, history, beta, split):
    polar = polar_factor if finish == "polar_exact" else five_polynomials
    options = {"averages": history == "gradient", "eps": EPS, "beta": beta, "split": split, "polar": polar}
    return FinishReference(finish.removesuffix("_exact"), **options)


MIXTURES = [*((name, name) for name in NAMED), ("polar", "adam")]


@pytest.mark.parametrize("finishes", MIXTURES, ids=words)
@pytest.mark.parametrize("history", ["momentum", "gradient"])
@pytest.mark.parametrize("scope", ["model", "group", "parameter"])
def test_every_finish_is_its_literal_form(finishes, history, scope):
    nesterov, beta = scope != "model", None if scope == "group" else 0.9
    parameters = make_parameters(SHAPES)
    groups, literal = [], {}
    for places, finish, split in zip(GROUPS, finishes, (2, 1), strict=True):
        groups.append({"params": [parameters[i] for i in places], "finish": finish, "split": split})
        literal |= {i: literal_finish(finish, history, beta, split) for i in places}
    options = {"window": 6, "history": history, "scope": scope, "nesterov": nesterov, "finish_beta": beta}
    optimizer = GGT(groups, 1.0, BETAS, EPS, adjust_lr_fn="original", **options)
    for t, (gradients, steps) in enumerate(whitened(history, scope, nesterov)):
        found = take_step(optimizer, parameters, gradients)
        for index, (one, u) in enumerate(zip(found, steps, strict=True)):
            expected = literal[index].step(u, beta1=BETAS[0], nesterov=nesterov)
            assert float((one - expected).norm()) <= 1e-8 * float(expected.norm()), (t, index)


def test_whitening_before_torchs_adamw_is_the_fused_step():
    """history="gradient" and "adam": the dense whitened gradients in the hands of torch.optim.AdamW."""
    ours, theirs = make_parameters(SHAPES), make_parameters(SHAPES)
    options = {"lr": 1e-2, "eps": 1e-6, "weight_decay": 0.1}
    optimizer = GGT(
        ours, betas=(0.9, 1.0), window=6, history="gradient", finish="adam", adjust_lr_fn="original", **options
    )
    adamw = torch.optim.AdamW(theirs, betas=(0.9, 0.999), **options)
    whitening = GGTReference(window=6, eps=1e-6, jitter=1e-6)
    for gradients in gradients_of(100):
        u = whitening.step(flat(gradients), betas=(0.0, 1.0))
        pieces = u.split([gradient.numel() for gradient in gradients])
        for one, other, gradient, piece in zip(ours, theirs, gradients, pieces, strict=True):
            one.grad, other.grad = gradient.clone(), piece.reshape(gradient.shape)
        optimizer.step()
        adamw.step()
    assert float((flat(ours) - flat(theirs)).norm()) <= 1e-8 * float(flat(theirs).norm())


def test_polar_is_torchs_muon_up_to_the_iteration():
    """Whitening by a window of one row changes a gradient's length alone, which the polar factor does not see."""
    ours, theirs = make_parameters([(6, 4)], torch.float32), make_parameters([(6, 4)], torch.float32)
    options = {"lr": 1e-2, "weight_decay": 0.1}
    optimizer = GGT(ours, betas=(0.0, 1.0), window=1, history="gradient", finish="polar_exact", **options)
    muon = torch.optim.Muon(theirs, momentum=0.0, nesterov=False, ns_steps=5, adjust_lr_fn="match_rms_adamw", **options)
    for step in range(20):
        gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        ours[0].grad, theirs[0].grad = gradient.clone(), gradient.clone()
        optimizer.step()
        muon.step()
    one, other = ours[0].detach(), theirs[0].detach()
    assert float((one * other).sum() / one.norm() / other.norm()) > 0.97
    assert 0.8 < float(one.norm() / other.norm()) < 1.25


# ---- the polar factor ----------------------------------------------------------------------------------------------


def with_condition(rows, columns, condition, dtype=torch.float64):
    generator = torch.Generator().manual_seed(rows * columns)
    U, _, Vt = torch.linalg.svd(
        torch.randn(rows, columns, generator=generator, dtype=torch.float64), full_matrices=False
    )
    sigma = torch.logspace(0, -np.log10(condition), min(rows, columns), dtype=torch.float64)
    return (U * sigma @ Vt).to(dtype), U @ Vt


SIZES = ((1, 1), (7, 1), (1, 6), (5, 5), (64, 64), (24, 130), (130, 24))


@pytest.mark.parametrize("size", SIZES, ids=words)
@pytest.mark.parametrize(("dtype", "band"), [(torch.float32, (0.99, 1.01)), (torch.bfloat16, (0.9, 1.02))], ids=words)
def test_the_quick_polar_factor_stays_in_its_band(size, dtype, band):
    for condition in (1, 10, 100):
        matrix, exact = with_condition(*size, condition, torch.float32)
        found = polar(matrix[None], dtype=dtype)[0].double()
        singular = torch.linalg.svdvals(found)
        assert band[0] <= float(singular.min())
        assert float(singular.max()) <= band[1]
        assert float((found * exact).sum() / found.norm() / exact.norm()) >= 0.98


@pytest.mark.parametrize("size", SIZES, ids=words)
def test_the_exact_polar_factor_is_that_of_the_svd(size):
    for condition in (1, 100, 1e6):
        matrix, exact = with_condition(*size, condition)
        assert float((polar(matrix[None], exact=True)[0] - exact).abs().max()) <= 1e-9
        found = polar(matrix[None].float(), exact=True)[0]
        assert found.dtype == torch.float32
        if condition <= 100:
            assert float((found - exact).abs().max()) <= 1e-6 * condition


@pytest.mark.parametrize("exact", [False, True])
def test_polar_factors_of_matrices_without_full_rank(exact):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 2), (2, 5)))
    for dtype, scale in itertools.product((torch.float64, torch.float32), (1.0, 1e-30, 1e30)):
        batch = torch.stack([scale * left @ right, torch.zeros(6, 5, dtype=torch.float64)]).to(dtype)
        found = polar(batch, exact=exact)
        assert not found[1].any()
        error = float((found[0].double() - polar_factor(left @ right)).abs().max())
        assert error < (1e-6 if exact and dtype == torch.float64 else 1e-2)


# ---- state ---------------------------------------------------------------------------------------------------------


def half_signs(step):
    return 0.5 * step.sign()


def optimizer_of(parameters, finish, history="gradient", **options):
    """Matrices in one group, all else in the other."""
    matrices, others = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2]
    groups = [{"params": matrices, "finish": finish}, {"params": others, "finish": "adam"}]
    return GGT(groups, **{"lr": 0.1, "window": 4, "history": history, **options})


def advance(optimizer, parameters, steps):
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
        optimizer.step()


@pytest.mark.parametrize("finish", [*NAMED, half_signs], ids=words)
@pytest.mark.parametrize("history", ["momentum", "gradient"])
def test_a_finish_resumes_bitwise(finish, history):
    steps = gradients_of(20)
    steps[3][1] = steps[12][0] = None
    parameters = make_parameters(SHAPES, torch.float32)
    optimizer = optimizer_of(parameters, finish, history)
    advance(optimizer, parameters, steps[:9])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    copies = [nn.Parameter(p.detach().clone()) for p in parameters]
    other = optimizer_of(copies, finish, history)
    other.load_state_dict(torch.load(file, weights_only=True))  # no callable is in there
    twins = copy.deepcopy((parameters, optimizer))
    pickled = pickle.loads(pickle.dumps((parameters, optimizer)))
    for one, whose in ((optimizer, parameters), (other, copies), (twins[1], twins[0]), (pickled[1], pickled[0])):
        advance(one, whose, steps[9:])
    assert other.param_groups[0]["finish"] == finish
    for others in (copies, twins[0], pickled[0]):
        assert torch.equal(flat(parameters), flat(others))


@pytest.mark.parametrize(
    ("finish", "history", "keys"),
    [
        ("adam", "gradient", {"exp_avg", "exp_avg_sq", "step"}),
        ("adam", "momentum", {"momentum_buffer", "exp_avg_sq", "step"}),
        ("polar", "gradient", {"exp_avg"}),
        ("polar", "momentum", {"momentum_buffer"}),
        ("polar_rows", "gradient", {"exp_avg", "row_squares"}),
        (half_signs, "gradient", {"exp_avg"}),
    ],
    ids=words,
)
def test_a_finish_allocates_what_it_needs(finish, history, keys):
    parameters = make_parameters([(64, 32), (64,)], torch.float32)
    optimizer = optimizer_of(parameters, finish, history)
    advance(optimizer, parameters, gradients_of(1, [(64, 32), (64,)]))
    entry = {key: value for key, value in optimizer.state[parameters[0]].items() if key != "window"}
    matrix = {"gram", "decay", "momentum", "position", "count", "skipped"}
    assert entry.keys() - matrix == keys
    assert entry.get("step", torch.ones(())).dtype == torch.float32
    (block,) = optimizer.attached_blocks()
    small = sum(tensor.numel() for tensors in block.small for tensor in tensors.values())
    held = block.row.numel() + sum(flat.numel() for flat, _ in block.buffers.values()) + small
    d = block.row.numel()
    assert held <= {"adam": 3, "polar": 2.1}.get(finish, 2.2) * d + 4


def test_a_skipped_step_and_a_missing_gradient_leave_the_state_of_a_finish():
    steps = gradients_of(3)
    parameters = make_parameters(SHAPES)
    optimizer = optimizer_of(parameters, "polar_rows")
    advance(optimizer, parameters, steps[:1])
    before = copy.deepcopy(optimizer.state_dict()["state"])
    steps[1][2][0, 0] = torch.nan
    with pytest.warns(UserWarning, match="skipped a step"):
        advance(optimizer, parameters, steps[1:2])
    after = optimizer.state_dict()["state"]
    for index, entry in before.items():
        assert all(torch.equal(value, after[index][key]) for key, value in entry.items() if key != "skipped")
    advance(optimizer, parameters, [[None, *steps[2][1:6], None]])
    kept = {"exp_avg", "exp_avg_sq", "step", "row_squares"}
    for index in (0, len(SHAPES) - 1):  # the order of the saved state is that of the groups
        entry = optimizer.state_dict()["state"][index]
        assert all(torch.equal(before[index][key], entry[key]) for key in kept & entry.keys())


def test_a_step_of_zeros_before_the_first_gradient_leaves_no_trace():
    """torch's tools make such a step, and it must not count."""
    straight, probed = make_parameters(SHAPES), make_parameters(SHAPES)
    one, other = optimizer_of(straight, "polar_rows", eps=0.0), optimizer_of(probed, "polar_rows", eps=0.0)
    advance(other, probed, [[torch.zeros(shape) for shape in SHAPES]])
    for optimizer, parameters in ((one, straight), (other, probed)):
        advance(optimizer, parameters, gradients_of(5))
    assert torch.equal(flat(straight), flat(probed))
    assert flat(probed).isfinite().all()


def test_a_gpu_would_keep_the_state_of_a_step_that_is_not_taken(monkeypatch):
    """The masks of a device whose numbers the host does not see, on a CPU: plain torch makes the step."""
    monkeypatch.setattr(backends, "choose", lambda _: TorchBackend())
    steps = gradients_of(8)
    bad = [gradient.clone() for gradient in steps[5]]
    bad[0][0, 0] = torch.inf
    for finish in ("adam", "polar_rows", half_signs):
        ends = []
        for sequence in (steps, [*steps[:3], bad, *steps[3:]]):
            parameters = make_parameters(SHAPES)
            optimizer = optimizer_of(parameters, finish, weight_decay=0.1, solver="cholesky")
            advance(optimizer, parameters, sequence)
            ends.append(flat(parameters))
        assert optimizer.skipped == 1
        assert torch.equal(*ends)


# ---- callables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda step: step[:1],
            r"must return a tensor of shape \(2, 3\) for parameter 'weight', and returned a .* \(1, 3\)",
        ),
        (lambda step: None, "for parameter 'weight', and returned None"),
    ],
    ids=["another shape", "no tensor"],
)
def test_a_callable_that_returns_something_else_is_named(function, words):
    (parameter,) = parameters = make_parameters([(2, 3)])
    optimizer = GGT([("weight", parameter)], finish=function)
    with pytest.raises(ValueError, match=words):
        advance(optimizer, parameters, gradients_of(1, [(2, 3)]))
    assert not parameter.any()


@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_a_nan_of_a_callable_leaves_the_parameters(nonfinite):
    calls = itertools.count()
    parameters = make_parameters([(2, 3), (3,)])
    optimizer = GGT(
        [
            {"params": parameters[:1], "finish": lambda u: u * (torch.nan if next(calls) == 2 else 1)},
            {"params": parameters[1:]},
        ],
        **{"lr": 0.1, "weight_decay": 0.1, "window": 3, "nonfinite": nonfinite},
    )
    steps = gradients_of(4, [(2, 3), (3,)])
    advance(optimizer, parameters, steps[:2])
    before = flat(parameters).clone()
    if nonfinite == "raise":
        with pytest.raises(RuntimeError, match="made a number that is not finite"):
            advance(optimizer, parameters, steps[2:3])
    else:
        with pytest.warns(UserWarning, match="finish of a param group made a number"):
            advance(optimizer, parameters, steps[2:3])
        assert optimizer.skipped == 1
    assert torch.equal(flat(parameters), before)
    advance(optimizer, parameters, steps[3:])
    assert flat(parameters).isfinite().all()
    assert not torch.equal(flat(parameters), before)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_nan_of_a_callable_leaves_other_matrices_alone(bad):
    """Each matrix has a verdict of its own on what a function made of its step."""
    calls = itertools.count()
    parameters = make_parameters([(2, 3), (3,)])
    finishes = [lambda u: u * torch.nan if next(calls) == 1 else u, "adam"]
    groups = [{"params": [p], "finish": finishes[i != bad]} for i, p in enumerate(parameters)]
    optimizer = GGT(groups, lr=0.1, window=3, scope="group")
    first, second = gradients_of(2, [(2, 3), (3,)])
    take_step(optimizer, parameters, first)
    with pytest.warns(UserWarning, match="parameters of its full matrix are unchanged"):
        steps = take_step(optimizer, parameters, second)
    assert [bool(step.any()) for step in steps] == [place != bad for place in (0, 1)]
    assert [int(optimizer.state[p]["count"]) for p in parameters] == [2, 2]


def test_a_finish_of_some_groups_leaves_the_length_of_the_others():
    """Momentum in the window: a group without a finish makes the step that it makes alone, of RMS 0.2."""
    found = []
    for finish in ("none", "polar"):
        matrix, bias = parameters = make_parameters([(4, 5), (7,)])
        groups = [{"params": [matrix], "finish": finish}, {"params": [bias]}]
        optimizer = GGT(groups, lr=1.0, window=3, finish="none")
        take_step(optimizer, parameters, gradients_of(1, [(4, 5), (7,)])[0])
        found.append(bias.detach().clone())
    torch.testing.assert_close(*found)


def test_a_finish_that_no_group_would_use_is_an_error():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"finish='polar_rows' has no effect.*write param_groups\(model, finish=…\)"):
        torch_ggt.GGT(torch_ggt.param_groups(model), finish="polar_rows")
    groups = torch_ggt.GGT(torch_ggt.param_groups(model, finish="polar_rows")).param_groups
    assert "polar_rows" in {group["finish"] for group in groups}


def test_a_callable_is_saved_by_its_name():
    def other_function(step):
        return step

    parameters = make_parameters([(2, 3)])
    optimizer = GGT(parameters, finish=half_signs)
    advance(optimizer, parameters, gradients_of(1, [(2, 3)]))
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["finish"] == "callable half_signs"
    with pytest.raises(ValueError, match="finish='callable half_signs'"):
        GGT(make_parameters([(2, 3)]), finish=other_function).load_state_dict(saved)
    with pytest.raises(ValueError, match="finish='callable half_signs'"):
        GGT(make_parameters([(2, 3)])).load_state_dict(saved)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "words"),
    [
        ((4, 3), torch.float32, {"finish": "polar", "split": 3}, "parameter 'weight' .* has 4 rows, which are not 3"),
        ((2, 4, 3), torch.float32, {"finish": "polar", "split": 3}, "has 4 rows, which are not 3 equal blocks"),
        ((4, 3), torch.complex64, {"finish": "polar_rows"}, "'weight' .* is complex, .* finish='adam'"),
        ((4,), torch.complex64, {"finish": half_signs}, "'weight' .* is complex, .* finish='adam'"),
        ((4,), torch.float32, {"finish_beta": 1.0}, r"finish_beta must be None or a number in \[0, 1\)"),
        ((4,), torch.float32, {"split": 0}, "split must be an int ≥ 1"),
        ((4,), torch.float32, {"finish": 3}, "or a function of a tensor, got finish=3"),
    ],
    ids=words,
)
def test_what_has_no_such_form_is_refused_at_construction(shape, dtype, options, words):
    with pytest.raises(ValueError, match=words):
        GGT([("weight", nn.Parameter(torch.zeros(shape, dtype=dtype)))], **options)


def test_gradients_in_the_window_need_a_finish_in_all_groups_or_in_none():
    def make(**options):
        one, other = make_parameters([(2, 3), (3,)])
        return GGT([{"params": [one], "finish": "polar"}, {"params": [other]}], **options)

    with pytest.raises(ValueError, match="must all have a finish"):
        make(history="gradient")
    make(history="momentum")
    make(history="gradient", scope="group")


def test_every_named_finish_is_tested_here():
    assert FINISHES.keys() == {"none", *NAMED}
