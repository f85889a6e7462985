"""The relatives are the full-matrix forms of their namesakes in torch.optim, and members like any other."""

import io
import re
import warnings
from pathlib import Path

import pytest
import torch
from helpers import flat, make_parameters, take_step
from torch.optim import lr_scheduler

from torch_ggt import Adadelta, AdaGrad, NAdam, RMSprop, backends, reference
from torch_ggt.backends import HostBackend, TorchBackend

SHAPES = ((2, 3), (3,), (2, 2), ())
PARTS = {"model": [[0, 1, 2, 3]], "group": [[0, 2], [1, 3]], "parameter": [[0], [1], [2], [3]]}

# name: (the member, its options, the dense form, torch's diagonal form). ε is large enough for a dense oracle.
MEMBERS = {
    "RMSprop": (RMSprop, {"alpha": 0.95, "eps": 1e-4}, reference.dense_rmsprop, torch.optim.RMSprop),
    "RMSprop-momentum": (
        RMSprop,
        {"alpha": 0.95, "eps": 1e-4, "momentum": 0.8},
        reference.dense_rmsprop,
        torch.optim.RMSprop,
    ),
    "NAdam": (
        NAdam,
        {"betas": (0.9, 0.99), "eps": 1e-4, "momentum_decay": 0.3},  # a schedule that is felt in 50 steps
        reference.dense_nadam,
        torch.optim.NAdam,
    ),
    "Adadelta": (Adadelta, {"rho": 0.9, "eps": 1e-4}, reference.dense_adadelta, torch.optim.Adadelta),
    "AdaGrad": (AdaGrad, {"eps": 1e-4}, reference.dense_adagrad, torch.optim.Adagrad),
}
every_member = pytest.mark.parametrize("name", MEMBERS)
every_scope = pytest.mark.parametrize("scope", PARTS)


def make(name, parameters, **options):
    member, own, _, _ = MEMBERS[name]
    groups = [{"params": parameters[0::2]}, {"params": parameters[1::2]}] if len(parameters) > 1 else parameters
    return member(groups, **{"lr": 1.0, "window": 5, **own, **options})


def gradients_of(steps, shapes=SHAPES, dtype=torch.float64, seed=0):
    """Gradients with a mean, so that momentum is more than noise."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape):
        return (torch.randn(shape, generator=generator, dtype=torch.float64) + 0.3).to(dtype)

    return [[draw(shape) for shape in shapes] for _ in range(steps)]


def run(optimizer, parameters, gradients):
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype, copy=True)
        optimizer.step()
    return flat(parameters)


# ---- formulas ------------------------------------------------------------------------------------------------------


@pytest.fixture
def _double():
    """torch keeps the numbers of NAdam in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@every_member
@pytest.mark.usefixtures("_double")
def test_the_diagonal_of_the_dense_form_is_torchs_optimizer(name):
    _, own, dense, theirs = MEMBERS[name]
    gradients = [step[0] for step in gradients_of(50, [(7,)])]
    parameters = make_parameters([(7,)])
    optimizer = theirs(parameters, lr=1.0, **own)
    expected = dense(gradients, window=50, diagonal=True, **own)
    for gradient, step in zip(gradients, expected, strict=True):
        (found,) = take_step(optimizer, parameters, [gradient])
        torch.testing.assert_close(found, step, rtol=1e-10, atol=0.0)


@every_member
@pytest.mark.parametrize(
    ("scope", "window", "jitter"),
    [("model", 100, 0.0), ("model", 7, 0.0), ("group", 7, 1e-3), ("parameter", 7, 0.0), ("parameter", 7, 1e-3)],
)
def test_a_member_is_its_dense_form(name, scope, window, jitter):
    _, own, dense, _ = MEMBERS[name]
    parameters, gradients = make_parameters(SHAPES), gradients_of(100)
    expected = [
        dense([flat(step[i] for i in part) for step in gradients], window=window, jitter=jitter, **own)
        for part in PARTS[scope]
    ]
    optimizer = make(name, parameters, window=window, jitter=jitter, scope=scope)
    for t, step in enumerate(gradients):
        found = take_step(optimizer, parameters, step)
        for part, steps in zip(PARTS[scope], expected, strict=True):
            error = flat(found[i] for i in part) - steps[t]
            assert float(error.norm()) <= 1e-8 * float(steps[t].norm()), (t, part)


@every_member
def test_the_two_solvers_make_one_step(name):
    """What a GPU solves by shifted Cholesky factors, with ε of all sizes beside the gradients."""
    for scale in (1e-6, 1.0, 1e4):
        gradients = [[scale * gradient for gradient in step] for step in gradients_of(12)]
        found = [
            run(make(name, parameters, solver=solver), parameters, gradients)
            for solver in ("eigh", "cholesky")
            for parameters in [make_parameters(SHAPES)]
        ]
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9 * float(found[0].norm()))


