"""A step on a CPU, divided by the two bare float32 products W v and Wᵀ c: plain torch and compiled passes, by format.

All contenders run in turn, so that other work on the machine hits all of them. A ratio is taken within each round:

    python benchmarks/cpu_step_ways.py --threads 2 --out out/cpu_step_ways.json
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch

from ggt_lab.optimizers.paper_ggt import PaperGGT
from torch_ggt import backends
from torch_ggt.backends import native

SIZES = ((300_000, 100), (330_000, 20))
FORMATS = ("float32", "bfloat16", "int8", "int4")
LEAST_ROUNDS = 5


class Stepper:
    """One parameter of d elements and a full window, whose passes are compiled or not."""

    def __init__(self, d, r, stored, *, compiled):
        os.environ["TORCH_GGT_NATIVE"] = str(int(compiled))
        native.library.cache_clear()
        backends.choose.cache_clear()
        self.parameter = torch.nn.Parameter(torch.zeros(d))
        self.parameter.grad = torch.zeros(d)
        self.optimizer = PaperGGT([self.parameter], window=r, window_dtype=stored)
        for _ in range(r + 2):
            self.seconds()
        (block,) = self.optimizer.attached_blocks()
        if compiled != isinstance(block.backend, native.NativeBackend):
            raise SystemExit("The compiled passes are not installed: pip install ./native")

    def seconds(self):
        self.parameter.grad.normal_()
        return seconds(self.optimizer.step)


def seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def ratios(d, r, rounds, *, plain):
    rows, row, c = torch.randn(r, d), torch.randn(d), torch.randn(r)
    steppers = {f"{stored}, compiled": Stepper(d, r, stored, compiled=True) for stored in FORMATS}
    if plain:
        steppers |= {f"{stored}, plain torch": Stepper(d, r, stored, compiled=False) for stored in FORMATS}
    found = {way: [] for way in steppers}
    for _ in range(rounds):
        bare = seconds(lambda: rows.mv(row)) + seconds(lambda: rows.t().mv(c))
        for way, stepper in steppers.items():
            found[way].append(stepper.seconds() / bare)
    return {
        way: {"median": statistics.median(v), "low": sorted(v)[rounds // 5], "high": sorted(v)[-rounds // 5]}
        for way, v in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--without-plain", action="store_true", help="compiled passes only")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds must be at least {LEAST_ROUNDS}")
    torch.set_num_threads(options.threads)
    found = {"threads": options.threads, "torch": torch.__version__, "load": os.getloadavg()[0]}
    found |= {f"d={d} r={r}": ratios(d, r, options.rounds, plain=not options.without_plain) for d, r in SIZES}
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
