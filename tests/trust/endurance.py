"""A million steps: does the Gram matrix still belong to its rows, and do memory and time stay flat?

Time is compared in two ways, because other work shares the machine. The first divides the time of the steps by the time
of a fixed amount of plain torch work that was done between them, at the start and at the end. The second lets the old
optimizer and an optimizer that has just begun make steps in turns, and divides their times.
"""

import gc
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import whiten

MEMBERS = {
    "GGT": lambda parameters: GGT(parameters, lr=1e-3),
    "whiten(AdamW)": lambda parameters: whiten(torch.optim.AdamW(parameters, lr=1e-3)),
}
PIECE = 250  # steps between two looks at the clock
YOUNG = 2_000  # steps after which an optimizer counts as young: its window is full, and its caches are warm
TURNS = 200  # pieces that are timed at each end


class Run:
    """An optimizer on a quadratic with noise: the gradient is x - target + noise, and the noise comes from a pool."""

    def __init__(self, name):
        generator = torch.Generator().manual_seed(0)
        shapes = ((8, 16), (8,), (3, 8), (3,))
        self.parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        self.noise = [[torch.randn(s, generator=generator) for s in shapes] for _ in range(257)]
        self.optimizer = MEMBERS[name](self.parameters)
        self.done = 0
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def advance(self, steps):
        """Make steps; how many seconds they took."""
        start = time.perf_counter()
        gradients = [p.grad for p in self.parameters]
        for _ in range(steps):
            torch._foreach_copy_(gradients, self.parameters)
            torch._foreach_add_(gradients, self.noise[self.done % len(self.noise)])
            self.optimizer.step()
            self.done += 1
        return time.perf_counter() - start

    def drift(self):
        """The largest error of the Gram matrix, against W Wᵀ summed anew in float64, relative to the rows' lengths."""
        owner = getattr(self.optimizer, "whitening", self.optimizer)
        (block,) = owner.attached_blocks()
        rows, gram = block.window.rows.double(), block.window.gram
        lengths = gram.diagonal().sqrt()
        return float(((gram - rows @ rows.T).abs() / (lengths[:, None] * lengths)).max())


def plain_work():
    """A fixed amount of small torch operations, which is what a step of a small model is made of; its seconds."""
    matrix, vector = torch.eye(20, dtype=torch.float64), torch.ones(200)
    start = time.perf_counter()
    for _ in range(PIECE):
        torch.linalg.eigh(matrix)
        for _ in range(20):
            vector.mul_(1.0)
    return time.perf_counter() - start


def resident():
    """The memory that this process holds, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def measured(run, turns):
    """Median of (time of a piece of steps / time of the plain work beside it), and the median time of a step in µs."""
    pairs = [(run.advance(PIECE), plain_work()) for _ in range(turns)]
    return statistics.median(a / b for a, b in pairs), statistics.median(a for a, _ in pairs) / PIECE * 1e6


def beside_a_young_one(old, name, turns):
    """Median of (time of a piece of the old run / time of a piece of a young run), in turns."""
    young = Run(name)
    young.advance(YOUNG)
    ratios = []
    for turn in range(turns):
        if turn % 2:
            first = old.advance(PIECE)
            ratios.append(first / young.advance(PIECE))
        else:
            first = young.advance(PIECE)
            ratios.append(old.advance(PIECE) / first)
    return statistics.median(ratios)


def endure(name, steps, turns=TURNS):
    """What a long run of one member looks like."""
    run = Run(name)
    run.advance(YOUNG)
    start, first = measured(run, turns)
    memory, worst = [resident()], run.drift()
    while run.done < steps - turns * PIECE:
        run.advance(min(steps // 20, steps - turns * PIECE - run.done))
        memory.append(resident())
        worst = max(worst, run.drift())
    end, last = measured(run, turns)
    return {
        "steps": run.done,
        "worst drift of K, relative": max(worst, run.drift()),
        "memory in MB, from start to end": [round(number, 1) for number in [*memory, resident()]],
        "microseconds per step": {"start": round(first, 1), "end": round(last, 1)},
        "time at the end / at the start, in units of plain work": round(end / start, 4),
        "time of the old / of a young optimizer, in turns": round(beside_a_young_one(run, name, turns), 4),
        "finite": all(bool(p.isfinite().all()) for p in run.parameters),
    }
