"""The recorder against lists of gradients and their SVD, the diagnosis against dense steps; training is untouched."""

import copy
import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from helpers import flat, make_parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import Whitening, Window, reference, whiten
from torch_ggt.spectrum import SpectrumRecorder, StepComparison, compare_steps, diagnose
from torch_ggt.spectrum.diagnosis import effective_rank, eigenvalues_above_rounding, isotropic_moment, stable_rank

SHAPES = ((2, 3), (), (5,))


def random_gradients(steps, shapes=SHAPES, dtype=torch.float64):
    return [[torch.randn(shape, dtype=dtype) for shape in shapes] for _ in range(steps)]


def take(optimizer, parameters, gradients):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    optimizer.step()


def window_of(rows, size, beta2=1.0, dtype=torch.float64):
    window = Window(size, len(rows[0]), dtype=dtype)
    for row in torch.stack(list(rows)).double():
        window.push(row, window.measure(row), betas=(0.0, beta2))
    return window


def svd_of_last(rows, size, beta2=1.0):
    """Singular values of the newest ``size`` rows, each times β₂ per step of age."""
    newest = [beta2**age * np.asarray(row) for age, row in enumerate(reversed(rows[-size:]))]
    return np.linalg.svd(np.stack(newest), compute_uv=False)


def assert_spectrum(record, expected, rtol=1e-9):
    found = record.singular_values
    assert found.dtype == torch.float64
    padded = np.zeros(found.numel())  # more rows than columns: NumPy gives no zeros for those
    padded[: len(expected)] = expected
    # Of zeros the Gram leaves √rounding.
    np.testing.assert_allclose(found.numpy(), padded, rtol=rtol, atol=1e-7 * expected[0])


# ---- records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta2", [1.0, 0.8])
@pytest.mark.parametrize("history", ["momentum", "gradient"])
def test_records_of_a_ggt_are_the_svd_of_its_decayed_history(history, beta2):
    parameters = make_parameters(SHAPES)
    optimizer = GGT(parameters, window=4, history=history, betas=(0.6, beta2))
    rows, momentum = [], 0.0
    with SpectrumRecorder(optimizer) as recorder:
        for gradients in random_gradients(9):
            take(optimizer, parameters, gradients)
            gradient = flat(gradients).numpy()
            momentum = 0.6 * momentum + gradient
            rows.append(momentum if history == "momentum" else gradient)
            assert_spectrum(recorder.records[-1], svd_of_last(rows, 4, beta2))
            torch.testing.assert_close(recorder.records[-1].singular_values, optimizer.spectrum()[0])
    assert [record.step for record in recorder.records] == list(range(1, 10))
    assert {(record.block, record.history) for record in recorder.records} == {(0, history)}
    assert "no window of its own" in recorder.cost


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_records_of_any_optimizer_are_the_svd_of_its_gradients(make):
    parameters = make_parameters(SHAPES)
    optimizer = make(parameters, lr=0.1)
    rows = []
    with SpectrumRecorder(optimizer, window=4, window_dtype=torch.float64) as recorder:
        for gradients in random_gradients(9):
            take(optimizer, parameters, gradients)
            rows.append(flat(gradients).numpy())
            assert_spectrum(recorder.records[-1], svd_of_last(rows, 4))
    assert {record.history for record in recorder.records} == {"gradient"}
    assert recorder.cost == "a window of its own: 4 × 12 float64 = 384 B (and a row), and one pass over it per step"


def test_a_bfloat16_window_is_that_of_the_rounded_rows():
    parameters = make_parameters(SHAPES, dtype=torch.float32)
    optimizer = torch.optim.SGD(parameters)
    rows = []
    with SpectrumRecorder(optimizer, window=3, window_dtype=torch.bfloat16) as recorder:
        for gradients in random_gradients(5, dtype=torch.float32):
            take(optimizer, parameters, gradients)
            rows.append(flat(gradients).bfloat16().double().numpy())
    assert_spectrum(recorder.records[-1], svd_of_last(rows, 3))
    assert "3 × 12 bfloat16 = 72 B" in recorder.cost
    assert recorder.diagnose().rounding == 2.0**-16


