"""How good are rows of few bytes? Training with each format of the window, not reconstruction.

Every run of a problem has the same start, the same batches and the same learning rate, which falls by a cosine to zero.
Only the window differs. The script writes one JSON line for each run, skips runs that the file has, and prints tables:

    python benchmarks/row_formats.py --out out/row_formats.jsonl [--problems pinn-poisson,digits] [--seeds 0,1,2]
    python benchmarks/row_formats.py --out out/row_formats.jsonl --table

Prototypes that only this script has are other ways to round (`PROTOTYPES`), and "sparse": it keeps the largest entries
of each 65,536 columns and adds what it left out to the next row (error feedback, in 8 bits).
"""

import argparse
import contextlib
import json
import math
import statistics
import time
from pathlib import Path

import torch

from ggt_lab import problems  # noqa: F401 - registers them
from ggt_lab.models.transformer import CharTransformer
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems.registry import problem_class, register
from ggt_lab.problems.small_networks import StdlibChars
from torch_ggt.formats import BLOCK, FORMATS, BlockFormat
from torch_ggt.rules import RULES, Momentum, Newest

OPTIMIZERS = {
    "whiten(AdamW)": "whiten(AdamW, {})",
    "whiten(Muon)": "whiten(MuonAndAdamW, {})",
    "GGT": "PaperGGT({})",
}
STEPS = {"pinn-poisson": 700, "digits": 300, "stdlib-chars": 300, "stdlib-gpt": 300}
LR = {"pinn-poisson": 1e-2, "digits": 1e-2, "stdlib-chars": 1e-2, "stdlib-gpt": 2e-3}
WINDOWS = {  # name: (window_dtype, rows, share of entries that are kept, or None)
    "float32, 20 rows": ("float32", 20, None),
    "int8, 20 rows": ("int8", 20, None),
    "int4, 20 rows": ("int4", 20, None),
    "float32, 14 rows": ("float32", 14, None),
    "int4, 14 rows": ("int4", 14, None),
    "float32, 7 rows": ("float32", 7, None),
    "int8, 7 rows": ("int8", 7, None),
    "sparse 10 %, 20 rows": ("float32", 20, 0.10),
    "sparse 3 %, 20 rows": ("float32", 20, 0.03),
    "without a window": (None, 0, None),
    "bfloat16, 20 rows": ("bfloat16", 20, None),
    "int8 equal steps, 20 rows": ("int8 equal steps", 20, None),
    "int8 dithered, 20 rows": ("int8 dithered", 20, None),
    "float8 e4m3, 20 rows": ("float8 e4m3", 20, None),
    "int4 squares, 20 rows": ("int4 squares", 20, None),
    "int4 equal steps, 20 rows": ("int4 equal steps", 20, None),
}
ROUNDINGS = list(WINDOWS)[10:]  # how to round: only asked where it is quick
WINDOWS |= {
    "int4, 13 rows": ("int4", 13, None),
    "int4 dithered, 14 rows": ("int4 dithered", 14, None),
    "int4 in blocks of 32, 12 rows": ("int4 in blocks of 32", 12, None),
    "int4 in blocks of 128, 15 rows": ("int4 in blocks of 128", 15, None),
    "int3 squares, 18 rows": ("int3 squares", 18, None),
    "int3 cubes, 18 rows": ("int3 cubes", 18, None),
    "int8, 7 rows, decay 0.9": ("int8", 7, None),
    "int4, 14 rows, decay 0.95": ("int4", 14, None),
}


@register("stdlib-gpt")
class StdlibGPT(StdlibChars):
    """A small GPT on the text of stdlib-chars."""

    def __init__(self, seed, device):
        super().__init__(seed, device)
        vocabulary = self.model.out.out_features
        torch.manual_seed(seed)
        self.model = CharTransformer(vocabulary, context=self.length, layers=2, width=64, heads=4).to(device)


