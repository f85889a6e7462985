"""A step on a CPU, divided by the two bare float32 products W v and Wᵀ c: plain torch, compiled, and rows of integers.

All contenders run in turn, so that other work on the machine hits all of them. A ratio is taken within each round:

    python benchmarks/cpu_step_ways.py --threads 1 --out out/cpu_step_ways.json
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ["TORCH_GGT_COMPILE"] = "1"  # before torch_ggt is imported; each contender turns it on or off

import torch

from ggt_lab.optimizers.paper_ggt import PaperGGT
from torch_ggt.backends import compiled

SIZES = ((300_000, 100), (330_000, 20))
WAYS = {"float32": ("float32", False), "float32, compiled": ("float32", True), "int8": ("int8", False)}


class Stepper:
    """One parameter of d elements and a full window."""

    def __init__(self, d, r, stored):
        self.parameter = torch.nn.Parameter(torch.zeros(d))
        self.parameter.grad = torch.zeros(d)
        self.optimizer = PaperGGT([self.parameter], window=r, window_dtype=stored)
        for _ in range(r + 2):
            self.seconds(by_compiler=False)

    def seconds(self, *, by_compiler):
        self.parameter.grad.normal_()
        compiled.SMALLEST = 0 if by_compiler else 2**60
        return seconds(self.optimizer.step)


def seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def ratios(d, r, rounds):
    rows, row, c = torch.randn(r, d), torch.randn(d), torch.randn(r)
    steppers = {stored: Stepper(d, r, stored) for stored in ("float32", "int8")}
    steppers["float32"].seconds(by_compiler=True)  # compiles
    found = {way: [] for way in WAYS}
    for _ in range(rounds):
        bare = seconds(lambda: rows.mv(row)) + seconds(lambda: rows.t().mv(c))
        for way, (stored, by_compiler) in WAYS.items():
            found[way].append(steppers[stored].seconds(by_compiler=by_compiler) / bare)
    return {
        way: {"median": statistics.median(v), "low": sorted(v)[rounds // 5], "high": sorted(v)[-rounds // 5]}
        for way, v in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {"threads": options.threads, "torch": torch.__version__, "load": os.getloadavg()[0]}
    found |= {f"d={d} r={r}": ratios(d, r, options.rounds) for d, r in SIZES}
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
