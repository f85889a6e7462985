"""What whitening and finishing cost: training steps of our members, each beside the optimizer that it would replace."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.bench.timing import attempt, captured, interleaved, summarize
from ggt_lab.bench.training_step import fresh_lstm, training_step
from ggt_lab.models import CharTransformer
from ggt_lab.optimizers.specs import optimizer_factory

__all__ = ["MODELS", "PAIRS", "members"]

_VOCABULARY = 50
_ROWS = 20

PAIRS: Mapping[str, tuple[str, str]] = {
    "whiten(AdamW)": ("whiten(AdamW({fused}), {window})", "AdamW({fused})"),
    "GGT adam": ("GGT({own})", "AdamW({fused})"),
    "GGT polar": ("PaperGGT(finish='polar', {own})", "torch.optim.Muon, AdamW({fused})"),
    "whiten(Muon)": ("whiten(MuonAndAdamW, {window})", "MuonAndAdamW"),
}
"""Each member and the optimizer that it would replace, as specs. On a GPU AdamW is fused, GGT and whiten capture steps.

torch's Muon has the matrices, and AdamW the vectors; no wrapper around them costs time. The lab's MuonAndAdamW is one
optimizer, as ``whiten`` needs it."""

MODELS = ("gpt", "lstm", "small-gpt")
"""A GPT of 10.8 M, the paper's LSTM of 5.3 M, and a GPT of 0.12 M for a CPU."""


def members(
    device: torch.device,
    bandwidth: float,
    *,
    model: str,
    dtype: str = "bfloat16",
    mode: str = "eager",
    rounds: int = 24,
    block: int = 5,
    tiny: bool = False,
) -> dict[str, Any]:
    """Time of a training step with each member, divided by the time with the optimizer that it would replace.

    All take turns, round by round, and ratios are paired by rounds. Models, starts and batches are equal. Most people
    train in eager mode, where the host limits small models. Captured, the whole training step is one CUDA graph: this
    is the time of the device. What cannot be captured is named under ``not measured``, with all that come after it: a
    failed capture may spoil the process.

    Args:
        device: the device.
        bandwidth: bandwidth of a copy; every kind of case has this argument, and it is not needed here.
        model: one of `MODELS`.
        dtype: the number type of the window, which has 20 rows.
        mode: "eager" or "captured".
        rounds: the number of timed rounds.
        block: the number of steps in a round.
        tiny: models of a few hundred parameters, to try the code.
    """
    del bandwidth
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if mode not in ("eager", "captured"):
        raise ValueError(f"mode must be eager or captured, got {mode!r}")
    on_gpu, graph = device.type == "cuda", mode == "captured"
    words = {
        "window": f"window={_ROWS}, window_dtype='{dtype}', cuda_graph={on_gpu and not graph}",
        "own": f"window={_ROWS}, window_dtype='{dtype}', cuda_graph={on_gpu and not graph}, capturable={graph}",
        "fused": f"fused={on_gpu}, capturable={on_gpu}",
    }
    pairs = {name: (one.format(**words), other.format(**words)) for name, (one, other) in PAIRS.items()}
    calls: dict[str, Callable[[], object]] = {}
    result: dict[str, Any] = {"model": model, "mode": mode, "r": _ROWS, "dtype": dtype, "not measured": {}}
    for spec in dict.fromkeys(spec for pair in pairs.values() for spec in pair):
        network, loss = _fresh(model, tiny=tiny, device=device)
        result["d"] = sum(p.numel() for p in network.parameters())
        step = _training_step(spec, list(network.parameters()), loss, fused=on_gpu)
        for _ in range(_ROWS + 2):
            step()
        if graph:
            made = attempt(captured, step)
            if isinstance(made, str):
                result["not measured"][spec] = made
                break
            step = made
        calls[spec] = step
    times = interleaved(calls, device, rounds=rounds, block=block)
    result["members"] = {name: _compared(times, *pair) for name, pair in pairs.items() if {*pair} <= times.keys()}
    return result


def _training_step(
    spec: str, parameters: Sequence[nn.Parameter], loss: Callable[[], Tensor], *, fused: bool
) -> Callable[[], object]:
    """A training step with the optimizer of a spec, or with torch's Muon for matrices and AdamW for vectors."""
    if not spec.startswith("torch.optim.Muon"):
        return training_step(optimizer_factory(spec)(list(parameters), 1e-4), loss)
    vectors = torch.optim.AdamW([p for p in parameters if p.dim() != 2], 1e-4, fused=fused, capturable=fused)
    muon = torch.optim.Muon([p for p in parameters if p.dim() == 2], 1e-4, adjust_lr_fn="match_rms_adamw")

    def step() -> None:
        vectors.zero_grad()
        muon.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        vectors.step()
        muon.step()  # type: ignore[no-untyped-call]

    return step


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
