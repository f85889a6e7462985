"""What a GGT step costs on a CPU, beside the two bare products W v and Wᵀ c, and beside torchzero's GGT.

All contenders run in one process, interleaved: a noisy machine is noisy to all of them alike. Times are medians.
Run ``make bench``; the result is printed and written as JSON.

    python benchmarks/cpu_step.py [--rounds 15] [--out out/cpu_step.json]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from torch_ggt import GGT, products


class Stepper:
    """One parameter of d elements that gets a fresh gradient, not timed, before every step."""

    def __init__(self, d, make_optimizer):
        self.parameter = torch.nn.Parameter(torch.ones(d))
        self.parameter.grad = torch.ones(d)
        self.optimizer = make_optimizer([self.parameter])

    def prepare(self):
        self.parameter.grad.normal_()

    def __call__(self):
        self.optimizer.step()

    def fill(self, r):
        for _ in range(r + 2):
            self.prepare()
            self()
        return self


def interleaved(contenders, rounds):
    """Median milliseconds of each contender, one call of each per round."""
    times = {name: [] for name in contenders}
    for round_ in range(rounds + 2):
        for name, call in contenders.items():
            if isinstance(call, Stepper):
                call.prepare()
            start = time.perf_counter()
            call()
            if round_ >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_rss(action):
    """Bytes by which the resident set of this process rises at most during ``action``, kept alive; Linux only."""

    def status(key):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
        raise KeyError(key)

    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    kept = action()
    return status("VmHWM") - before, kept


def cost(d, r, rounds, dtype=torch.float32, with_torchzero=True):
    rows, row, c = torch.randn(r, d), torch.randn(d), torch.randn(r)
    contenders = {
        "W v": lambda: rows.mv(row),
        "WT c": lambda: rows.t().mv(c),
        "GGT": Stepper(d, lambda p: GGT(p, window=r, window_dtype=dtype)).fill(r),
    }
    if with_torchzero:
        import torchzero as tz  # noqa: PLC0415 - only the benchmark extra has it

        contenders["torchzero GGT"] = Stepper(
            d, lambda p: tz.Optimizer(p, tz.m.GGT(history_size=r), tz.m.LR(1e-3))
        ).fill(r)
    ms = interleaved(contenders, rounds)
    result = {
        "d": d,
        "r": r,
        "dtype": str(dtype),
        "ms": ms,
        "GGT / bare products": ms["GGT"] / (ms["W v"] + ms["WT c"]),
    }
    if with_torchzero:
        result["torchzero / GGT"] = ms["torchzero GGT"] / ms["GGT"]
    return result


def growth(sizes, rounds):
    """Step times for several (d, r), interleaved."""
    contenders = {}
    for d, r in sizes:
        contenders[f"d={d} r={r}"] = Stepper(d, lambda p, r=r: GGT(p, window=r)).fill(r)
    return interleaved(contenders, rounds)


def memory(d, r):
    """Peak memory of making and running an optimizer, less its window, in units of d float32 (at most 4).

    In a process of its own, whose allocator gives every large block back at once, so that resident means used.
    """
    script = f"import cpu_step; print(cpu_step.memory_here({d}, {r}))"
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, check=True, capture_output=True, text=True
    )
    return {"d": d, "r": r, "beyond": float(done.stdout.split()[-1])}


def memory_here(d, r):
    with torch.no_grad():  # compilers and workspaces, there from the first use on
        products.gram_row(torch.zeros(r, d), torch.zeros(d))
    Stepper(1000, lambda p: GGT(p, window=r)).fill(r)
    stepper = Stepper(d, lambda p: GGT(p, window=r))
    peak, _ = peak_rss(lambda: stepper.fill(r))
    return (peak - 4 * d * r) / (4 * d)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("out/cpu_step.json"))
    parser.add_argument("--quick", action="store_true", help="leave torchzero and growth out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    report = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "memory": memory(4_000_000, 5),
        "step": cost(300_000, 100, arguments.rounds, with_torchzero=not arguments.quick),
    }
    if not arguments.quick:
        report["step, bfloat16"] = cost(300_000, 100, arguments.rounds, torch.bfloat16, with_torchzero=False)
        report["growth in d, r=50"] = growth(
            [(d, 50) for d in (125_000, 250_000, 500_000, 1_000_000)], arguments.rounds
        )
        report["growth in r, d=1e6"] = growth([(1_000_000, r) for r in (25, 50, 100, 200)], arguments.rounds)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