class Rounded(BlockFormat):
    """Rounds blocks, divided by their largest number, with ``function``; keeps the rounded numbers in float32."""

    def __init__(self, name, function):
        super().__init__(name, 127, 2, packed=False)
        self.dtype, self.function = torch.float32, function
        self.block = int(name.rpartition("blocks of ")[2]) if "blocks of" in name else BLOCK

    def encode(self, row):
        blocks = torch.nn.functional.pad(row.float(), (0, -len(row) % self.block)).view(-1, self.block)
        top = blocks.abs().amax(-1, keepdim=True)
        numbers = self.function(blocks / torch.where(top > 0, top, torch.inf)) * top
        return numbers.flatten()[: len(row)], torch.ones(len(row) // BLOCK)

    def decode(self, codes, scales, out=None):
        return codes if out is None else out.copy_(codes)


def dithered(x, largest=127, power=2):
    """Up or down at random, so that the mean is x; the bits of the number itself are the dice."""
    bits = x.contiguous().view(torch.int32).long()
    for _ in range(2):
        bits = ((bits ^ (bits >> 15)) * 0x2C1B3C6D + 0x3C6EF372) & 0xFFFFFFFF
    root = (x.abs().double() ** (1 / power) * largest).floor().clamp(max=largest - 1)
    low, high = (root / largest) ** power, ((root + 1) / largest) ** power
    up = (x.abs() - low) / (high - low) > bits.double() / 2**32
    return (torch.where(up, high, low).copysign(x)).float()


def powers(x, largest, power):
    """To the nearest root."""
    return ((x.abs() ** (1 / power) * largest).round() / largest).pow(power).copysign(x)


PROTOTYPES = {
    "int8 dithered": dithered,
    "int4 dithered": lambda x: dithered(x, 7, 3),
    "int4 in blocks of 32": lambda x: powers(x, 7, 3),
    "int4 in blocks of 128": lambda x: powers(x, 7, 3),
    "int3 squares": lambda x: powers(x, 3, 2),
    "int3 cubes": lambda x: powers(x, 3, 3),
    "int8 equal steps": lambda x: (127 * x).round() / 127,
    "float8 e4m3": lambda x: (448 * x).to(torch.float8_e4m3fn).float() / 448,
    "int4 squares": lambda x: ((x.abs().sqrt() * 7).round() / 7).square().copysign(x),
    "int4 equal steps": lambda x: (7 * x).round() / 7,
}


def sparse(rule, share):
    """A rule whose rows keep ``share`` of their entries, in 8 bits, and remember the rest in 8 bits."""

    class Sparse(rule):
        def gather(self, block):
            super().gather(block)
            keep, remember = FORMATS["int8"], FORMATS["int8"]
            rest = getattr(block.window, "rest", None)
            total = block.row if rest is None else block.row + remember.decode(*rest)
            kept = torch.zeros_like(total)
            for left in range(0, len(total), 2**16):
                part = total[left : left + 2**16]
                where = part.abs().topk(max(1, round(share * len(part)))).indices
                kept[left : left + 2**16][where] = part[where]
            kept = keep.decode(*keep.encode(kept))
            block.window.rest = remember.encode(total - kept)
            if block.carry is not None:  # the momentum itself stays whole
                block.carry = block.carry[0], block.row.clone()
            block.row.copy_(kept)

    return Sparse()


@contextlib.contextmanager
def registered(share):
    """Put the prototypes into the tables of the library for a while."""
    formats, rules = dict(FORMATS), dict(RULES)
    FORMATS.update({name: Rounded(name, function) for name, function in PROTOTYPES.items()})
    if share is not None:
        RULES["newest"], RULES["momentum"] = sparse(Newest, share), sparse(Momentum, share)
    try:
        yield
    finally:
        for table, before in ((FORMATS, formats), (RULES, rules)):
            table.clear()
            table.update(before)


def bytes_of(name):
    """Bytes per parameter of the window: rows, and for sparse rows 3 bytes for each entry and 1 byte for the rest."""
    stored, rows, share = WINDOWS[name]
    if stored is None:
        return 0.0
    if share is not None:
        return 3 * share * rows + 1
    if stored in FORMATS:
        return rows * FORMATS[stored].element_bytes
    bits = 4 if "int4" in stored else 3 if "int3" in stored else 8
    block = int(stored.rpartition("blocks of ")[2]) if "blocks of" in stored else BLOCK
    return rows * (bits / 8 + 4 / block)


def run(problem_name, optimizer_name, window_name, seed, factor=1.0):
    stored, rows, share = WINDOWS[window_name]
    decay = float(window_name.rpartition("decay ")[2]) if "decay" in window_name else 1.0
    problem = problem_class(problem_name)(seed, torch.device("cpu"))
    steps, lr = STEPS[problem_name], factor * LR[problem_name]
    with registered(share):
        if stored is None:
            spec = {"whiten(AdamW)": "AdamW", "whiten(Muon)": "MuonAndAdamW"}[optimizer_name]
        else:
            options = f"window={rows}, window_dtype={stored!r}" + (f", decay={decay}" if decay < 1 else "")
            spec = OPTIMIZERS[optimizer_name].format(options)
        optimizer = optimizer_factory(spec)(list(problem.parameters()), lr)
        started = time.perf_counter()
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            problem.loss().backward()
            optimizer.step()
    with torch.no_grad():
        found = problem.evaluate()
    return {
        "problem": problem_name, "optimizer": optimizer_name, "window": window_name, "seed": seed, "steps": steps,
        "lr": lr, "bytes": bytes_of(window_name), "seconds": round(time.perf_counter() - started, 2), **found,
    }  # fmt: skip


def table(records):
    """Mean final loss by window and optimizer, and its ratios to float32 rows, r = 20 and the same r, as Markdown.

    Seeds from 10 on are for tuning and are left out.
    """
    records = [record for record in records if record["seed"] < 10]
    lines = []
    for problem, steps in STEPS.items():
        of_problem = [record for record in records if record["problem"] == problem]
        if not of_problem:
            continue
        optimizers = [name for name in OPTIMIZERS if any(record["optimizer"] == name for record in of_problem)]
        rates = {record["optimizer"]: record["lr"] for record in of_problem}
        lines += ["", f"### {problem}, {steps} steps", ""]
        names = [f"{name}, lr {rates[name]:g}" for name in optimizers]
        head = [cell for name in names for cell in (name, "±, seeds", "ratio to r = 20", "ratio to the same r")]
        lines += ["| window | bytes per parameter | " + " | ".join(head) + " |", "|---" * (len(head) + 2) + "|"]
        for window in [w for w in WINDOWS if any(record["window"] == w for record in of_problem)]:
            cells = [window, f"{bytes_of(window):.1f}"]
            for optimizer in optimizers:
                losses, base, alike = (
                    {r["seed"]: r["loss"] for r in of_problem if (r["optimizer"], r["window"]) == (optimizer, name)}
                    for name in (window, "float32, 20 rows", f"float32, {WINDOWS[window][1]} rows")
                )
                if not losses:
                    cells += ["–"] * 4
                    continue
                mean, spread = statistics.fmean(losses.values()), statistics.pstdev(losses.values())
                cells += [f"{mean:.4g}", f"{spread:.1g}, {len(losses)}"]
                for other in (base, alike):
                    common = losses.keys() & other.keys()
                    top, bottom = (sum(found[seed] for seed in common) for found in (losses, other))
                    cells.append(f"{top / bottom:.3f}" if common else "–")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/row_formats.jsonl"))
    parser.add_argument("--problems", default=",".join(STEPS))
    parser.add_argument("--optimizers", default=";".join(OPTIMIZERS))
    parser.add_argument("--windows", default=";".join(WINDOWS))
    parser.add_argument("--seeds", default="0,1,2", help="10 and 11 are for tuning, and not in the tables")
    parser.add_argument("--factors", default="1", help="of the learning rate of each problem")
    parser.add_argument("--table", action="store_true", help="print the tables and run nothing")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(r["problem"], r["optimizer"], r["window"], r["seed"], r["lr"] / LR[r["problem"]]) for r in records}
    cases = [
        (problem, optimizer, window, seed, factor)
        for seed in map(int, options.seeds.split(","))
        for factor in map(float, options.factors.split(","))
        for problem in options.problems.split(",")
        for optimizer in options.optimizers.split(";")
        for window in options.windows.split(";")
        if window not in ROUNDINGS or (problem in ("digits", "stdlib-gpt") and optimizer == "whiten(AdamW)")
        if (optimizer, window) != ("GGT", "without a window")  # it would be AdamW again
    ]
    for case in cases if not options.table else ():
        if case not in done:
            records.append(run(*case))
            with options.out.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