def test_every_and_the_window_between_records():
    parameters = make_parameters(SHAPES)
    optimizer = torch.optim.SGD(parameters)
    rows = []
    with SpectrumRecorder(optimizer, every=3, window=4, window_dtype=torch.float64) as recorder:
        for gradients in random_gradients(10):
            take(optimizer, parameters, gradients)
            rows.append(flat(gradients).numpy())
    assert [record.step for record in recorder.records] == [3, 6, 9]
    for record in recorder.records:
        assert_spectrum(record, svd_of_last(rows[: record.step], 4))


def test_missing_late_and_complex_gradients():
    parameters = [nn.Parameter(torch.zeros(2, dtype=torch.float64)), nn.Parameter(torch.zeros(2, dtype=torch.cdouble))]
    late = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD(parameters)
    with SpectrumRecorder(optimizer, window=5, window_dtype=torch.float64) as recorder:
        optimizer.step()  # no gradients at all: nothing to record
        take(optimizer, parameters, [torch.tensor([3.0, 0.0], dtype=torch.float64), None])
        take(optimizer, parameters, [None, torch.tensor([2j, 0.0], dtype=torch.cdouble)])
        optimizer.add_param_group({"params": [late]})
        parameters.append(late)
        take(optimizer, parameters, [None, None, None])
        assert recorder.diagnose().rows == 2
        take(optimizer, parameters, [None, None, torch.ones(3, dtype=torch.float64)])
    assert [record.step for record in recorder.records] == [2, 3, 5]
    expected = torch.tensor([3.0, 2.0, math.sqrt(3)], dtype=torch.float64)
    torch.testing.assert_close(recorder.records[-1].singular_values, expected)


@pytest.mark.parametrize("scope", ["group", "parameter"])
def test_every_full_matrix_is_recorded(scope):
    parameters = make_parameters(SHAPES)
    groups = [{"params": parameters[:2], "history": "gradient"}, {"params": parameters[2:], "window": 2}]
    optimizer = (
        GGT(groups, window=3, scope=scope, betas=(0.5, 1.0))
        if scope == "group"
        else GGT(parameters, window=3, scope=scope, betas=(0.0, 1.0))
    )
    all_gradients = random_gradients(5)
    with SpectrumRecorder(optimizer) as recorder:
        for gradients in all_gradients:
            take(optimizer, parameters, gradients)
    last = {record.block: record for record in recorder.records}
    if scope == "group":
        momentum, rows = 0.0, []
        for gradients in all_gradients:
            momentum = 0.5 * momentum + flat(gradients[2:]).numpy()
            rows.append(momentum)
        assert_spectrum(last[0], svd_of_last([flat(g[:2]).numpy() for g in all_gradients], 3))
        assert_spectrum(last[1], svd_of_last(rows, 2))
        assert (last[0].history, last[1].history) == ("gradient", "momentum")
        assert recorder.to_json(block=1)["window"] == 2
        assert recorder.to_json(block=1)["label"] == "PaperGGT, block 1 (5 of 12 elements)"
        assert recorder.to_json()["label"] == "PaperGGT, block 0 (the largest of 2, 7 of 12 elements)"
    else:
        for index in range(3):
            assert_spectrum(last[index], svd_of_last([flat([g[index]]).numpy() for g in all_gradients], 3))
        assert recorder.to_json()["label"] == "PaperGGT, block 0 (the largest of 3, 6 of 12 elements)"
        assert recorder.to_json()["singular_values"][-1] == last[0].singular_values.tolist()
        assert recorder.to_json(block=2)["label"] == "PaperGGT, block 2 (5 of 12 elements)"
        assert "for each of 3 matrices" in recorder.cost


# ---- training is as it was -----------------------------------------------------------------------------------------

OPTIMIZERS = {
    "GGT": lambda p: GGT(p, window=3),
    "GGT-parameter": lambda p: GGT(p, window=3, scope="parameter", history="gradient", solver="cholesky"),
    "Adam": torch.optim.Adam,
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


def train(make, *, record, closure, steps=8):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1))
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    recorder = SpectrumRecorder(optimizer, diagnose_every=2) if record else None
    inputs = torch.randn(5, 4)

    def evaluate():
        optimizer.zero_grad()
        loss = model(inputs).square().sum()
        loss.backward()
        return loss

    losses = []
    for index in range(steps):
        if closure == "by name":
            losses.append(optimizer.step(closure=evaluate))
        elif closure == "positional":
            losses.append(optimizer.step(evaluate))
        else:
            losses.append(evaluate())
            optimizer.step()
        if recorder is not None and index == 5:
            json.dumps(recorder.to_json())
        scheduler.step()
    return recorder, [*losses, *model.parameters(), torch.rand(1)], optimizer.state_dict()


