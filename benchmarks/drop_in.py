"""Does the full matrix work the first time, at AdamW's learning rate? The measurement behind docs/defaults.md.

Trains small models with AdamW, with GGT as it was, and with two ways to put a full matrix in front of Adam's moments.
Every optimizer gets the learning rate of AdamW, unchanged. The score of a run is the mean of its last 10 losses, and at
least 1e-6. Each run is one line in a JSON-lines file; a run that is in the file already is not made again:

    python benchmarks/drop_in.py --out out/drop_in.jsonl [--only digits,parabola] [--methods "AdamW;GGT before"]
    python benchmarks/drop_in.py --out out/drop_in.jsonl --summary      # the table of docs/defaults.md, in Markdown

To turn the dials, name options of `whiten` after its name: ``--methods "AdamW;whiten(AdamW) window=5 jitter=0.01"``.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

import torch_ggt
from ggt_lab.optimizers.paper_ggt import PaperGGT
from ggt_lab.problems.small_networks import CharLSTM, Digits, StdlibChars
from torch_ggt import GGT, whiten

FLOOR = 1e-6
CPU = torch.device("cpu")

METHODS = {
    "AdamW": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr),
    "GGT before": PaperGGT,
    "whiten(AdamW)": lambda parameters, lr: whiten(torch.optim.AdamW(parameters, lr=lr)),
    "GGT adam": GGT,
}


def optimizer_of(method, parameters, lr):
    """The optimizer of that name; options of `whiten` may stand after its name, as in "whiten(AdamW) window=5"."""
    name, *options = method.split()
    if method in METHODS:
        return METHODS[method](parameters, lr)
    if name != "whiten(AdamW)":
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}, and whiten(AdamW) with options")
    given = dict(option.split("=") for option in options)  # whiten takes numbers as words, too
    values = {key: {"True": True, "False": False}.get(word, word) for key, word in given.items()}
    return whiten(torch.optim.AdamW(parameters, lr=lr), **values)


class Task(NamedTuple):
    """What is trained: ``make(seed)`` gives the parameters, and a function that gives the loss of the next batch."""

    make: Callable
    steps: int
    rates: tuple[float, ...]
    listed: bool = True
    """Whether the goal speaks of it; the tasks that are not listed helped to choose the defaults."""


def parabola(seed):
    """(w - 1)², from 5."""
    w = nn.Parameter(torch.tensor([5.0]))
    return [w], lambda: (w - 1).square().sum()


def linear(seed):
    """Linear regression with three parameters, 64 points, no noise, all points in a batch."""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(64, 3, generator=generator)
    y = x @ (2 * torch.randn(3, generator=generator))
    w = nn.Parameter(torch.zeros(3))
    return [w], lambda: (x @ w - y).square().mean()


def mlp(inputs, outputs, activation):
    """Two hidden layers of 32 units."""
    return nn.Sequential(
        *(nn.Linear(inputs, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, outputs))
    )


def regression(batch):
    """256 points of a smooth function of four variables, by a tanh network."""

    def make(seed):
        generator = torch.Generator().manual_seed(1000 + seed)
        x = torch.rand(256, 4, generator=generator) * 2 - 1
        y = torch.sin(3 * x[:, 0]) + 2 * x[:, 1] * x[:, 2] + x[:, 3] ** 2
        torch.manual_seed(seed)
        model, batches = mlp(4, 1, nn.Tanh), torch.Generator().manual_seed(seed)

        def loss():
            index = torch.arange(256) if batch == 256 else torch.randint(0, 256, (batch,), generator=batches)
            return functional.mse_loss(model(x[index])[:, 0], y[index])

        return model.parameters(), loss

    return make


def classifier(seed):
    """1024 points with 5 labels from a random teacher, by a ReLU network, in batches of 32."""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(1024, 20, generator=generator)
    first, second = torch.randn(20, 16, generator=generator), torch.randn(16, 5, generator=generator)
    y = (torch.tanh(x @ first / 20**0.5 * 2) @ second).argmax(1)
    torch.manual_seed(seed)
    model, batches = mlp(20, 5, nn.ReLU), torch.Generator().manual_seed(seed)

    def loss():
        index = torch.randint(0, 1024, (32,), generator=batches)
        return functional.cross_entropy(model(x[index]), y[index])

    return model.parameters(), loss


def digits(seed):
    """The lab's problem "digits", in batches of 32."""
    problem = Digits(seed, CPU)
    problem.batch = 32
    return problem.parameters(), problem.loss


def characters(width, batch, length, model=None):
    """The lab's problem "stdlib-chars" with a small model."""

    def make(seed):
        problem = StdlibChars(seed, CPU)
        vocabulary = problem.model.out.out_features
        problem.batch, problem._offsets = batch, torch.arange(length + 1)
        problem.length = length
        torch.manual_seed(seed)
        problem.model = CharLSTM(vocabulary, width) if model is None else model(vocabulary, width, length)
        return problem.parameters(), problem.loss

    return make


class Attention(nn.Module):
    """One block of a GPT: attention, then two linear layers, each after a normalization and beside an identity."""

    def __init__(self, width, heads=2):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """Two blocks."""

    def __init__(self, vocabulary, width, length):
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Attention(width), Attention(width))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = name.endswith(("down.weight", "0.out.weight", "1.out.weight"))
                nn.init.normal_(p, std=0.01 if last else 0.02)

    def forward(self, codes):
        return self.out(self.norm(self.blocks(self.embed(codes) + self.places.weight[: codes.shape[1]])))


