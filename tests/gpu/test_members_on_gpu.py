"""Members, finishes and row formats on a GPU: equal to the CPU's, no synchronization, captured, rows in host memory.

With KERNEL_DEVICE=cpu, what needs no GPU runs without one; with TRITON_INTERPRET=1 besides, by the kernels.
"""

import functools
import os

import pytest
import torch
from torch import nn

import torch_ggt
from torch_ggt import GGT, Whitening, backends, whiten
from torch_ggt import finish as finish_module
from torch_ggt import step as step_module
from torch_ggt.polar import polar

DEVICE = os.environ.get("KERNEL_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of the interpreter
    pytest.mark.filterwarnings("ignore:GGT skipped a step"),
]
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
SHAPES = [(33, 20), (20, 33), (4, 3, 5, 2), (130,), ()]


def half_signs(step):
    return 0.5 * step.sign()


def paper(parameters, **options):
    """The paper's step: a GGT without a finish."""
    return GGT(parameters, **{"history": "momentum", "finish": "none", "shrinkage": 0.0, **options})


def whitened(kind, **its_own):
    """A function that makes an optimizer of torch behind a whitening; only torch's own can be captured."""

    def make(parameters, *, capturable=False, **options):
        options.pop("lr", None)
        own = {**its_own, "capturable": capturable} if kind is not torch.optim.SGD else its_own
        return whiten(kind(parameters, lr=1e-2, **own), **options)

    return make


# Without a GPU the rounding of float32 makes 2e-6 at most, and an iteration in bfloat16 2.2e-3.
ROUNDING, HALF = 3e-5, 2e-2
MEMBERS = {
    "the defaults": (GGT, ROUNDING),
    "the defaults, by parameter, nesterov": (functools.partial(GGT, scope="parameter", nesterov=True), ROUNDING),
    "none, shrinkage auto": (functools.partial(paper, shrinkage="auto"), ROUNDING),
    "none, shrinkage 0.3": (functools.partial(paper, shrinkage=0.3, scope="parameter"), ROUNDING),
    "none, keep_norm": (functools.partial(paper, adjust_lr_fn="keep_norm"), ROUNDING),
    "polar": (functools.partial(GGT, finish="polar"), HALF),
    "polar_rows": (functools.partial(GGT, finish="polar_rows", history="momentum"), HALF),
    "polar_exact": (functools.partial(GGT, finish="polar_exact", shrinkage=0.0), ROUNDING),
    "a callable": (functools.partial(GGT, finish=torch.tanh), ROUNDING),
    "RMSprop with momentum": (functools.partial(torch_ggt.RMSprop, momentum=0.5), ROUNDING),
    "NAdam": (torch_ggt.NAdam, ROUNDING),
    "Adadelta": (lambda p, **options: torch_ggt.Adadelta(p, **{**options, "lr": 1.0}), ROUNDING),
    "AdaGrad": (torch_ggt.AdaGrad, ROUNDING),
    "whiten(AdamW)": (whitened(torch.optim.AdamW), ROUNDING),
    "whiten(SGD)": (whitened(torch.optim.SGD, momentum=0.9), ROUNDING),
}
every_member = pytest.mark.parametrize("name", MEMBERS)


class Run:
    """Parameters on a device, an optimizer, and prescribed gradients: a common signal and noise."""

    def __init__(self, make, device, dtype=torch.float32, **options):
        generator = torch.Generator().manual_seed(0)
        self.parameters = [nn.Parameter(0.01 * torch.randn(shape, generator=generator)) for shape in SHAPES]
        self.signals = [torch.randn(shape, generator=generator) for shape in SHAPES]
        for p in self.parameters:
            p.data = p.data.to(device, dtype)
        self.start = self.values()
        self.optimizer = make(self.parameters, **{"lr": 1e-2, "window": 6, **options})

    def give_gradients(self, step, *, bad=False):
        generator = torch.Generator().manual_seed(100 + step)
        for p, signal in zip(self.parameters, self.signals, strict=True):
            gradient = (signal + torch.randn(p.shape, generator=generator)).to(p)
            if bad and p.dim() == 1:
                gradient[0] = torch.nan
            if p.grad is None:
                p.grad = gradient
            else:
                p.grad.copy_(gradient)  # a captured step reads the same memory again

    def train(self, steps, *, bad=()):
        for step in steps:
            self.give_gradients(step, bad=step in bad)
            self.optimizer.step()
        return self

    def values(self):
        return torch.cat([p.detach().cpu().double().flatten() for p in self.parameters])

    def skipped(self):
        return getattr(self.optimizer, "whitening", self.optimizer).skipped


def difference(ours, theirs):
    """Of where two runs have come, relative to the way that they have gone."""
    return float((ours.values() - theirs.values()).norm() / (theirs.values() - theirs.start).norm())


@pytest.fixture
def kernels(monkeypatch):
    """Under Triton's interpreter, the kernels for tensors on the CPU: a function that turns them on or off."""

    def use(yes):
        if not INTERPRETED:
            return
        monkeypatch.undo()
        if yes:
            from torch_ggt.backends.triton import TritonBackend

            monkeypatch.setattr(backends, "choose", lambda _: TritonBackend())
            monkeypatch.setattr(step_module, "_DEFAULT_TOLERANCE", 1e-4)  # nodes are a loop, which takes long

    return use