def test_adagrad_starts_anew_when_its_window_is_full():
    parameters = make_parameters([(6,)])
    optimizer = make("AdaGrad", parameters, window=4, eps=0.0, jitter=0.0)
    gradients = gradients_of(9, [(6,)])
    for t, step in enumerate(gradients):
        (found,) = take_step(optimizer, parameters, step)
        if t % 4 == 0:
            torch.testing.assert_close(found, step[0] / step[0].norm())
    assert int((optimizer.spectrum()[0] > 1e-9).sum()) == 1


def test_nadam_counts_beyond_its_window():
    """The schedule of μ goes on when the ring has wrapped around, and saved numbers hold it."""
    parameters = make_parameters(SHAPES)
    optimizer = make("NAdam", parameters, window=3)
    run(optimizer, parameters, gradients_of(11))
    entry = optimizer.state[parameters[0]]
    product = 1.0
    for t in range(1, 12):
        product *= 0.9 * (1 - 0.5 * 0.96 ** (0.3 * t))
    assert float(entry["steps"]) == 11
    assert float(entry["mu_correction"]) == pytest.approx(1 - product, rel=1e-12)


def test_adadelta_in_float32_is_adadelta_in_float64():
    """With ε far below the gradients, and rows that are nearly collinear."""
    torch.manual_seed(0)
    common = torch.randn(40, dtype=torch.float64)
    gradients = [[100 * (common + 1e-3 * torch.randn(40, dtype=torch.float64))] for _ in range(60)]
    found = []
    for dtype in (torch.float64, torch.float32):
        parameters = make_parameters([(40,)], dtype)
        found.append(run(make("Adadelta", parameters, eps=1e-6), parameters, gradients).double())
    assert float((found[0] - found[1]).norm()) <= 1e-3 * float(found[0].norm())


# ---- members like any other ----------------------------------------------------------------------------------------


@every_member
@every_scope
def test_a_gradient_that_is_not_finite_leaves_everything_alone(name, scope):
    gradients = gradients_of(12)
    bad = [gradient.clone() for gradient in gradients[5]]
    bad[1][0] = torch.nan
    expected, found = make_parameters(SHAPES), make_parameters(SHAPES)
    one, other = make(name, expected, scope=scope), make(name, found, scope=scope)
    run(one, expected, gradients)
    with pytest.warns(UserWarning, match="skipped a step"):
        run(other, found, [*gradients[:6], bad, *gradients[6:]])
    assert (one.skipped, other.skipped) == (0, 1)
    assert torch.equal(flat(found), flat(expected))
    for first, second in zip(expected, found, strict=True):
        mine, theirs = one.state[first], other.state[second]
        assert all(torch.equal(mine[key], theirs[key]) for key in mine if key != "skipped")


@every_member
@every_scope
def test_a_member_resumes_bitwise(name, scope):
    gradients = gradients_of(20)
    parameters = make_parameters(SHAPES)
    optimizer = make(name, parameters, scope=scope)
    run(optimizer, parameters, gradients[:8])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    run(optimizer, parameters, gradients[8:])
    other = make(name, copies, scope=scope)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    run(other, copies, gradients[8:])
    assert torch.equal(flat(parameters), flat(copies))
    mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
    for index, entry in mine.items():
        assert entry.keys() == theirs[index].keys()
        assert all(torch.equal(entry[key], theirs[index][key]) for key in entry)


@every_member
@every_scope
def test_a_device_that_the_host_does_not_watch_makes_the_same_steps(name, scope, monkeypatch):
    """What is not taken is masked there: a NaN, a matrix without gradients, a parameter that comes late."""
    gradients = gradients_of(9)
    gradients[0][1] = gradients[1][1] = gradients[4][2] = gradients[7][0] = None
    gradients[5][3] = torch.tensor(torch.nan, dtype=torch.float64)
    gradients[2] = [torch.zeros_like(gradient) for gradient in gradients[2]]
    found = []
    for backend in (HostBackend(), TorchBackend()):
        monkeypatch.setattr(backends, "choose", lambda _, backend=backend: backend)
        parameters = make_parameters(SHAPES)
        optimizer = make(name, parameters, scope=scope, solver="cholesky")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the host tells of the step that it skips
            found.append(run(optimizer, parameters, gradients))
        assert optimizer.skipped == 1
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_numbers_of_another_shape_are_refused():
    parameters = make_parameters(SHAPES)
    optimizer = make("NAdam", parameters)
    run(optimizer, parameters, gradients_of(2))
    saved = optimizer.state_dict()
    saved["state"][0]["steps"] = torch.zeros(3)
    with pytest.raises(ValueError, match="'steps' of shape"):
        optimizer.load_state_dict(saved)
    del saved["state"][0]["steps"]
    with pytest.raises(ValueError, match="exactly one must"):
        optimizer.load_state_dict(saved)