@pytest.mark.parametrize(("name", "closure"), [
    *((name, None) for name in OPTIMIZERS if name != "LBFGS"),
    *((name, "positional") for name in ("GGT", "Adam", "LBFGS")),
    ("SGD", "by name"),
])  # fmt: skip
def test_training_is_the_same_to_the_last_bit(name, closure):
    _, plain, state = train(OPTIMIZERS[name], record=False, closure=closure)
    recorder, recorded, recorded_state = train(OPTIMIZERS[name], record=True, closure=closure)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    leaves, other = (
        torch.utils._pytree.tree_leaves(state["state"]),
        torch.utils._pytree.tree_leaves(recorded_state["state"]),
    )
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(leaves, other, strict=True))
    assert {record.step for record in recorder.records} == set(range(1, 9))


def test_with_a_closure_the_gradients_are_those_of_its_first_evaluation():
    parameter = nn.Parameter(torch.tensor([4.0, 0.0]))
    optimizer = torch.optim.LBFGS([parameter], lr=0.1, max_iter=4)
    evaluated = []

    def closure():
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        evaluated.append(parameter.grad.clone())
        return loss

    with SpectrumRecorder(optimizer, window=2) as recorder:
        assert optimizer.step(closure) == 16.0
        assert len(evaluated) > 1
        torch.testing.assert_close(recorder.records[0].singular_values, evaluated[0].double().norm()[None])


def test_closing_removes_the_hooks():
    parameters = make_parameters(SHAPES)
    for optimizer in (GGT(parameters, window=2), torch.optim.SGD(parameters)):
        with SpectrumRecorder(optimizer) as recorder:
            take(optimizer, parameters, random_gradients(1)[0])
        recorder.close()  # again does nothing
        take(optimizer, parameters, random_gradients(1)[0])
        assert [record.step for record in recorder.records] == [1]
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
        assert recorder.diagnose().records == 1
        copy.deepcopy(optimizer)