@every_member
def test_equals_the_cpu_in_float64(name, kernels):
    make, tolerance = MEMBERS[name]
    bad = () if name.startswith("whiten") else (8,)
    kernels(False)
    exact = Run(make, "cpu", torch.float64).train(range(15), bad=bad)
    kernels(True)
    found = Run(make, DEVICE).train(range(15), bad=bad)
    assert found.skipped() == exact.skipped() == len(bad)
    assert difference(found, exact) <= tolerance


@pytest.mark.parametrize("finish", ["polar", "polar_rows"])
def test_a_polar_finish_in_float32_equals_the_cpus(finish, monkeypatch):
    """A GPU iterates in bfloat16. Where it does not, its steps are the CPU's to rounding."""
    make = functools.partial(GGT, finish=finish)
    exact = Run(make, "cpu", torch.float64).train(range(15))
    monkeypatch.setattr(finish_module, "polar", functools.partial(polar, dtype=torch.float32))
    assert difference(Run(make, DEVICE).train(range(15)), exact) <= ROUNDING


@needs_gpu
@every_member
def test_no_synchronization(name):
    make, _ = MEMBERS[name]
    bad = () if name.startswith("whiten") else (11,)
    run = Run(make, DEVICE).train(range(9))
    for step in range(9, 14):
        run.give_gradients(step, bad=step in bad)
        torch.cuda.set_sync_debug_mode("error")
        try:
            run.optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert run.skipped() == len(bad)


# ---- Whitening -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"keep_norm": False, "scope": "parameter"}, {"shrinkage": 0.0, "eps": 1e-3}])
def test_whitened_gradients_equal_the_cpus(options, kernels):
    """To float32 rounding; a gradient that is not finite stays, and is counted."""
    found = []
    for device, dtype in (("cpu", torch.float64), (DEVICE, torch.float32)):
        kernels(dtype == torch.float32)
        run = Run(lambda parameters, lr, **given: Whitening(parameters, **given), device, dtype, **options)
        for step in range(12):
            run.give_gradients(step, bad=step == 7)
            before = [p.grad.clone() for p in run.parameters]
            run.optimizer()
            if step == 7:
                assert all(torch.equal(a.grad, b) or a.dim() == 1 for a, b in zip(run.parameters, before, strict=True))
        assert run.optimizer.skipped == 1
        found.append(torch.cat([p.grad.cpu().double().flatten() for p in run.parameters]))
    assert (found[0] - found[1]).norm() <= 1e-4 * found[0].norm()


@pytest.mark.parametrize("stored", ["int8", "int4"])
def test_a_whitening_of_integers_has_no_row_between_steps(stored, kernels):
    kernels(True)
    run = Run(whitened(torch.optim.SGD), DEVICE, window_dtype=stored).train(range(9))
    (block,) = run.optimizer.whitening.attached_blocks()
    assert block.row.untyped_storage().nbytes() == 0
    assert run.values().isfinite().all()


# ---- rows of integers, and rows in host memory -----------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("stored", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize("scope", ["model", "parameter"])
def test_kernels_make_the_steps_of_plain_torch_on_large_tensors(stored, scope, monkeypatch):
    """Several pieces, and a window that was overwritten: whole steps of the defaults by kernels, and by plain torch."""
    if type(backends.choose(torch.device("cuda", 0))) is backends.TorchBackend:
        pytest.skip("the kernels are not in use")
    found = []
    for chosen in (None, backends.TorchBackend()):
        if chosen is not None:
            monkeypatch.setattr(backends, "choose", lambda _, one=chosen: one)
        generator = torch.Generator("cuda").manual_seed(0)
        parameters = [nn.Parameter(torch.zeros(shape, device="cuda")) for shape in ((300, 700), (9001,), (64,))]
        optimizer = paper(parameters, lr=1.0, window=7, window_dtype=stored, scope=scope, shrinkage="auto")
        for _ in range(18):
            for p in parameters:
                p.grad = torch.randn(p.shape, device="cuda", generator=generator)
            optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in parameters]))
    assert (found[0] - found[1]).norm() <= 1e-4 * found[1].norm()


@pytest.mark.parametrize("name", ["the defaults", "polar_exact", "Adadelta", "whiten(AdamW)"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "int4"])
def test_rows_in_host_memory_are_those_on_the_device(name, stored, monkeypatch, kernels):
    """Small pieces, so that they go through the staging buffers."""
    make, _ = MEMBERS[name]
    kernels(True)
    on_device = Run(make, DEVICE, window_dtype=stored).train(range(15))
    kernels(True)
    monkeypatch.setattr("torch_ggt.backends.host_rows.STAGE", 4096)
    on_host = Run(make, DEVICE, window_dtype=f"{stored}@host").train(range(15))
    optimizer = getattr(on_host.optimizer, "whitening", on_host.optimizer)
    assert optimizer.attached_blocks()[0].window.rows.store.device.type == "cpu"
    assert difference(on_host, on_device) <= 2e-3  # a number near a border may be stored as either neighbour


# ---- captured steps; they come last, because a capture that fails may spoil the process ------------------------------


@needs_gpu
@every_member
def test_a_captured_step_equals_an_eager_one(name):
    make, tolerance = MEMBERS[name]
    eager, captured = (Run(make, DEVICE, capturable=True).train(range(9)) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    captured.give_gradients(9)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured.optimizer.step()
    for step in range(9, 20):
        eager.give_gradients(step)
        eager.optimizer.step()
        captured.give_gradients(step)
        graph.replay()
    assert difference(captured, eager) <= tolerance / 10
