"""Whole training steps of the paper's two models: forward, backward and optimizer step, with each optimizer in turn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.bench.timing import Timing, attempt, captured, interleaved, summarize
from ggt_lab.models import CharLSTM3, ShakeShake26
from ggt_lab.optimizers.paper_ggt import PaperGGT
from ggt_lab.optimizers.specs import missing_package, optimizer_factory
from ggt_lab.problems.deep_problem import DeepProblem, l2_penalty
from ggt_lab.problems.image_problems import Cifar10
from ggt_lab.problems.text_problems import PTBCharacters
from ggt_lab.runs.training_loop import loss_gradients

__all__ = ["BASELINES", "CONTENDERS", "MODELS", "fresh_lstm", "training", "training_step"]

_VOCABULARY = 50

CONTENDERS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {},
    "GGT r=20 float32": {"window": 20, "window_dtype": torch.float32},
    "GGT r=20 bfloat16": {"window": 20, "window_dtype": torch.bfloat16},
    "GGT r=200 float32": {"window": 200, "window_dtype": torch.float32},
    "GGT r=200 bfloat16": {"window": 200, "window_dtype": torch.bfloat16},
    "GGT by parameter": {"window": 200, "window_dtype": torch.bfloat16, "scope": "parameter"},
    "GGT r=20 int8": {"window": 20, "window_dtype": "int8"},
    "GGT r=200 int8": {"window": 200, "window_dtype": "int8"},
}
"""The options of each contender; none means SGD with momentum. In eager mode GGT captures its step (``cuda_graph``)."""

PLAIN = "GGT r=20 float32, no graph"
"""One more contender in eager mode: a GGT that does not capture its step."""

BASELINES: Mapping[str, str] = {
    "Adam": "Adam(fused=True)",
    "AdaGrad": "Adagrad",
    "RMSprop": "RMSprop(alpha=0.999, momentum=0.9)",
    "Adadelta": "Adadelta(rho=0.999)",
    "AdamW": "AdamW(fused=True)",
    "Muon": "MuonAndAdamW",
    "SOAP": "pytorch_optimizer.SOAP",
}
"""The other entrants of our long runs, fused where torch has a fused version. Claims about seconds use their times.

They are timed in eager mode only, for long runs are trained so, and AdaGrad and Muon cannot be captured."""


@dataclass(frozen=True)
class _Setup:
    """How a model is trained: the attributes of a `DeepProblem` that cost time."""

    batch: int = 128
    length: int = 0
    """The length of a text; 0 means images."""
    width: int = 0
    dropout: float = 0.0
    weight_drop: float = 0.0
    autocast: bool = False
    channels_last: bool = False
    l2: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The settings that a record names."""
        both = {"batch": self.batch, "autocast": self.autocast, "l2": self.l2}
        if self.length:
            return both | {"length": self.length, "weight_drop": self.weight_drop}
        return both | {"channels_last": self.channels_last}


def _setup_of(problem: type[DeepProblem]) -> _Setup:
    """The setup of our long runs."""
    return _Setup(
        **{field.name: getattr(problem, field.name) for field in fields(_Setup) if hasattr(problem, field.name)}
    )


_SETUPS = {
    "lstm": _Setup(length=100, width=500),
    "shake-shake": _Setup(),
    "lstm-512-bf16": _setup_of(PTBCharacters),
    "lstm-512-bf16-256": replace(_setup_of(PTBCharacters), batch=256),
    "lstm-512-bf16-512": replace(_setup_of(PTBCharacters), batch=512),
    "shake-shake-bf16": _setup_of(Cifar10),
}
MODELS = tuple(_SETUPS)
"""The paper's LSTM (5.3 M) and CNN (2.9 M) in float32, and both as the long runs R1, R2, R3 and C1 train them."""

_BLOCK_MS = 100.0


def _setup(model: str, *, tiny: bool) -> _Setup:
    full = _SETUPS[model]
    return replace(full, batch=4, length=min(full.length, 5), width=min(full.width, 16)) if tiny else full