# ---- what is not finite --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("make", [torch.optim.SGD, lambda p: GGT(p, window=3)])
def test_a_gradient_that_is_not_finite_is_as_if_it_never_was(make, bad):
    good = random_gradients(5)
    spectra = []
    for spoil in (False, True):
        parameters = make_parameters(SHAPES)
        optimizer = make(parameters)
        with SpectrumRecorder(optimizer, **({} if isinstance(optimizer, GGT) else {"window": 3})) as recorder:
            for step, gradients in enumerate(good):
                take(optimizer, parameters, gradients)
                if spoil and step == 2:
                    spoiled = [gradients[0], torch.full_like(gradients[1], bad), gradients[2]]
                    if isinstance(optimizer, GGT):
                        with pytest.warns(UserWarning, match="skipped a step"):
                            take(optimizer, parameters, spoiled)
                    else:
                        take(optimizer, parameters, spoiled)
        spectra.append(recorder.records)
    assert [record.step for record in spectra[1]] == [1, 2, 3, 5, 6]
    for clean, spoiled in zip(*spectra, strict=True):
        assert torch.equal(clean.singular_values, spoiled.singular_values)


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler(fused):
    """Scaled gradients are recorded unscaled, also where unscaling is left to a fused step; skipped steps are not."""
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([parameter], fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    slopes = [torch.tensor([3.0, 0.0, 0.0]), torch.tensor([math.inf, 0.0, 0.0]), torch.tensor([0.0, 4.0, 0.0])]
    with SpectrumRecorder(optimizer, window=4) as recorder:
        for slope in slopes:
            optimizer.zero_grad()
            scaler.scale((slope * parameter).nansum()).backward()
            if math.isinf(float(slope[0])):
                parameter.grad[0] = math.inf
            scaler.step(optimizer)
            scaler.update()
    assert len(recorder.records) == 2
    torch.testing.assert_close(recorder.records[-1].singular_values, torch.tensor([4.0, 3.0], dtype=torch.float64))


# ---- steps compared ------------------------------------------------------------------------------------------------


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize(("steps", "beta2"), [(7, 1.0), (17, 1.0), (17, 0.9), (4, 0.9)])
def test_compared_steps_are_the_dense_ones(steps, beta2):
    """Before and after the ring is full, against the SVD of `reference` and its diagonal method."""
    size, d, eps, jitter = 7, 30, 1e-3, 1e-4
    rows = list(torch.randn(steps, d, dtype=torch.float64) * torch.logspace(-2, 1, d, dtype=torch.float64))
    found = compare_steps(window_of(rows, size, beta2), eps=eps, jitter=jitter)

    def dense(count, columns):
        G = torch.zeros(d, columns, dtype=torch.float64)
        for age in range(min(count, steps)):
            G[:, age] = beta2**age * rows[-1 - age]
        return reference.inverse_root(G, rows[-1], eps=eps, jitter=jitter)

    u = dense(size, size)
    diagonal = reference.diagonal_forgetting(rows[-size:], beta2=beta2, eps=eps)[-1]
    assert found.diagonal == pytest.approx(cosine(u, diagonal), abs=1e-9)
    assert found.sgd == pytest.approx(cosine(u, rows[-1]), abs=1e-9)
    filled = min(size, steps)
    assert list(found.by_window) == [s for s in (1, 2, 5) if s < filled] + [filled]
    for s, value in found.by_window.items():
        assert value == pytest.approx(cosine(u, dense(s, size if s == filled else s)), abs=1e-9)


def test_a_wide_window_is_read_in_blocks(monkeypatch):
    window = window_of(torch.randn(5, 100), 4, dtype=torch.float32)
    whole = compare_steps(window)
    monkeypatch.setattr("torch_ggt.spectrum.comparison._BLOCK", 28)  # 7 columns at a time
    assert compare_steps(window).diagonal == pytest.approx(whole.diagonal, abs=1e-12)


def test_the_step_compared_is_the_one_that_ggt_takes():
    parameters = make_parameters(SHAPES)
    optimizer = GGT(parameters, lr=1.0, window=4, betas=(0.7, 0.9))
    momentum = torch.zeros(12, dtype=torch.float64)
    with SpectrumRecorder(optimizer) as recorder:
        for gradients in random_gradients(6):
            before = flat(parameters)
            take(optimizer, parameters, gradients)
            momentum = 0.7 * momentum + flat(gradients)
    assert recorder.diagnose().cosine_sgd == pytest.approx(cosine(before - flat(parameters), momentum), abs=1e-9)


@pytest.mark.parametrize("shrinkage", ["auto", 0.3])
def test_the_step_compared_is_shrunk_as_the_step_that_is_taken(shrinkage):
    parameters = make_parameters(SHAPES)
    optimizer = GGT(parameters, lr=1.0, window=4, betas=(0.0, 1.0), shrinkage=shrinkage)
    with SpectrumRecorder(optimizer) as recorder:
        for gradients in random_gradients(6):
            before = flat(parameters)
            take(optimizer, parameters, gradients)
    assert recorder.diagnose().cosine_sgd == pytest.approx(cosine(before - flat(parameters), flat(gradients)), abs=1e-9)


@pytest.mark.parametrize("way", ["the optimizer", "its whitening", "a loop without an optimizer"])
def test_a_whitened_optimizer_shows_its_own_window(way):
    """The raw gradients, and not those that were whitened; and no second window."""
    parameters = make_parameters(SHAPES)
    optimizer = whiten(torch.optim.SGD(parameters, lr=0.1), window=4)
    whitening = Whitening(parameters, window=4) if way == "a loop without an optimizer" else optimizer.whitening
    seen = []
    with SpectrumRecorder(optimizer if way == "the optimizer" else whitening) as recorder:
        for gradients in random_gradients(6):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            (optimizer.step if way != "a loop without an optimizer" else whitening)()
            seen.append(flat(gradients))
    rows = torch.stack(seen[-4:])
    torch.testing.assert_close(recorder.records[-1].singular_values, torch.linalg.svdvals(rows))
    assert "no window of its own" in recorder.cost
    found = recorder.diagnose()
    assert found.history == "gradient"
    assert f"{found.noise:.0%} of a gradient lies outside the span of the other rows" in found.verdict


matrices = st.integers(1, 12).flatmap(
    lambda r: st.tuples(st.just(r), st.integers(1, 15), st.integers(0, 2**32 - 1), st.floats(0, 6))
)


@settings(deadline=None, max_examples=60)
@given(matrices)
def test_window_sufficiency_of_any_rows(case):
    size, d, seed, spread = case
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(size, d, dtype=torch.float64, generator=generator)
    rows *= 10 ** (spread * torch.rand(size, 1, dtype=torch.float64, generator=generator))
    found = compare_steps(window_of(rows, size), eps=0.0)
    assert found.by_window[size] == pytest.approx(1.0, abs=1e-12)
    assert found.by_window[1] == pytest.approx(found.sgd, abs=1e-9)  # a single row is the gradient itself
    assert all(-1 <= value <= 1 for value in found.by_window.values())
    larger = compare_steps(window_of(2.0**20 * rows, size), eps=0.0)  # a power of two is exact, however ill the rows
    assert larger.diagonal == pytest.approx(found.diagonal, abs=1e-12)
    assert larger.by_window == pytest.approx(found.by_window, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_orthogonal_rows_need_no_window(size, seed):
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(40, size, dtype=torch.float64, generator=generator)).Q.T
    lengths = 1 + torch.rand(size, 1, dtype=torch.float64, generator=generator)
    found = compare_steps(window_of(lengths * Q, size))
    assert all(value == pytest.approx(1.0, abs=1e-9) for value in (*found.by_window.values(), found.sgd))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.bfloat16]))
