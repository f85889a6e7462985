"""What whitening and finishing cost: training steps of our members, each beside the optimizer that it would replace."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.bench.timing import interleaved, summarize
from ggt_lab.bench.training_step import fresh_lstm, training_step
from ggt_lab.models import CharTransformer
from ggt_lab.optimizers.specs import optimizer_factory

__all__ = ["MODELS", "PAIRS", "members"]

_VOCABULARY = 50
_ROWS = 20

PAIRS: Mapping[str, tuple[str, str]] = {
    "whiten(AdamW)": ("whiten(AdamW({fused}), {window})", "AdamW({fused})"),
    "GGT adam": ("GGT({own})", "AdamW({fused})"),
    "whiten(Muon)": ("whiten(MuonAndAdamW, {window})", "MuonAndAdamW"),
    "GGT polar": ("PaperGGT(finish='polar', {own})", "MuonAndAdamW"),
}
"""Each member and the optimizer that it would replace, as specs. On a GPU AdamW is fused, and GGT captures its step."""

MODELS = ("gpt", "lstm", "small-gpt")
"""A GPT of 10.8 M, the paper's LSTM of 5.3 M, and a GPT of 0.12 M for a CPU."""


def members(
    device: torch.device,
    bandwidth: float,
    *,
    model: str,
    dtype: str = "bfloat16",
    rounds: int = 40,
    block: int = 5,
    tiny: bool = False,
) -> dict[str, Any]:
    """Time of a training step with each member, divided by the time with the optimizer that it would replace.

    All take turns, round by round, and ratios are paired by rounds. Steps are eager, as most people train; torch's Muon
    cannot be captured.

    Args:
        device: the device.
        bandwidth: bandwidth of a copy; every kind of case has this argument, and it is not needed here.
        model: one of `MODELS`.
        dtype: the number type of the window, which has 20 rows.
        rounds: the number of timed rounds.
        block: the number of steps in a round.
        tiny: models of a few hundred parameters, to try the code.
    """
    del bandwidth
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    on_gpu = device.type == "cuda"
    words = {
        "window": f"window={_ROWS}, window_dtype='{dtype}'",
        "own": f"window={_ROWS}, window_dtype='{dtype}', cuda_graph={on_gpu}",
        "fused": f"fused={on_gpu}, capturable={on_gpu}",
    }
    pairs = {name: (one.format(**words), other.format(**words)) for name, (one, other) in PAIRS.items()}
    calls: dict[str, Callable[[], object]] = {}
    result: dict[str, Any] = {"model": model, "r": _ROWS, "dtype": dtype}
    for spec in dict.fromkeys(spec for pair in pairs.values() for spec in pair):
        network, loss = _fresh(model, tiny=tiny, device=device)
        result["d"] = sum(p.numel() for p in network.parameters())
        step = training_step(optimizer_factory(spec)(list(network.parameters()), 1e-4), loss)
        for _ in range(_ROWS + 2):
            step()
        calls[spec] = step
    times = interleaved(calls, device, rounds=rounds, block=block)
    result["members"] = {name: _compared(times, *pair) for name, pair in pairs.items()}
    return result


def _compared(times: Mapping[str, list[float]], spec: str, replaces: str) -> dict[str, Any]:
    """The times of a member and of the optimizer that it would replace, and their ratio, paired by rounds."""
    ratio = summarize([ours / theirs for ours, theirs in zip(times[spec], times[replaces], strict=True)])
    return {
        "spec": spec,
        "replaces": replaces,
        "ms": summarize(times[spec]).median_ms,
        "replaced_ms": summarize(times[replaces]).median_ms,
        "ratio": ratio.median_ms,
        "range": [ratio.low_ms, ratio.high_ms],
    }


def _fresh(model: str, *, tiny: bool, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A network, and the function whose gradient is taken; alike in every call."""
    if model == "lstm":
        return fresh_lstm(tiny=tiny, device=device)
    torch.manual_seed(0)
    sizes = {"context": 64, "layers": 2, "width": 64, "heads": 2} if model == "small-gpt" else {}
    if tiny:
        sizes = {"context": 4, "layers": 1, "width": 4, "heads": 1}
    network = CharTransformer(_VOCABULARY, **sizes).to(device)
    length, batch = network.positions.num_embeddings, 2 if tiny else 16 if sizes else 64
    codes = torch.randint(0, _VOCABULARY, (batch, length + 1), device=device)

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            logits = network(codes[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), codes[:, 1:].flatten())

    return network, loss
