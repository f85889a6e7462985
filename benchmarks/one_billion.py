"""A GPT of a billion parameters on one GPU, with a window of 16 rows of 8 bits: does it train, and what does it cost?

Every member trains the same start on the same batches: real forward and backward passes in bfloat16 autocast, gradients
in float32. For each member the script writes the losses, the time of forward and backward, the time of the optimizer,
and the bytes that were predicted (`GGT.memory`, `ggt plan`) beside the measured ones:

    python benchmarks/one_billion.py --out OUT [--data DIR] [--steps 50] [--seconds 55]
    python benchmarks/one_billion.py --out OUT --tiny --device cpu        # does everything run?

The tokens are PTB characters if DIR has them, else the bytes of all files in DIR, else those of Python's own sources.
OUT/one_billion.json is written after every member. No step begins after --seconds.
"""

import argparse
import gc
import json
import statistics
import sys
import sysconfig
import time
from pathlib import Path

import torch
from torch.nn import functional

from ggt_lab.data import load_ptb_characters
from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.data.published_files import DataError
from ggt_lab.models import CharTransformer
from ggt_lab.planning.calibration import load_calibration
from ggt_lab.planning.step_plan import make_plan
from ggt_lab.runs.environment import environment
from torch_ggt import GGT, Whitening, whiten

ROWS, FORMAT = 16, "int8"
SIZES = {"layers": 26, "width": 1792, "heads": 28, "context": 512}
TINY = {"layers": 1, "width": 64, "heads": 2, "context": 16}
WARM_UP = 10
"""Steps in which the learning rate rises."""


def ggt(parameters, lr):
    return GGT(parameters, lr=lr, window=ROWS, window_dtype=FORMAT)


def whitened(parameters, lr):
    return whiten(adamw(parameters, lr), window=ROWS, window_dtype=FORMAT)


def adamw(parameters, lr):
    parameters = list(parameters)
    return torch.optim.AdamW(parameters, lr=lr, fused=parameters[0].is_cuda)


MEMBERS = {"GGT": ggt, "whiten(AdamW)": whitened, "AdamW": adamw}


def tokens(folder, device):
    """(tokens as int64 on the device, size of the vocabulary, what they are)."""
    if folder is not None:
        try:
            text = load_ptb_characters(folder)
            return torch.from_numpy(text.train).to(device).long(), len(text.vocabulary), "PTB characters"
        except DataError:
            pass
    files = sorted(Path(folder or sysconfig.get_paths()["stdlib"]).glob("*.py" if folder is None else "*"))
    content = b"".join(file.read_bytes() for file in files if file.is_file())
    found = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device).long()
    return found, 256, "bytes of Python's sources" if folder is None else "bytes of the given files"


def model_of(vocabulary, sizes, device):
    torch.manual_seed(0)
    with torch.device(device):  # a billion numbers are drawn where they stay
        return CharTransformer(vocabulary, **sizes)


def predicted(member, parameters):
    """Bytes of the optimizer's state, and of the flat row that is there during a step only."""
    rows = {"window": ROWS, "window_dtype": FORMAT}
    if member == "AdamW":
        return {"state": 8 * parameters, "lent": 0}
    found = (GGT if member == "GGT" else Whitening).memory(parameters, **rows)
    return {"state": found.total + (8 * parameters if member != "GGT" else 0), "lent": found.lent}


def planned(member, parameters):
    """What ``ggt plan`` says."""
    if member == "AdamW":
        return None
    calibration, _ = load_calibration()
    how = {"finish": "adam", "history": "gradient"} if member == "GGT" else {"whiten": "adamw"}
    plan = make_plan(parameters, window=ROWS, dtype=FORMAT, calibration=calibration, **how)
    return {"total_bytes": plan.total_bytes, "step_ms": 1e3 * plan.step_s}


