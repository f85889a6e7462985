"""GGT and Adam train the same small character LSTM, from the same start, on the same batches.

The text is the source of a few modules of Python's standard library, so that nothing is downloaded. Each optimizer gets
the best learning rate of the same grid; curves are per step and per second.

    make demo        # or: python examples/demo.py [--out out/demo.png] [--steps 300]
"""

import argparse
import inspect
import json
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import matplotlib as mpl
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from torch.nn import functional

from torch_ggt import GGT

mpl.use("Agg")
from matplotlib import pyplot as plt

RATES = (1e-2, 3e-2, 1e-1, 3e-1)
SEEDS = (0, 1)
BATCH, LENGTH = 32, 32
OPTIMIZERS = {"Adam": torch.optim.Adam, "GGT": GGT}
COLORS = {"Adam": "#d95f02", "GGT": "#1b6ca8"}


class CharLSTM(nn.Module):
    """Two layers of 64 units."""

    def __init__(self, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 24)
        self.lstm = nn.LSTM(24, 64, num_layers=2, batch_first=True)
        self.out = nn.Linear(64, vocabulary)

    def forward(self, codes):
        """Logits of the next character, at every position."""
        return self.out(self.lstm(self.embed(codes))[0])


def make_text():
    """Character codes for training and validation, and the size of the vocabulary."""
    text = "".join(inspect.getsource(module) for module in (json, textwrap, argparse))
    characters = {c: i for i, c in enumerate(sorted(set(text)))}
    codes = torch.tensor([characters[c] for c in text])
    split = int(0.9 * len(codes))
    return codes[:split], codes[split:], len(characters)


def train(name, lr, seed, steps):
    """Training losses, seconds after each step, and the final validation loss."""
    torch.set_num_threads(1)  # a network this small gains nothing from more
    training, validation, vocabulary = make_text()
    torch.manual_seed(seed)
    model = CharLSTM(vocabulary)
    optimizer = OPTIMIZERS[name](model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = torch.Generator().manual_seed(seed)
    window = torch.arange(LENGTH + 1)

    def loss_of(sequences):
        return functional.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())

    losses, seconds = [], []
    start = time.perf_counter()
    for _ in range(steps):
        first = torch.randint(0, len(training) - LENGTH - 1, (BATCH, 1), generator=batches)
        optimizer.zero_grad()
        loss = loss_of(training[first + window])
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    with torch.no_grad():
        first = torch.arange(0, len(validation) - LENGTH - 1, LENGTH)[:, None]
        return losses, seconds, loss_of(validation[first + window]).item()


def race(steps):
    """Results by (optimizer, learning rate, seed), two runs at a time."""
    results = {}
    columns = (TextColumn("{task.description:>28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress, ProcessPoolExecutor(2) as pool:
        jobs = {
            pool.submit(train, name, lr, seed, steps): (name, lr, seed)
            for lr in RATES
            for seed in SEEDS
            for name in OPTIMIZERS
        }
        task = progress.add_task("training", total=len(jobs))
        for job in as_completed(jobs):
            name, lr, seed = jobs[job]
            results[name, lr, seed] = job.result()
            progress.update(task, advance=1, description=f"{name}, lr {lr:g}, seed {seed}")
    return results


def best_rate(results, name):
    """The learning rate with the lowest mean validation loss."""
    return min(RATES, key=lambda lr: sum(results[name, lr, seed][2] for seed in SEEDS))


def smooth(losses, width=15):
    """A running mean, so that curves of single batches can be read."""
    return torch.tensor(losses).unfold(0, width, 1).mean(-1)


def show(results, steps, path):
    """A table on the terminal and the curves as a picture."""
    table = Table(title=f"character LSTM, {steps} steps, {len(SEEDS)} seeds, best of {len(RATES)} rates")
    for heading in ("optimizer", "lr", "training loss", "validation loss", "ms / step"):
        table.add_column(heading, justify="left" if heading == "optimizer" else "right")
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for name in OPTIMIZERS:
        lr = best_rate(results, name)
        runs = [results[name, lr, seed] for seed in SEEDS]
        final = sum(smooth(losses)[-1].item() for losses, _, _ in runs) / len(runs)
        validation = sum(run[2] for run in runs) / len(runs)
        per_step = sum(seconds[-1] for _, seconds, _ in runs) / len(runs) / steps
        edge = " (edge of the grid)" if lr in (RATES[0], RATES[-1]) else ""
        table.add_row(name, f"{lr:g}{edge}", f"{final:.3f}", f"{validation:.3f}", f"{1e3 * per_step:.1f}")
        for number, (losses, seconds, _) in enumerate(runs):
            curve = smooth(losses)
            label = f"{name}, lr {lr:g}" if number == 0 else None
            for axes, x in zip(panels, (range(len(losses)), seconds), strict=True):
                axes.plot(
                    x[len(losses) - len(curve) :], curve, color=COLORS[name], label=label, linewidth=1.8, alpha=0.8
                )
    for axes, label in zip(panels, ("step", "seconds"), strict=True):
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, alpha=0.25)
    panels[0].set_ylabel("training loss (nats per character)")
    panels[0].legend(frameon=False)
    figure.suptitle(
        "Same start, same batches, tuned learning rates: one curve per seed", x=0.01, ha="left", fontsize=11
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    Console().print(table)
    print(f"Curves: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo.png"))
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    show(race(arguments.steps), arguments.steps, arguments.out)


if __name__ == "__main__":
    main()
