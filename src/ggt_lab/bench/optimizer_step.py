"""One optimizer step and nothing else: GGT in its variants and scopes, and other optimizers, on equal gradients."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ggt_lab.bench.device_counters import host_syncs, launches, peak_bytes
from ggt_lab.bench.timing import attempt, captured, measure
from ggt_lab.models import CharLSTM3, CharTransformer
from ggt_lab.optimizers.paper_ggt import PaperGGT
from torch_ggt.formats import format_of

__all__ = ["NotInstalledError", "fill", "make_optimizer", "make_parameters", "step"]

_ODD_TENSORS = 20
_SMALL = 10**10  # bytes; of a window up to this size a second one is made
_VOCABULARY = 50
_PERIOD = 10  # SOAP renews its bases every ten steps: whole periods must be timed, and averaged

_NEEDS = {"SOAP": "pytorch_optimizer", "Shampoo": "pytorch_optimizer", "torchzero GGT": "torchzero"}

OPTIMIZERS = ("GGT", "SGD", "Adam", "Muon", *_NEEDS)
"""The names of `make_optimizer`."""


class NotInstalledError(Exception):
    """The package of a baseline is not installed; the record says so."""


def make_parameters(
    shapes: str, device: torch.device, *, d: int | None = None, tensors: int = _ODD_TENSORS
) -> list[nn.Parameter]:
    """Parameters whose gradients are noise.

    Args:
        shapes: "odd": vectors of many sizes, also odd ones, with d elements together. "square": four square matrices
            with about d elements together. "lstm": the shapes of the paper's 3-layer LSTM (5.3 M). "gpt": the shapes
            of a Transformer (10.8 M in 78 tensors).
        device: the device.
        d: the number of elements, for "odd" and "square".
        tensors: the number of vectors, for "odd".
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
    """The step of the optimizer of that name (see `OPTIMIZERS`), with the options that make it fast.

    Muon takes matrices only; vectors go to fused Adam, as its authors do it. ``cuda_graph`` is an option of GGT.

    Raises:
        NotInstalledError: the package of the optimizer is not installed.
    """
    on_gpu = parameters[0].is_cuda
    if name == "GGT":
        return PaperGGT(
            parameters, window=r, window_dtype=dtype, scope=scope, capturable=on_gpu, cuda_graph=cuda_graph
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
    # With their defaults SOAP renews its bases every 10 steps, and Shampoo its roots every step.
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
    """Take steps on fresh gradients, so that the window is full when steps are timed."""
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
    """Time of a step in eager mode and captured, compared with the floor; memory, launches and waits of the host.

    The floor is 2·r·d·bytes divided by the copy bandwidth: each number of the window is read twice. Scales count among
    the bytes. Captured is the
    step alone, with gradients that stay in place. A GGT with a small window has a third time, "graph": eager, with the
    graph that the optimizer makes of its own step (``cuda_graph=True``).

    Args:
        device: the device.
        bandwidth: bytes per second of a copy.
        optimizer: a name of `OPTIMIZERS`.
        shapes: see `make_parameters`.
        d: the number of parameters, if the shapes do not say.
        r: the number of rows of the window, for an optimizer that has one.
        dtype: the format of the rows of GGT.
        scope: the scope of GGT.
        repeats: the number of timed steps.
        seconds: the time that each timing may take, roughly.
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
        window = format_of(dtype or "float32").bytes(r, elements)
        result["window_bytes"] = window
        result["floor_ms"] = 2 * window / bandwidth * 1e3
        if "peak_bytes" in result:
            result["beyond_window"] = (result["peak_bytes"] - window) / (4 * elements)
    result["eager"] = measure(take, device, repeats=repeats, seconds=seconds).as_dict()
    if device.type == "cuda":
        result["launches"] = attempt(lambda: launches(take))
        result["host_syncs"] = attempt(lambda: host_syncs(take))
        # This comes last: after a failed capture the process may not be able to go on.
        result["captured"] = attempt(
            lambda: measure(captured(take), device, repeats=repeats, seconds=seconds).as_dict()
        )
        if optimizer == "GGT" and result["window_bytes"] <= _SMALL:
            result["graph"] = attempt(with_own_graph)
    for mode in ("eager", "graph", "captured"):
        if "floor_ms" in result and isinstance(result.get(mode), dict):
            result[f"{mode}_over_floor"] = result[mode]["median_ms"] / result["floor_ms"]
    return result