def train(member, options, text, vocabulary, until):
    """One member: losses, milliseconds and bytes."""
    device, sizes = torch.device(options.device), TINY if options.tiny else SIZES
    gpu = device.type == "cuda"
    model = model_of(vocabulary, sizes, device)
    parameters = sum(p.numel() for p in model.parameters())
    result = {"member": member, "parameters": parameters, "steps": 0, "losses": [], "predicted": {}, "measured": {}}
    result["predicted"] = {**predicted(member, parameters), "plan": planned(member, parameters)}
    optimizer = MEMBERS[member](model.parameters(), options.lr)
    generator = torch.Generator().manual_seed(1)
    times = {"forward and backward": [], "optimizer": [], "step": []}
    measured = result["measured"]
    for step in range(options.steps):
        if time.monotonic() > until:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, (step + 1) / WARM_UP)
        starts = torch.randint(0, len(text) - sizes["context"] - 1, (options.batch, 1), generator=generator)
        batch = text[(starts + torch.arange(sizes["context"] + 1)).to(device)]
        began = clock(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        value, middle = loss.item(), clock(device)
        del logits, loss
        if step < 2:  # bytes: in the first step state is allocated, in the second it is there
            before = allocated(device, reset=True)
        optimizer.step()
        ended = clock(device)
        if step < 2:
            measured["state" if step == 0 else "kept by later steps"] = allocated(device) - before
            measured["peak of a step beyond state"] = peak(device) - allocated(device)
        optimizer.zero_grad()
        result["losses"].append(round(value, 4))
        times["forward and backward"].append(1e3 * (middle - began))
        times["optimizer"].append(1e3 * (ended - middle))
        times["step"].append(1e3 * (ended - began))
        result["steps"] = step + 1
    # The first steps compile kernels, and a window that is not full costs as much as a full one.
    result["median_ms"] = {name: statistics.median(values[3:] or values or [0.0]) for name, values in times.items()}
    if gpu:
        measured["peak of training"] = torch.cuda.max_memory_allocated(device)
    result["skipped"] = getattr(optimizer, "skipped", 0) if member == "GGT" else None
    return result


def clock(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def allocated(device, *, reset=False):
    if device.type != "cuda":
        return 0
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak(device):
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def table(results):
    lines = ["| member | steps | first and last loss | forward, backward ms | optimizer ms | state GB, predicted |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for found in results:
        if "error" in found:
            lines.append(f"| {found['member']} | failed: {found['error'][:80]} | | | | |")
        elif found["losses"]:
            ms, state = found["median_ms"], found["measured"]["state"]
            lines.append(
                f"| {found['member']} | {found['steps']} | {found['losses'][0]:.3f}, {found['losses'][-1]:.3f} "
                f"| {ms['forward and backward']:.1f} | {ms['optimizer']:.1f} "
                f"| {state / 1e9:.3f}, {found['predicted']['state'] / 1e9:.3f} |"
            )
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--members", nargs="*", default=list(MEMBERS), choices=list(MEMBERS))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the code")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    text, vocabulary, what = tokens(options.data, options.device)
    results = []
    for number, member in enumerate(options.members):
        # Each member has a share of the time that is left; AdamW, which is there for comparison, a small one.
        now, left = time.monotonic(), [1 if name == "AdamW" else 3 for name in options.members[number:]]
        until = now + (started + options.seconds - now) * left[0] / sum(left)
        try:
            results.append(train(member, options, text, vocabulary, until))
        except Exception as error:  # one member must not lose the others
            results.append({"member": member, "error": f"{type(error).__name__}: {str(error)[:500]}"})
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        content = {
            **{"tokens": what, "batch": options.batch, "lr": options.lr, "rows": ROWS, "format": FORMAT},
            **{"sizes": TINY if options.tiny else SIZES, "seconds": round(time.monotonic() - started, 1)},
            **{"results": results, "environment": environment(), "command": " ".join(sys.argv[1:])},
        }
        options.out.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out / "one_billion.json", json.dumps(content, indent=1) + "\n")
    print(table(results))
    return results


if __name__ == "__main__":
    main()