def two_scales(seed):
    """sin(πx) + 0.3 sin(5πx) at 128 points, by a tanh network, all points in a batch: as quiet as a PINN."""
    x = torch.linspace(-1, 1, 128)[:, None]
    y = torch.sin(math.pi * x) + 0.3 * torch.sin(5 * math.pi * x)
    torch.manual_seed(seed)
    model = mlp(1, 1, nn.Tanh)
    return model.parameters(), lambda: functional.mse_loss(model(x), y)


TASKS = {
    "parabola": Task(parabola, 300, (0.1,)),
    "linear": Task(linear, 300, (0.1,)),
    "mlp-full": Task(regression(256), 300, (1e-2,)),
    "mlp-32": Task(regression(32), 300, (1e-2,)),
    "classifier": Task(classifier, 300, (1e-3, 3e-3, 1e-2)),
    "digits": Task(digits, 300, (1e-3, 3e-3, 1e-2)),
    "stdlib-chars": Task(characters(32, 32, 16), 300, (1e-3, 3e-3, 1e-2)),
    "lstm": Task(characters(24, 8, 24), 400, (1e-2,), listed=False),
    "gpt": Task(characters(32, 16, 32, GPT), 400, (3e-3,), listed=False),
    "two-scales": Task(two_scales, 600, (1e-2,), listed=False),
}


def run(task, method, lr, seed):
    """Train once; the line that is written about it."""
    parameters, loss_of = TASKS[task].make(seed)
    parameters = list(parameters)
    optimizer = optimizer_of(method, parameters, lr)
    losses, start = [], time.perf_counter()
    for _ in range(TASKS[task].steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mean = statistics.fmean(losses[-10:])
    return {
        **{"task": task, "lr": lr, "method": method, "seed": seed},
        **{"score": max(mean, FLOOR) if math.isfinite(mean) else math.inf, "first": losses[0]},
        **{"steps": len(losses), "parameters": sum(p.numel() for p in parameters)},
        "seconds": round(time.perf_counter() - start, 2),
    }


def summary(lines):
    """A Markdown table: mean scores, and ratios to AdamW's; ratios above 1.2 in bold."""
    scores: dict[tuple[str, float], dict[str, list[float]]] = {}
    for line in lines:
        scores.setdefault((line["task"], line["lr"]), {}).setdefault(line["method"], []).append(line["score"])
    others = list(dict.fromkeys(line["method"] for line in lines if line["method"] != "AdamW"))
    rows = [
        f"| task | lr | AdamW | {' | '.join(f'{method} | ratio' for method in others)} |",
        f"|{'---|' * (3 + 2 * len(others))}",
    ]
    for task, lr in sorted(scores, key=lambda key: (list(TASKS).index(key[0]), key[1])):
        found = scores[task, lr]
        adamw = statistics.fmean(found["AdamW"])
        cells = [f"{adamw:.3g}"]
        for method in others:
            mean = statistics.fmean(found.get(method, [math.nan]))
            ratio = f"{mean / adamw:.3f}" if mean < 10 * adamw else f"{mean / adamw:.4g}"
            cells += [f"{mean:.3g}", f"**{ratio}**" if not mean <= 1.2 * adamw else ratio]
        rows.append(f"| {task} | {lr:g} | {' | '.join(cells)} |")
    return "\n".join(rows)


def environment():
    """What the numbers depend on."""
    return {
        **{"torch": torch.__version__, "torch_ggt": getattr(torch_ggt, "__version__", None)},
        **{"python": platform.python_version(), "machine": platform.machine(), "threads": torch.get_num_threads()},
    }


def words(text):
    return [word.strip() for word in text.replace(";", ",").split(",") if word]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON-lines file; it is continued")
    parser.add_argument("--only", type=words, default=[], help=f"tasks, separated by commas: {', '.join(TASKS)}")
    parser.add_argument("--methods", type=words, default=list(METHODS), help=f"methods: {'; '.join(METHODS)}")
    parser.add_argument("--seeds", type=words, default=["0", "1", "2", "3", "4"], help="seeds, separated by commas")
    parser.add_argument("--summary", action="store_true", help="print the table of the runs in the file; run nothing")
    given = parser.parse_args(arguments)
    unknown = [word for word in given.only if word not in TASKS]
    if unknown:
        parser.error(f"unknown tasks: {', '.join(unknown)}; there are {', '.join(TASKS)}")
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.summary:
        print(summary(lines))
        return
    for method in given.methods:
        optimizer_of(method, [nn.Parameter(torch.ones(2))], 1e-3)  # an error comes before the first run
    torch.set_num_threads(1)
    done = {(line["task"], line["lr"], line["method"], line["seed"]) for line in lines}
    jobs = [
        (task, lr, method, int(seed))
        for task in given.only or TASKS
        for lr in TASKS[task].rates
        for seed in given.seeds
        for method in given.methods
        if (task, lr, method, int(seed)) not in done
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".environment.json").write_text(json.dumps(environment(), indent=1) + "\n")
    start = time.perf_counter()
    for number, (task, lr, method, seed) in enumerate(jobs, 1):
        line = run(task, method, lr, seed)
        with given.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        left = (time.perf_counter() - start) / number * (len(jobs) - number)
        print(
            f"[{number}/{len(jobs)}] {task} lr {lr:g} seed {seed} {method}: {line['score']:.4g} "
            f"({line['seconds']} s; about {left:.0f} s left)",
            flush=True,
        )


if __name__ == "__main__":
    main()