@every_member
@every_scope
def test_a_parameter_without_a_gradient_is_left_alone(name, scope):
    """Its row is zero, it makes no step, and its buffers stay; a matrix without any gradient does not age."""
    first, second, third = gradients_of(3)
    parameters = make_parameters(SHAPES)
    optimizer = make(name, parameters, scope=scope)
    run(optimizer, parameters, [first, second])
    before = parameters[2].detach().clone()
    entry = {key: value.clone() for key, value in optimizer.state[parameters[2]].items()}
    run(optimizer, parameters, [[*third[:2], None, third[3]]])
    after = optimizer.state[parameters[2]]
    assert torch.equal(parameters[2], before)
    assert not after["window"][2].any()
    assert "updates" not in after or not after["updates"][2].any()
    unchanged = entry if scope == "parameter" else ("momentum_buffer",)
    assert all(torch.equal(after[key], entry[key]) for key in unchanged if key in entry)
    assert not torch.equal(parameters[0], before.new_zeros(SHAPES[0]))


@every_member
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_trains(name, dtype):
    """A badly scaled quadratic in low precision: steps are finite, and the loss falls."""
    torch.manual_seed(0)
    scales = torch.logspace(0, 2, 30)
    parameter = torch.nn.Parameter(torch.ones(30))
    lr = {"Adadelta": 10.0, "NAdam": 0.05}.get(name, 0.1)
    optimizer = make(name, [parameter], lr=lr, window=10, window_dtype=dtype, eps=1e-8)
    for _ in range(100):
        parameter.grad = scales * parameter.detach()
        optimizer.step()
        assert parameter.isfinite().all()
    assert float((scales * parameter.detach().square()).sum()) < 0.5 * float(scales.sum())


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "options", "words"),
    [
        (RMSprop, {"alpha": 1.0}, r"RMSprop: alpha must lie in \(0, 1\), got alpha=1.0"),
        (RMSprop, {"momentum": -0.1}, r"RMSprop: momentum must lie in \[0, 1\), got momentum=-0.1"),
        (Adadelta, {"rho": "high"}, r"Adadelta: rho must lie in \(0, 1\), got rho='high'"),
        (Adadelta, {"eps": 0}, "Adadelta: eps must be positive"),
        (NAdam, {"betas": (0.99, 0.9)}, "NAdam: β₁ must be at most √β₂"),
        (AdaGrad, {"shrinkage": "auto"}, "AdaGrad: shrinkage='auto' .* would count those from before a new start"),
        (NAdam, {"momentum_decay": -1}, "momentum_decay must be a finite number ≥ 0, got momentum_decay=-1"),
    ],
)
def test_nonsense_is_refused(member, options, words):
    with pytest.raises(ValueError, match=words):
        member(make_parameters(), **options)


@pytest.mark.parametrize(
    ("member", "option"),
    [(AdaGrad, "betas"), (RMSprop, "nesterov"), (NAdam, "sgd_scale"), (NAdam, "history"), (Adadelta, "adjust_lr_fn")],
)
def test_an_option_of_ggt_without_meaning_is_refused(member, option):
    with pytest.raises(TypeError, match=f"{member.__name__}: it has no option {option}"):
        member(make_parameters(), **{option: None})


def test_words_of_a_yaml_file_are_numbers():
    assert RMSprop(make_parameters(), lr="1e-2", alpha="0.9").param_groups[0]["betas"] == (0.0, 0.9)


@pytest.mark.parametrize("name", ["RMSprop", "Adadelta", "AdaGrad"])
def test_momentum_that_is_not_there_cannot_be_cycled(name):
    parameters = make_parameters()
    optimizer = make(name, parameters)
    lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match=r"has no momentum.*cycle_momentum=False"):
        optimizer.step()


@pytest.mark.parametrize("name", ["RMSprop-momentum", "NAdam"])
def test_momentum_may_be_cycled(name):
    parameters = make_parameters(SHAPES)
    optimizer = make(name, parameters)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    for step in gradients_of(5):
        run(optimizer, parameters, [step])
        scheduler.step()
    assert flat(parameters).all()


def test_a_mean_that_is_changed_to_a_sum_is_refused():
    parameters = make_parameters(SHAPES)
    optimizer = make("RMSprop", parameters)
    optimizer.param_groups[0]["betas"] = optimizer.param_groups[1]["betas"] = (0.0, 1.0)
    with pytest.raises(ValueError, match="alpha must be below 1"):
        run(optimizer, parameters, gradients_of(1))


def test_the_examples_of_the_page_run():
    page = (Path(__file__).parent.parent / "docs" / "relatives.md").read_text()
    names = {}
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for code in examples:
        exec(compile(code, "docs/relatives.md", "exec"), names)
