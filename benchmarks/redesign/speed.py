"""What does a step cost, in both trees side by side?

Two processes, one for each tree, take turns: old, new, old, new. A block is some steps of one process, and its figure
the median time of its steps. A ratio is the figure of a new block over the figure of the old block just before it, so
that a disturbance of the machine reaches both or spoils one ratio of many.

One pair of processes is not enough. Where their memory lies is settled by chance when they start, and with it the time
of a step: on a CPU the same tree differs from itself by up to 50 % in some cases, in all blocks alike. So several pairs
are started, and the median of each pair is reported. Believe a difference only if all pairs agree on its sign.

The allocator of the C library gives freed memory back to the system or keeps it, again by chance; giving it back costs
thousands of page faults in a step. Here it keeps all, unless ``--default-malloc`` is given.

On a GPU a step is timed in several ways (`speed_worker.Timed`): by events, eager or as a captured CUDA graph, and by
the clock of the host while the device is idle. A case that fails, or for which no time is left, loses no other case.
"""

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import trees
from speed_cases import CPU_CASES, GPU_CASES, HOST

BLOCK_SECONDS = {"cpu": 0.1, "cuda": 0.06}
SLOWER = 1.03
"""No case may be slower than by this factor."""
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class CaseError(Exception):
    """A case could not be measured, and why."""