def test_collinear_rows_are_of_rank_one(size, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(1000, dtype=torch.float64, generator=generator)
    rows = (torch.rand(size, 1, dtype=torch.float64, generator=generator) + 0.1) * direction
    window = window_of(rows, size, dtype=dtype)
    spectrum = window.singular_values()
    diagnosis = diagnose([spectrum], [compare_steps(window)], isotropic=isotropic_moment(torch.ones(size)), dtype=dtype)
    assert diagnosis.dropped == size - 1
    assert diagnosis.condition == 1.0
    assert diagnosis.effective_rank == pytest.approx(1.0, abs=1e-3)
    exact = compare_steps(window_of(rows, size))  # float64: what rounding makes of it aside
    assert all(value == pytest.approx(1.0, abs=1e-6) for value in exact.by_window.values())


# ---- numbers and words ---------------------------------------------------------------------------------------------


def diagnosis_of(rows, size, *, beta1=0.0, history="gradient"):
    """The diagnosis of rows that come in one by one, by the window's own means."""
    window, spectra = Window(size, len(rows[0]), dtype=torch.float64), []
    for row in rows:
        window.push(row, window.measure(row), betas=(0.0, 1.0))
        spectra.append(window.singular_values()[: int(window.count)])
    return diagnose(
        spectra, [compare_steps(window)], isotropic=isotropic_moment(torch.ones(size), beta1=beta1), history=history
    )


def test_ranks_and_condition_against_scipy():
    rows = torch.randn(30, 40, dtype=torch.float64) * torch.logspace(-2, 0, 40, dtype=torch.float64)
    diagnosis = diagnosis_of(rows, 10)
    recent = [np.linalg.svd(rows[end - 10 : end].numpy(), compute_uv=False) for end in range(23, 31)]  # 8 of 30
    everything = [np.linalg.svd(rows[max(0, end - 10) : end].numpy(), compute_uv=False) for end in range(1, 31)]
    expected = {
        "condition": np.median([(s[0] / s[-1]) ** 2 for s in recent]),
        "condition_max": max((s[0] / s[-1]) ** 2 for s in everything),
        "effective_rank": np.median([np.exp(scipy.stats.entropy(s**2)) for s in recent]),
        "stable_rank": np.median([(s**2).sum() / s[0] ** 2 for s in recent]),
    }
    for name, value in expected.items():
        assert getattr(diagnosis, name) == pytest.approx(value, rel=1e-9), name
    assert diagnosis.numbers()["energy_beyond_diagonal"] == pytest.approx(1 - diagnosis.cosine_diagonal**2)
    assert (diagnosis.condition_isotropic, diagnosis.effective_rank_isotropic) == pytest.approx((1.0, 10.0))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_isotropic_moment_is_that_of_momentum_over_orthonormal_gradients(beta1, nesterov):
    past, size = 500, 6
    gradients, momentum, rows = np.eye(past), np.zeros(past), []
    for gradient in gradients:
        momentum = beta1 * momentum + gradient
        rows.append(gradient + beta1 * momentum if nesterov else momentum)
    newest = np.stack(rows[::-1][:size]) * 0.9 ** np.arange(size)[:, None]
    found = isotropic_moment(0.9 ** torch.arange(size), beta1=beta1, nesterov=nesterov)
    np.testing.assert_allclose(found.numpy(), newest @ newest.T, rtol=1e-6, atol=1e-12)  # float32 powers of 0.9


def test_verdict_where_there_is_no_structure():
    rows = torch.randn(60, 5000, dtype=torch.float64)
    plain = diagnosis_of(rows[:20], 10)
    assert "Little to gain over SGD or a diagonal method such as Adam" in plain.verdict
    assert plain.condition < 2
    assert plain.sufficient_window == 1

    momentum, filtered = 0.0, []
    for row in rows:
        momentum = 0.9 * momentum + row
        filtered.append(momentum)
    # Momentum alone makes a condition number of a hundred and turns the step; that is not structure.
    with_momentum = diagnosis_of(filtered, 10, beta1=0.9, history="momentum")
    assert with_momentum.condition > 50
    assert with_momentum.condition == pytest.approx(with_momentum.condition_isotropic, rel=0.2)
    assert with_momentum.cosine_sgd == pytest.approx(with_momentum.cosine_sgd_isotropic, abs=0.02)
    assert with_momentum.cosine_sgd < 0.9
    assert with_momentum.effective_rank == pytest.approx(with_momentum.effective_rank_isotropic, rel=0.1)
    assert "Little reason to expect a gain" in with_momentum.verdict


def test_verdict_where_there_is_structure():
    scales = torch.tensor([100.0, 30.0, 10.0, 3.0, 1.0], dtype=torch.float64)
    along_axes = torch.randn(400, 5, dtype=torch.float64) * scales
    aligned = diagnosis_of(along_axes, 200)
    assert "Little to gain over a diagonal method such as Adam," in aligned.verdict
    assert aligned.condition > 1e3
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    rotated = diagnosis_of(along_axes @ rotation, 200)
    assert "Worth a race" in rotated.verdict
    assert "does not prove" in rotated.verdict
    assert rotated.condition == pytest.approx(aligned.condition, rel=1e-6)
    assert rotated.dropped == 195
    assert rotated.verdict in rotated.summary
    assert "195 eigenvalues at rounding level" in rotated.summary


def test_verdict_where_gradients_are_mostly_noise():
    def residual(rows, i):  # of the best combination of the other rows, by SciPy
        fit = scipy.linalg.lstsq(np.delete(rows, i, 0).T, rows[i])[0]
        return np.square(rows[i] - np.delete(rows, i, 0).T @ fit).sum() / np.square(rows[i]).sum()

    directions = torch.linalg.qr(torch.randn(3000, 3, dtype=torch.float64)).Q * torch.tensor([400.0, 200.0, 100.0])
    signal = torch.randn(20, 3, dtype=torch.float64) @ directions.mT
    for size, words in (
        (1e-1, "Worth a race"),
        (4.0, "lies outside the span of the other rows. Gradients with so much"),
    ):
        rows = signal + torch.randn(20, 3000, dtype=torch.float64) * size
        found = diagnosis_of(rows, 20)
        assert found.noise == pytest.approx(np.mean([residual(rows.numpy(), i) for i in range(20)]), rel=1e-3)
        assert words in found.verdict, found.summary
    momentum = diagnosis_of(rows, 20, history="momentum")
    assert math.isnan(momentum.noise)
    assert "Worth a race" in momentum.verdict


def test_no_shorter_window_suffices():
    comparison = StepComparison(diagonal=0.5, sgd=0.5, by_window={1: 0.5, 2: 0.94, 4: 1.0})
    sigma = torch.tensor([9.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    diagnosis = diagnose([sigma], [comparison], isotropic=torch.eye(4, dtype=torch.float64))
    assert diagnosis.sufficient_window is None
    assert "4 rows or more are needed" in diagnosis.summary
    enough = StepComparison(diagonal=0.5, sgd=0.5, by_window={1: 0.5, 2: 0.96, 4: 1.0})
    assert diagnose([sigma], [enough], isotropic=torch.eye(4, dtype=torch.float64)).sufficient_window == 2


def test_cosines_are_medians_over_the_last_quarter_of_the_moments():
    parameters = make_parameters(SHAPES)
    optimizer = torch.optim.SGD(parameters)
    rows, cosines = [], []
    with SpectrumRecorder(optimizer, window=3, window_dtype=torch.float64, diagnose_every=2) as recorder:
        for step, gradients in enumerate(random_gradients(24), start=1):
            take(optimizer, parameters, gradients)
            rows.append(flat(gradients))
            if step % 2 == 0:
                cosines.append(compare_steps(window_of(rows[-3:], 3)).diagonal)
    diagnosis = recorder.diagnose()
    assert diagnosis.moments == 12
    assert diagnosis.cosine_diagonal == pytest.approx(np.median(cosines[-3:]), abs=1e-12)
    assert "the median of the last 3 of 12 moments" in diagnosis.summary


def test_a_window_of_zeros_tells_nothing():
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter])
    with SpectrumRecorder(optimizer, window=2) as recorder:
        take(optimizer, [parameter], [torch.zeros(3)])  # a first gradient of zeros leaves the window empty
        assert recorder.records == []
        take(optimizer, [parameter], [torch.ones(3)])
        assert "Nothing can be said of a single row" in recorder.diagnose().verdict
        for _ in range(3):
            take(optimizer, [parameter], [torch.zeros(3)])
    found = recorder.to_json()
    assert "Nothing can be said: the newest rows are zero" in found["diagnosis"]["summary"]
    assert found["diagnosis"]["numbers"]["cosine_diagonal"] is None
    assert found["singular_values"][-1] == [0.0, 0.0]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert math.isnan(effective_rank(torch.zeros(2)))
    assert math.isnan(stable_rank(torch.zeros(2)))
    assert eigenvalues_above_rounding(torch.zeros(2)).numel() == 0


@pytest.mark.parametrize("make", [lambda p: GGT(p, window=6), torch.optim.Adam])
def test_json_round_trip(make):
    parameters = make_parameters(SHAPES)
    optimizer = make(parameters)
    recorder = SpectrumRecorder(optimizer, **({} if isinstance(optimizer, GGT) else {"window": 6}))
    empty = recorder.to_json()
    assert (empty["steps"], empty["diagnosis"]["summary"]) == ([], "Nothing was recorded.")
    for gradients in random_gradients(8):
        take(optimizer, parameters, gradients)
    found = recorder.to_json()
    recorder.close()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert list(found) == ["label", "window", "history", "steps", "singular_values", "diagnosis", "cost"]
    assert list(empty) == list(found)
    assert (found["label"], found["window"]) == (type(optimizer).__name__, 6)
    assert found["history"] == ("momentum" if isinstance(optimizer, GGT) else "gradient") == empty["history"]
    assert [len(values) for values in found["singular_values"]] == [1, 2, 3, 4, 5, 6, 6, 6]
    assert found["steps"] == list(range(1, 9))
    assert found["diagnosis"]["numbers"]["cosine_by_window"]["6"] == pytest.approx(1.0)
    assert recorder.to_json("mine")["label"] == "mine"


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be an integer of at least 1, got every=0"),
        ({"every": 1.5}, "every must be an integer"),
        ({"window": 0}, "window must be an integer of at least 1, got window=0"),
        ({"diagnose_every": -1}, "diagnose_every must be"),
        ({"window_dtype": torch.float16}, r"window_dtype must be torch.float32.*got torch.float16"),
    ],
)
def test_bad_options(options, message):
    optimizer = torch.optim.SGD(make_parameters(SHAPES))
    with pytest.raises(ValueError, match=message):
        SpectrumRecorder(optimizer, **options)
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("options", [{"window": 5}, {"window_dtype": torch.bfloat16}])
def test_a_ggt_has_its_own_window(options):
    with pytest.raises(ValueError, match=r"a window of its own \(of 20 rows\).*leave both out"):
        SpectrumRecorder(GGT(make_parameters(SHAPES)), **options)


def test_not_an_optimizer():
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer, got Linear"):
        SpectrumRecorder(nn.Linear(2, 1))


def test_nothing_to_diagnose():
    recorder = SpectrumRecorder(torch.optim.SGD(make_parameters(SHAPES)))
    with pytest.raises(ValueError, match="no step was recorded yet"):
        recorder.diagnose()
    with pytest.raises(ValueError, match="at least one spectrum and one comparison, got 0 and 0"):
        diagnose([], [], isotropic=torch.eye(2))
    with pytest.raises(ValueError, match="the window is empty"):
        compare_steps(Window(2, 3))


def test_sparse_gradients_are_refused_in_words():
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    with SpectrumRecorder(optimizer):
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(RuntimeError, match=r"shape \(4, 2\) is sparse.*close\(\) the recorder"):
            optimizer.step()
    optimizer.step()