def _lstm(setup: _Setup, *, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    model = CharLSTM3(_VOCABULARY, width=setup.width, dropout=setup.dropout, weight_drop=setup.weight_drop).to(device)
    codes = torch.randint(0, _VOCABULARY, (setup.length + 1, setup.batch), device=device)

    def loss() -> Tensor:
        logits, _ = model(codes[:-1])
        return functional.cross_entropy(logits.flatten(0, 1), codes[1:].flatten())

    return model, loss


def _shake_shake(setup: _Setup, *, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    model = (ShakeShake26(4, 1) if tiny else ShakeShake26()).to(device)
    order = torch.channels_last if setup.channels_last else torch.contiguous_format
    images = torch.randn(setup.batch, 3, 32, 32, device=device).contiguous(memory_format=order)
    labels = torch.randint(0, 10, (setup.batch,), device=device)
    return model, lambda: functional.cross_entropy(model(images), labels)


def _make(model: str, *, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A network, and the function whose gradient is taken."""
    setup = _setup(model, tiny=tiny)
    network, loss = _lstm(setup, device=device) if setup.length else _shake_shake(setup, tiny=tiny, device=device)

    def objective() -> Tensor:
        # A captured step must not use the cache of casts.
        with torch.autocast(device.type, torch.bfloat16, enabled=setup.autocast, cache_enabled=False):
            value = loss()
        return value + l2_penalty(network.parameters(), setup.l2) if setup.l2 else value

    return network, objective


def training(
    device: torch.device,
    bandwidth: float,
    *,
    model: str,
    mode: str,
    rounds: int = 60,
    block: int = 10,
    tiny: bool = False,
) -> dict[str, Any]:
    """Time of a training step with each contender, divided by the time with SGD, paired round by round.

    The contenders are `CONTENDERS`. In captured mode the first one that cannot be captured is named under ``not
    measured``, and those after it are left out. In eager mode `BASELINES` follow, beside SGD, in a quarter of the
    rounds. A baseline that fails or is not installed is named under ``not measured``. Every contender has a model of
    its own. A round times a block of steps of each contender by the clock, with the work of the host, as a training
    loop sees it.

    Args:
        device: the device.
        bandwidth: bandwidth of a copy; every kind of case has this argument, and it is not needed here.
        model: one of `MODELS`.
        mode: "eager", or "captured": the whole training step is one CUDA graph.
        rounds: the number of timed rounds. In eager mode the time of the host varies by a fifth from round to round.
        block: the largest number of steps in a block; a block takes at most about 100 ms.
        tiny: models of a few thousand parameters, to try the code.
    """
    del bandwidth
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if mode not in ("eager", "captured"):
        raise ValueError(f"mode must be eager or captured, got {mode!r}")
    torch.backends.cudnn.benchmark = True  # the fastest convolutions for all, for the time of SGD is the denominator
    calls: dict[str, Callable[[], object]] = {}
    result: dict[str, Any] = {"model": model, "mode": mode, **_setup(model, tiny=tiny).as_dict()}
    contenders = dict(CONTENDERS)
    if mode == "eager":
        contenders = {name: {**options, "cuda_graph": True} if options else {} for name, options in CONTENDERS.items()}
        contenders[PLAIN] = {"window": 20, "window_dtype": torch.float32}
    for name, options in contenders.items():
        network, loss = _fresh(model, tiny=tiny, device=device)
        result["d"] = sum(p.numel() for p in network.parameters())
        optimizer: torch.optim.Optimizer
        if options:
            optimizer = PaperGGT(network.parameters(), capturable=mode == "captured", **options)
        else:
            optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, fused=True)
        step = training_step(optimizer, loss)
        for _ in range(options.get("window", 0) + 2):
            step()
        if mode == "captured":
            made = attempt(captured, step)
            if isinstance(made, str):
                if name == "SGD":
                    raise RuntimeError(f"capture of a training step failed: { ({name: made}) }")
                result["not measured"] = {name: made}
                break  # after a failed capture, no further capture can be trusted
            step = made
        calls[name] = step
    block = _steps_in(_BLOCK_MS, calls["SGD"], device, most=block)
    times = interleaved(calls, device, rounds=rounds, block=block)
    ratios = _over_sgd(times)
    if mode == "eager":
        others, result["not measured"] = _baselines(model, tiny=tiny, device=device)
        beside = interleaved({"SGD": calls["SGD"], **others}, device, rounds=max(3, rounds // 4), block=block)
        ratios |= _over_sgd(beside)
        times = {**beside, **times}
    result["times"] = {name: summarize(values).as_dict() for name, values in times.items()}
    result["over_SGD"] = {name: ratio.median_ms for name, ratio in ratios.items()}
    result["over_SGD_range"] = {name: [ratio.low_ms, ratio.high_ms] for name, ratio in ratios.items()}
    return result


def _steps_in(milliseconds: float, step: Callable[[], object], device: torch.device, *, most: int) -> int:
    """The number of steps that take so long, at least one."""
    (times,) = interleaved({"": step}, device, rounds=3, block=1).values()
    return max(1, min(most, round(milliseconds / min(times))))


def _over_sgd(times: Mapping[str, list[float]]) -> dict[str, Timing]:
    """The ratios to SGD, paired round by round."""
    return {
        name: summarize([ours / sgd for ours, sgd in zip(values, times["SGD"], strict=True)])
        for name, values in times.items()
        if name != "SGD"
    }


def fresh_lstm(*, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The paper's LSTM, and the function whose gradient is taken; alike in every call."""
    return _fresh("lstm", tiny=tiny, device=device)


def _fresh(model: str, *, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    return _make(model, tiny=tiny, device=device)


def _baselines(
    model: str, *, tiny: bool, device: torch.device
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """A step for each of `BASELINES` that works, and a reason for each that does not."""
    calls: dict[str, Callable[[], object]] = {}
    reasons: dict[str, str] = {}
    for name, spec in BASELINES.items():
        package = missing_package(spec)
        if package is not None:
            reasons[name] = f"{package} is not installed"
            continue
        network, loss = _fresh(model, tiny=tiny, device=device)
        made = attempt(optimizer_factory(spec), list(network.parameters()), 1e-4)
        if isinstance(made, str):
            reasons[name] = made
            continue
        step = training_step(made, loss)
        error = attempt(step)
        if error is None:
            calls[name] = step
        else:
            reasons[name] = error
    return calls, reasons


def training_step(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], object]:
    """One training step as a function: not `training_steps`, for a timer or a CUDA graph calls the bare step."""
    take_gradients = loss_gradients(optimizer, loss)

    def step() -> None:
        take_gradients()
        optimizer.step()

    return step
