"""Whole training steps of the paper's two models: forward, backward and optimizer, SGD's, GGT's and others' in turn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.bench.timing import Timing, attempt, captured, interleaved, summarize
from ggt_lab.models import CharLSTM3, ShakeShake26
from ggt_lab.optimizers import missing_package, optimizer_factory
from ggt_lab.problems.text import PTBCharacters
from torch_ggt import GGT

__all__ = ["BASELINES", "CONTENDERS", "MODELS", "training"]

_VOCABULARY, _BATCH = 50, 128

CONTENDERS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {},
    "GGT r=20 float32": {"window": 20, "window_dtype": torch.float32},
    "GGT r=20 bfloat16": {"window": 20, "window_dtype": torch.bfloat16},
    "GGT r=200 float32": {"window": 200, "window_dtype": torch.float32},
    "GGT r=200 bfloat16": {"window": 200, "window_dtype": torch.bfloat16},
}
"""SGD with momentum, and the options of GGT, which in eager mode makes a graph of its own steps (``cuda_graph``)."""

PLAIN = "GGT r=20 float32, no graph"
"""One more in eager mode, without."""

BASELINES: Mapping[str, str] = {
    "Adam": "Adam(fused=True)",
    "AdaGrad": "Adagrad",
    "RMSprop": "RMSprop(alpha=0.999, momentum=0.9)",
    "Adadelta": "Adadelta(rho=0.999)",
    "AdamW": "AdamW(fused=True)",
    "Muon": "MuonAndAdamW",
    "SOAP": "pytorch_optimizer.SOAP",
}
"""The other entrants of our long runs, fused where torch has that: what claims about seconds take their times from.

In eager mode only, which is how long runs are trained; AdaGrad and Muon cannot be captured."""


@dataclass(frozen=True)
class _Sequences:
    """An LSTM and the shape of its batches."""

    width: int
    batch: int = 128
    length: int = 100
    dropout: float = 0.0
    autocast: bool = False


_LSTMS = {
    "lstm": _Sequences(500),
    "lstm-512-bf16": _Sequences(
        width=PTBCharacters.width,
        batch=PTBCharacters.batch,
        length=PTBCharacters.length,
        dropout=PTBCharacters.dropout,
        autocast=PTBCharacters.autocast,
    ),
}
_TINY = _Sequences(16, batch=4, length=5)


def _lstm(sequences: _Sequences, *, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    model = CharLSTM3(_VOCABULARY, width=sequences.width, dropout=sequences.dropout).to(device)
    codes = torch.randint(0, _VOCABULARY, (sequences.length + 1, sequences.batch), device=device)

    def loss() -> Tensor:
        # Without the cache of casts, which a captured step must not have.
        with torch.autocast(device.type, torch.bfloat16, enabled=sequences.autocast, cache_enabled=False):
            logits, _ = model(codes[:-1])
            return functional.cross_entropy(logits.flatten(0, 1), codes[1:].flatten())

    return model, loss


def _sizes(model: str, *, tiny: bool) -> dict[str, int]:
    """What a record says about a batch."""
    if model == "shake-shake":
        return {"batch": 4 if tiny else _BATCH}
    sequences = _TINY if tiny else _LSTMS[model]
    return {"batch": sequences.batch, "length": sequences.length}


def _shake_shake(*, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    batch = 4 if tiny else _BATCH
    model = (ShakeShake26(4, 1) if tiny else ShakeShake26()).to(device)
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    return model, lambda: functional.cross_entropy(model(images), labels)


def _make(model: str, *, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    if model == "shake-shake":
        return _shake_shake(tiny=tiny, device=device)
    return _lstm(_TINY if tiny else _LSTMS[model], device=device)


MODELS = ("lstm", "shake-shake", "lstm-512-bf16")
"""The paper's LSTM (5.3 M) and CNN (2.9 M), float32; and the LSTM as our long runs train it, the harder case."""


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
    """Time of a training step with each contender, and its ratio to SGD's, paired round by round.

    Contenders are `CONTENDERS` and then, in eager mode and a quarter of the rounds, `BASELINES` beside SGD; one of
    these that is not installed or fails is named under ``not measured``.

    Every contender has a model of its own; a round is a block of steps of each, by the clock, with the device waited
    for at both ends: what a training loop sees, the host's work included.

    Args:
        device: where.
        bandwidth: of a copy; recorded with the case, not needed here.
        model: one of `MODELS`.
        mode: "eager", or "captured": the whole training step as one CUDA graph.
        rounds: timed; in eager mode the host's time is in them, which jumps by a fifth from one to the next.
        block: steps per block.
        tiny: models of a few thousand parameters, to try the code out.
    """
    del bandwidth
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if mode not in ("eager", "captured"):
        raise ValueError(f"mode must be eager or captured, got {mode!r}")
    torch.backends.cudnn.benchmark = True  # the best convolutions for all: SGD's time is the denominator
    calls: dict[str, Callable[[], object]] = {}
    result: dict[str, Any] = {"model": model, "mode": mode, **_sizes(model, tiny=tiny)}
    contenders = dict(CONTENDERS)
    if mode == "eager":
        contenders = {name: {**options, "cuda_graph": True} if options else {} for name, options in CONTENDERS.items()}
        contenders[PLAIN] = {"window": 20, "window_dtype": torch.float32}
    for name, options in contenders.items():
        network, loss = _fresh(model, tiny=tiny, device=device)
        result["d"] = sum(p.numel() for p in network.parameters())
        optimizer: torch.optim.Optimizer
        if options:
            optimizer = GGT(network.parameters(), capturable=mode == "captured", **options)
        else:
            optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, fused=True)
        step = _training_step(optimizer, loss)
        for _ in range(options.get("window", 0) + 2):
            step()
        if mode == "captured":
            made = attempt(captured, step)
            if isinstance(made, str):  # the process is not to be trusted after this
                raise RuntimeError(f"capture of a training step failed: { ({name: made}) }")
            step = made
        calls[name] = step
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


def _over_sgd(times: Mapping[str, list[float]]) -> dict[str, Timing]:
    """Ratios, paired by round."""
    return {
        name: summarize([ours / sgd for ours, sgd in zip(values, times["SGD"], strict=True)])
        for name, values in times.items()
        if name != "SGD"
    }


def _fresh(model: str, *, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    return _make(model, tiny=tiny, device=device)


def _baselines(
    model: str, *, tiny: bool, device: torch.device
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """A step for each of `BASELINES` that can be had; why not, for the others."""
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
        step = _training_step(made, loss)
        error = attempt(step)
        if error is None:
            calls[name] = step
        else:
            reasons[name] = error
    return calls, reasons


def _training_step(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], object]:
    def step() -> None:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