class Worker:
    """A process that times the steps of one optimizer with one tree."""

    def __init__(self, tree, name, optimizer="GGT", variables=None):
        self.name, self.tree, self.optimizer, self.variables = name, tree, optimizer, variables
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = trees.start("speed_worker.py", tree, variables=variables, **pipes)

    def send(self, **request):
        """Ask for something; `answer` has the answer."""
        if "case" in request:
            request["case"] = {**request["case"], "optimizer": self.optimizer}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CaseError(f"the process of {self.name} has ended") from None

    def answer(self, end):
        """The median time of a step, in milliseconds."""
        readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
        if not readable:
            raise CaseError(f"{self.name}: no answer before the time was up")
        line = self._process.stdout.readline()
        if not line:
            raise CaseError(f"the process of {self.name} ended with exit code {self._process.wait()}")
        found = json.loads(line)
        if "error" in found:
            raise CaseError(f"{self.name}: {found['error']}")
        return found["ms"]

    def again(self):
        """A fresh process in the place of this one, which may be stuck or spoiled."""
        self.stop()
        return Worker(self.tree, self.name, self.optimizer, self.variables)

    def stop(self):
        """End the process; it holds nothing that is needed."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def measure(workers, case, threads, arguments, end):
    """The figures of one case with these processes: {way: {name of a process: times of its blocks in ms}}."""
    about = {"shapes": case.shapes, "options": case.options, "ways": case.ways}
    about |= {"threads": threads, "device": arguments.device}
    if arguments.device == "cuda":  # kernels are built at the first step, for all trees at once
        for worker in workers:
            worker.send(case=about)
        for worker in workers:
            worker.answer(end)
    else:
        for worker in workers:
            worker.send(case=about)
            worker.answer(end)
    seconds = BLOCK_SECONDS[arguments.device]
    return {way: _in_turns(workers, way, arguments.blocks, seconds, end) for way in case.ways}


def _in_turns(workers, way, blocks, block_seconds, end):
    first = [_ask(worker, 5, way, end) for worker in workers]
    steps = max(3, min(200, round(1e3 * block_seconds / max(first))))
    times = {worker.name: [] for worker in workers}
    for _ in range(blocks):
        for worker in workers:
            times[worker.name].append(_ask(worker, steps, way, end))
            time.sleep(0.005)  # threads of the last block stop spinning
    return times


def _ask(worker, steps, way, end):
    worker.send(steps=steps, way=way)
    return worker.answer(end)


def measure_pair(arguments, cases, end, *, new_first):
    """{case: figures, or the text of an error} of a fresh pair of processes, and of a third one for Adam."""
    variables = {} if arguments.default_malloc else KEEP_MEMORY
    sides = [("old", arguments.old), ("new", arguments.new)]
    workers = [Worker(tree, side, variables=variables) for side, tree in (sides[::-1] if new_first else sides)]
    found = {}
    for name, case in cases.items():
        if time.monotonic() >= end:
            found[name] = "not measured: the time was up"
            continue
        asked = [*workers, Worker(arguments.old, "adam", "Adam", variables)] if case.adam else workers
        threads = arguments.host_threads if name == HOST else arguments.threads
        try:
            found[name] = measure(asked, case, threads, arguments, end)
        except CaseError as error:
            found[name] = str(error)
            workers = [worker.again() for worker in workers]  # the others may be in the middle of an answer
        for worker in asked[len(workers) :]:
            worker.stop()
        print(f"{'failed' if isinstance(found[name], str) else 'measured'}: {name}", file=sys.stderr, flush=True)
        yield found
    for worker in workers:
        worker.stop()
    yield found


def summary(name, way, pairs):
    """One case in one way over all pairs: times, the median ratio with its quartiles, and the median of each pair."""
    ratios = [[new / old for old, new in zip(times["old"], times["new"], strict=True)] for times in pairs]
    low, middle, high = statistics.quantiles([ratio for pair in ratios for ratio in pair], n=4)
    medians = {f"{side}_ms": statistics.median([x for times in pairs for x in times[side]]) for side in pairs[0]}
    figures = {"ratio": middle, "ratio_low": low, "ratio_high": high}
    figures["ratio_of_pairs"] = sorted(statistics.median(pair) for pair in ratios)
    return {"case": name, "way": way, **medians, **figures, "times_of_blocks_ms": pairs}


def rows_of(cases, pairs):
    """A row for each case and way that was measured, and one with an error for a case that failed in a pair."""
    rows = []
    for name, case in cases.items():
        measured = [pair[name] for pair in pairs if isinstance(pair.get(name), dict)]
        rows += [summary(name, way, [figures[way] for figures in measured]) for way in case.ways if measured]
        errors = [pair[name] for pair in pairs if isinstance(pair.get(name), str)]
        rows += [{"case": name, "way": "failed", "errors": errors}] if errors else []
    return rows


def print_row(row):
    name = row["case"] if row["way"] == "clock" else f"{row['case']}: {row['way']}"
    if "errors" in row:
        last_lines = [error.strip().splitlines()[-1][:200] for error in row["errors"]]
        print(f"{name:62} {'; '.join(last_lines)}", flush=True)
        return
    pairs = row["ratio_of_pairs"]
    adam = f"   Adam {row['adam_ms']:.3f} ms" if "adam_ms" in row else ""
    slower = "   SLOWER" if row["ratio"] > SLOWER else ""
    print(
        f"{name:62} old {row['old_ms']:8.3f} ms   new {row['new_ms']:8.3f} ms   new/old {row['ratio']:.3f}   "
        f"quartiles {row['ratio_low']:.3f} to {row['ratio_high']:.3f}   "
        f"pairs {pairs[0]:.3f} to {pairs[-1]:.3f}{adam}{slower}",
        flush=True,
    )


def write(arguments, rows):
    """Write the figures; after every case, so that a run that is stopped leaves its figures."""
    environment = trees.about(arguments, "speed")
    environment["threads"] = {"all cases but the host time": arguments.threads, "host time": arguments.host_threads}
    environment["malloc"] = "default" if arguments.default_malloc else KEEP_MEMORY
    Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
    Path(arguments.out).write_text(json.dumps({"environment": environment, "cases": rows}, indent=1) + "\n")


def main(arguments):
    end = time.monotonic() + arguments.seconds
    chosen = GPU_CASES if arguments.device == "cuda" or arguments.gpu_cases else CPU_CASES
    cases = {name: case.small() if arguments.small else case for name, case in chosen.items() if arguments.only in name}
    if not cases:
        sys.exit(f"no case contains {arguments.only!r}; the cases are: {'; '.join(chosen)}")
    if arguments.device == "cpu" and os.getloadavg()[0] > 1:
        print(
            f"warning: others use this machine (load {os.getloadavg()[0]:.1f}); times of two threads mean nothing then"
        )
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device")
    pairs, rows = [], []
    for number in range(arguments.pairs):
        if time.monotonic() >= end:
            print(f"the time was up after {number} of {arguments.pairs} pairs")
            break
        pairs.append({})
        for found in measure_pair(arguments, cases, end, new_first=number % 2 == 1):
            pairs[-1] = found
            rows = rows_of(cases, pairs)
            if arguments.out:
                write(arguments, rows)
        print(f"\nafter {number + 1} of {arguments.pairs} pairs:")
        for row in rows:
            print_row(row)
    return 0
