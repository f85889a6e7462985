"""One optimizer step, nothing else: ours in its variants and scopes, and others' beside it, on the same gradients."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ggt_lab.bench.device_counters import host_syncs, launches, peak_bytes
from ggt_lab.bench.timing import attempt, captured, measure
from ggt_lab.models import CharLSTM3, CharTransformer
from torch_ggt import GGT

__all__ = ["NotInstalledError", "fill", "make_optimizer", "make_parameters", "step"]

_ODD_TENSORS = 20
_SMALL = 10**10  # bytes of a window of which a second one is made
_VOCABULARY = 50
_PERIOD = 10  # SOAP renews its bases every ten steps: whole periods must be timed, and averaged

_NEEDS = {"SOAP": "pytorch_optimizer", "Shampoo": "pytorch_optimizer", "torchzero GGT": "torchzero"}

OPTIMIZERS = ("GGT", "SGD", "Adam", "Muon", *_NEEDS)
"""The names of `make_optimizer`."""


class NotInstalledError(Exception):
    """A baseline whose package is not here: recorded as such."""


def make_parameters(
    shapes: str, device: torch.device, *, d: int | None = None, tensors: int = _ODD_TENSORS
) -> list[nn.Parameter]:
    """Parameters with gradients of noise.

    Args:
        shapes: "odd": ``tensors`` vectors of d elements together, of all sizes, odd ones among them; "lstm": those of
            the paper's 3-layer LSTM, 5.3 M; "gpt": those of a Transformer of 10.8 M in 78 tensors; "square": square
            matrices of about d elements together.
        device: where.
        d: elements; for "odd" and "square".
        tensors: their number; for "odd".
    """
    if shapes == "odd":
        assert d is not None
        shares = torch.linspace(0.2, 1.8, tensors, dtype=torch.float64)
        sizes = [max(1, int(share)) for share in shares / shares.sum() * d]
        sizes[-1] += d - sum(sizes)
        parameters = [nn.Parameter(torch.zeros(size, device=device)) for size in sizes]
    elif shapes == "square":
        assert d is not None
        side = max(1, round((d / 4) ** 0.5))
        parameters = [nn.Parameter(torch.zeros(side, side, device=device)) for _ in range(4)]
    elif shapes in ("lstm", "gpt"):
        model = CharLSTM3(_VOCABULARY) if shapes == "lstm" else CharTransformer(_VOCABULARY)
        parameters = [nn.Parameter(p.detach().to(device)) for p in model.parameters()]
    else:
        raise ValueError(f"shapes must be odd, square, lstm or gpt, got {shapes!r}")
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def make_optimizer(
    name: str,
    parameters: Sequence[nn.Parameter],
    *,
    r: int = 20,
    dtype: str = "float32",
    scope: str = "model",
    cuda_graph: bool = False,
) -> Callable[[], object]:
    """The step of an optimizer of that name (see `OPTIMIZERS`), each as its users would run it for speed.

    Muon knows matrices only; vectors are left to fused Adam, as its authors do. ``cuda_graph`` is an option of GGT.

    Raises:
        NotInstalledError: the package that has it is not here.
    """
    on_gpu = parameters[0].is_cuda
    if name == "GGT":
        window_dtype = getattr(torch, dtype)
        return GGT(
            parameters, window=r, window_dtype=window_dtype, scope=scope, capturable=on_gpu, cuda_graph=cuda_graph
        ).step
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True).step
    if name == "Adam":
        return torch.optim.Adam(parameters, fused=True, capturable=on_gpu).step
    if name == "Muon":
        return _muon(parameters)
    if name not in _NEEDS:
        raise ValueError(f"there is no optimizer {name!r} to measure; there are {', '.join(OPTIMIZERS)}")
    try:
        package = importlib.import_module(_NEEDS[name])
    except ImportError as error:
        raise NotInstalledError(f"{_NEEDS[name]} is not installed") from error
    if name == "torchzero GGT":
        step: Callable[[], object] = package.Optimizer(
            parameters, package.m.GGT(history_size=r), package.m.LR(1e-3)
        ).step
        return step
    # Their defaults: SOAP renews its bases every 10 steps, Shampoo its roots every step.
    step = getattr(package, name)(parameters, lr=1e-3).step
    return step


def _muon(parameters: Sequence[nn.Parameter]) -> Callable[[], object]:
    matrices = [p for p in parameters if p.dim() == 2]
    vectors = [p for p in parameters if p.dim() != 2]
    steps: list[Callable[[], object]] = [torch.optim.Muon(matrices).step] if matrices else []
    if vectors:
        steps.append(torch.optim.Adam(vectors, fused=True).step)

    def both() -> None:
        for one in steps:
            one()

    return both


def fill(step: Callable[[], object], parameters: Sequence[nn.Parameter], times: int) -> None:
    """Step on fresh gradients, so that what is timed afterwards is a full window."""
    for _ in range(times):
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.normal_()
        step()


def step(
    device: torch.device,
    bandwidth: float,
    *,
    optimizer: str,
    shapes: str,
    d: int | None = None,
    r: int | None = None,
    dtype: str | None = None,
    scope: str = "model",
    repeats: int = 30,
    seconds: float = 15.0,
) -> dict[str, Any]:
    """Time of a step in eager mode and captured, against the floor; memory, launches and waits of the host.

    The floor is 2·r·d·bytes over the copy bandwidth: each number of the window read twice. What is captured is the step
    alone, of gradients that stay where they are. Of a GGT with a small window there is "graph", too: eager, with the
    optimizer's own graph (``cuda_graph=True``).

    Args:
        device: where.
        bandwidth: of a copy, bytes per second.
        optimizer: a name of `OPTIMIZERS`.
        shapes: see `make_parameters`.
        d: parameters, where the shapes do not say.
        r: window, for those that have one.
        dtype: of GGT's window.
        scope: of GGT.
        repeats: timed steps.
        seconds: at most about so long for each of the two timings.
    """
    parameters = make_parameters(shapes, device, d=d)
    elements = sum(p.numel() for p in parameters)
    windowed: dict[str, Any] = {key: value for key, value in (("r", r), ("dtype", dtype)) if value is not None}
    result: dict[str, Any] = {"d": elements, "tensors": len(parameters), **windowed, "scope": scope}
    taken: list[Callable[[], object]] = []

    def make_and_fill() -> None:
        taken.append(make_optimizer(optimizer, parameters, scope=scope, **windowed))
        fill(taken[0], parameters, times=(r or _PERIOD) + 2)

    def with_own_graph() -> dict[str, float]:
        take = make_optimizer(optimizer, parameters, scope=scope, cuda_graph=True, **windowed)
        fill(take, parameters, times=(r or _PERIOD) + 2)
        return measure(take, device, repeats=repeats, seconds=seconds).as_dict()

    if device.type == "cuda":
        result["peak_bytes"] = peak_bytes(make_and_fill)
        result["peak_beyond"] = result["peak_bytes"] / (4 * elements)
    else:
        make_and_fill()
    take = taken[0]
    if r is not None:
        item = torch.float32.itemsize if dtype is None else getattr(torch, dtype).itemsize
        window = r * elements * item
        result["window_bytes"] = window
        result["floor_ms"] = 2 * window / bandwidth * 1e3
        if "peak_bytes" in result:
            result["beyond_window"] = (result["peak_bytes"] - window) / (4 * elements)
    result["eager"] = measure(take, device, repeats=repeats, seconds=seconds).as_dict()
    if device.type == "cuda":
        result["launches"] = attempt(lambda: launches(take))
        result["host_syncs"] = attempt(lambda: host_syncs(take))
        # Last: a capture that fails may leave this process unable to do anything more.
        result["captured"] = attempt(
            lambda: measure(captured(take), device, repeats=repeats, seconds=seconds).as_dict()
        )
        if optimizer == "GGT" and result["window_bytes"] <= _SMALL:
            result["graph"] = attempt(with_own_graph)
    for mode in ("eager", "graph", "captured"):
        if "floor_ms" in result and isinstance(result.get(mode), dict):
            result[f"{mode}_over_floor"] = result[mode]["median_ms"] / result["floor_ms"]
    return result
