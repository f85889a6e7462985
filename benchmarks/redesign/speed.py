"""What does a step cost on a CPU, in both trees side by side?

Two processes, one for each tree, take turns: old, new, old, new. A block is some steps of one process, and its figure
the median time of its steps. A ratio is the figure of a new block over the figure of the old block just before it, so
that a disturbance of the machine reaches both or spoils one ratio of many.

One pair of processes is not enough. Where their memory lies is settled by chance when they start, and with it the time
of a step: the same tree differs from itself by up to 50 % in some cases, in all blocks alike. So several pairs are
started, and the median of each pair is reported. Believe a difference only if all pairs agree on its sign.

The allocator of the C library gives freed memory back to the system or keeps it, again by chance; giving it back costs
thousands of page faults in a step. Here it keeps all, unless ``--default-malloc`` is given.
"""

import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import trees

LAYERS = (28, 96, 60, 50, 20, 3)  # five layers: ten tensors with 12,737 elements
SMALL = [list(shape) for a, b in itertools.pairwise(LAYERS) for shape in ((b, a), (b,))]
HOST = "host time, 10 tensors, d = 12,737, r = 20"
BLOCK_SECONDS = 0.1
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}

CASES = {
    "d = 300,000, r = 100": ([[300_000]], {"window": 100}),
    "d = 300,000, r = 20": ([[300_000]], {"window": 20}),
    "d = 1,000,000, r = 100": ([[1_000_000]], {"window": 100}),
    "d = 300,000, r = 100, bfloat16 rows": ([[300_000]], {"window": 100, "window_dtype": "bfloat16"}),
    "10 tensors, d = 12,737, r = 20": (SMALL, {"window": 20}),
    "10 tensors, d = 12,737, r = 20, by parameter": (SMALL, {"window": 20, "scope": "parameter"}),
    "10 tensors, d = 300,000, r = 20, by parameter": ([[30_000]] * 10, {"window": 20, "scope": "parameter"}),
    "d = 300,000, r = 20, gradient history": (
        [[300_000]],
        {"window": 20, "history": "gradient", "betas": [0.9, 0.99]},
    ),
    HOST: (SMALL, {"window": 20}),
}


class Worker:
    """A process that times the steps of one optimizer with one tree."""

    def __init__(self, tree, name, optimizer="GGT", variables=None):
        self.name, self._optimizer = name, optimizer
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = trees.start("speed_worker.py", tree, variables=variables, **pipes)

    def ask(self, **request):
        """The median time of a step, in milliseconds."""
        if "case" in request:
            request["case"] = {**request["case"], "optimizer": self._optimizer}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"the process of {self.name} ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def measure(workers, name, threads, blocks):
    """The figures of one case with these processes: {name of a process: times of its blocks in ms}."""
    shapes, options = CASES[name]
    assert "12,737" not in name or sum(map(math.prod, shapes)) == 12_737
    case = {"shapes": shapes, "options": options, "threads": threads}
    first = [worker.ask(case=case) for worker in workers]
    steps = max(3, min(200, round(1e3 * BLOCK_SECONDS / max(first))))
    times = {worker.name: [] for worker in workers}
    for _ in range(blocks):
        for worker in workers:
            times[worker.name].append(worker.ask(steps=steps))
            time.sleep(0.005)  # threads of the last block stop spinning
    return times


def measure_pair(arguments, names, *, new_first):
    """{case: figures} of a fresh pair of processes, and of a third for Adam where a case needs it."""
    variables = {} if arguments.default_malloc else KEEP_MEMORY
    sides = [("old", arguments.old), ("new", arguments.new)]
    workers = [Worker(tree, side, variables=variables) for side, tree in (sides[::-1] if new_first else sides)]
    found = {}
    for name in names:
        if name == HOST:
            workers.append(Worker(arguments.old, "adam", "Adam", variables))
        threads = arguments.host_threads if name == HOST else arguments.threads
        found[name] = measure(workers, name, threads, arguments.blocks)
        print(f"measured: {name}", file=sys.stderr, flush=True)
    for worker in workers:
        worker.close()
    return found


def summary(name, pairs):
    """One case over all pairs: times, the median ratio with its quartiles, and the median of each pair."""
    ratios = [[new / old for old, new in zip(times["old"], times["new"], strict=True)] for times in pairs]
    low, middle, high = statistics.quantiles([ratio for pair in ratios for ratio in pair], n=4)
    medians = {f"{side}_ms": statistics.median([x for times in pairs for x in times[side]]) for side in pairs[0]}
    figures = {"ratio": middle, "ratio_low": low, "ratio_high": high}
    figures["ratio_of_pairs"] = sorted(statistics.median(pair) for pair in ratios)
    return {"case": name, **medians, **figures, "times_of_blocks_ms": pairs}


def print_row(row):
    pairs = row["ratio_of_pairs"]
    adam = f"   Adam {row['adam_ms']:.3f} ms" if "adam_ms" in row else ""
    print(
        f"{row['case']:46} old {row['old_ms']:8.3f} ms   new {row['new_ms']:8.3f} ms   new/old {row['ratio']:.3f}   "
        f"quartiles {row['ratio_low']:.3f} to {row['ratio_high']:.3f}   pairs {pairs[0]:.3f} to {pairs[-1]:.3f}{adam}",
        flush=True,
    )


def run_environment(arguments):
    """What a reader needs to make the figures again."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "old": {"tree": arguments.old, "commit": trees.commit(arguments.old)},
        "new": {"tree": arguments.new, "commit": trees.commit(arguments.new)},
        "threads": {"all cases but the host time": arguments.threads, "host time": arguments.host_threads},
        "malloc": "default" if arguments.default_malloc else KEEP_MEMORY,
        "load at the end": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def main(arguments):
    names = [name for name in CASES if arguments.only in name]
    if not names:
        sys.exit(f"no case contains {arguments.only!r}; the cases are: {'; '.join(CASES)}")
    if os.getloadavg()[0] > 1:
        print(
            f"warning: others use this machine (load {os.getloadavg()[0]:.1f}); times of two threads mean nothing then"
        )
    pairs = []
    for number in range(arguments.pairs):
        pairs.append(measure_pair(arguments, names, new_first=number % 2 == 1))
        rows = [summary(name, [pair[name] for pair in pairs]) for name in names]
        print(f"\nafter {number + 1} of {arguments.pairs} pairs:")
        for row in rows:
            print_row(row)
        if arguments.out:  # after every pair, so that a run that is stopped leaves its figures
            report = {"environment": run_environment(arguments), "cases": rows}
            Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")
    return 0
