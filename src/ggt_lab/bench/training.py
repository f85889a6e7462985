"""Whole training steps of the paper's two models: forward, backward and optimizer, SGD's and GGT's in turn."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.bench.timing import attempt, captured, interleaved, summarize
from ggt_lab.models import CharLSTM3, ShakeShake26
from torch_ggt import GGT

__all__ = ["CONTENDERS", "MODELS", "training"]

_VOCABULARY, _BATCH, _LENGTH = 50, 128, 100

CONTENDERS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {},
    "GGT r=20 float32": {"window": 20, "window_dtype": torch.float32},
    "GGT r=20 bfloat16": {"window": 20, "window_dtype": torch.bfloat16},
    "GGT r=200 float32": {"window": 200, "window_dtype": torch.float32},
    "GGT r=200 bfloat16": {"window": 200, "window_dtype": torch.bfloat16},
}
"""SGD with momentum, and the options of GGT."""


def _lstm(width: int, *, autocast: bool, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A batch of 128 sequences of 100 characters, as `ggt_lab.problems.deep` has it; the paper leaves both open."""
    batch, length = (4, 5) if tiny else (_BATCH, _LENGTH)
    model = CharLSTM3(_VOCABULARY, embedding=8 if tiny else 128, width=16 if tiny else width).to(device)
    codes = torch.randint(0, _VOCABULARY, (length + 1, batch), device=device)

    def loss() -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
            logits, _ = model(codes[:-1])
            return functional.cross_entropy(logits.flatten(0, 1), codes[1:].flatten())

    return model, loss


def _shake_shake(*, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    batch = 4 if tiny else _BATCH
    model = (ShakeShake26(4, 1) if tiny else ShakeShake26()).to(device)
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    return model, lambda: functional.cross_entropy(model(images), labels)


def _make(model: str, *, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    if model == "lstm":
        return _lstm(500, autocast=False, tiny=tiny, device=device)
    if model == "lstm-512-bf16":
        return _lstm(512, autocast=True, tiny=tiny, device=device)
    if model == "shake-shake":
        return _shake_shake(tiny=tiny, device=device)
    raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")


MODELS = ("lstm", "shake-shake", "lstm-512-bf16")
"""The paper's LSTM (5.3 M) and CNN (2.9 M), float32; and the LSTM as our long runs train it, the harder case."""


def training(
    device: torch.device,
    bandwidth: float,
    *,
    model: str,
    mode: str,
    rounds: int = 15,
    block: int = 10,
    tiny: bool = False,
) -> dict[str, Any]:
    """Time of a training step with each of `CONTENDERS`, and its ratio to SGD's, paired round by round.

    Every contender has a model of its own; a round is a block of steps of each, by the clock, with the device waited
    for at both ends: what a training loop sees, the host's work included.

    Args:
        device: where.
        bandwidth: of a copy; recorded with the case, not needed here.
        model: one of `MODELS`.
        mode: "eager", or "captured": the whole training step as one CUDA graph.
        rounds: timed.
        block: steps per block.
        tiny: models of a few thousand parameters, to try the code out.
    """
    del bandwidth
    if mode not in ("eager", "captured"):
        raise ValueError(f"mode must be eager or captured, got {mode!r}")
    torch.backends.cudnn.benchmark = True  # the best convolutions for all: SGD's time is the denominator
    calls: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    result: dict[str, Any] = {"model": model, "mode": mode}
    for name, options in CONTENDERS.items():
        torch.manual_seed(0)
        network, loss = _make(model, tiny=tiny, device=device)
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
            if isinstance(made, str):
                failed[name] = made
                break  # the process is not to be trusted after this
            step = made
        calls[name] = step
    if failed:
        raise RuntimeError(f"capture of a training step failed: {failed}")
    times = interleaved(calls, device, rounds=rounds, block=block)
    result["times"] = {name: summarize(values).as_dict() for name, values in times.items()}
    result["over_SGD"] = {
        name: summarize([ours / sgd for ours, sgd in zip(values, times["SGD"], strict=True)]).median_ms
        for name, values in times.items()
        if name != "SGD"
    }
    return result


def _training_step(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], object]:
    def step() -> None:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
