"""The race that `ring.admit` had, with and without its barrier: ``python tests/trust/admit_race.py --out FOLDER``.

All warps of `ring._admit` read the position of the ring, and one thread writes the next position. A barrier between
them was missing once, and six runs beside other processes became NaN. This driver has the kernel in four versions, made
from the file of the library by changing its text:

==================  ==================================================================================================
barrier             as it is
no barrier          without the line of the barrier, and nothing else
late, barrier       the upper half of the warps waits for 20 µs before it reads
late, no barrier    both: what a late warp does, without waiting for luck
==================  ==================================================================================================

and in three ways of running: "eager" and "graph" are steps of an optimizer, each checked on the device; "admissions"
starts the kernel alone for many matrices, and compares everything it wrote with what torch would have written.
The late versions run first, for a short time. Then all processes run at once beside others that multiply matrices:
processes of their own (they share a processor only with ``--mps``), and streams of the same process.

FOLDER/admit_race.json is written as soon as there are numbers. ``--table FOLDER/admit_race.json`` makes a table of it.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
BARRIER = "        tl.debug_barrier()\n"
FIRST = "    matrix = tl.program_id(0)\n"
#: Threads from 64 on wait; the result is zero, which the compiler cannot know. So all loads come after it.
WAIT = '''    matrix = tl.program_id(0) + tl.inline_asm_elementwise(
        """{ .reg .pred p, q; .reg .u32 t; .reg .u64 s, e, d;
        mov.u32 t, %tid.x; mov.u64 d, 0; setp.lt.u32 q, t, 64; mov.u64 s, %clock64; @q bra DONE;
        AGAIN: mov.u64 e, %clock64; sub.u64 d, e, s; setp.lt.u64 p, d, 40000; @p bra AGAIN;
        DONE: shr.u64 d, d, 40; cvt.u32.u64 $0, d; }""",
        "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1,
    )
'''
KINDS = ("barrier", "no barrier", "late, barrier", "late, no barrier")
MODES = ("eager", "graph", "admissions")
MATRICES = 132  # one program for each processor
BETAS = (0.9, 0.999)
FAR = 100.0  # lr is 1e-3, and gradients are random: in a million steps parameters go as far as about 1


# ---- the four versions -----------------------------------------------------------------------------------------------


def ring_of(kind, folder):
    """The module `torch_ggt.backends.triton.ring` in one of its versions."""
    from torch_ggt.backends.triton import ring

    text = Path(ring.__file__).read_text()
    assert text.count(BARRIER) == 1
    assert text.count(FIRST) == 1
    if "no barrier" in kind:
        text = text.replace(BARRIER, "")
    if "late" in kind:
        text = text.replace(FIRST, WAIT)
    path = Path(folder) / f"ring_{KINDS.index(kind)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- one process -----------------------------------------------------------------------------------------------------


class OwnLoad:
    """Matrix products on a stream of this process, so that the kernel has neighbours without MPS, too."""

    def __init__(self, torch, wanted, device):
        self.torch, self.wanted = torch, wanted and device == "cuda"
        if self.wanted:
            self.stream, self.matrix = torch.cuda.Stream(), torch.randn(2048, 2048, device=device)

    def more(self, number):
        if self.wanted and self.stream.query():
            with self.torch.cuda.stream(self.stream):
                for _ in range(number):
                    self.matrix @ self.matrix


def captured(torch, work, device):
    """A function that does ``work`` again and again: a CUDA graph of it, on a GPU."""
    for _ in range(3):
        work()
    if device == "cpu":
        return work
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            work()
    return graph.replay


def admissions(torch, ring, device, size, load, report):
    """Admit rows into many matrices, and compare all that the kernel wrote with what torch writes."""
    wide = {"dtype": torch.float64, "device": device}
    matrices = MATRICES if device == "cuda" else 2
    gram, decay, momentum = (torch.zeros(matrices, *shape, **wide) for shape in ((size, size), (size,), (size,)))
    position, count = (torch.zeros(matrices, dtype=torch.int64, device=device) for _ in range(2))
    right = [tensor.clone() for tensor in (gram, decay, momentum)]
    accept = torch.ones((), dtype=torch.bool, device=device)
    turn = torch.zeros(1, dtype=torch.int64, device=device)
    found = torch.zeros(5, dtype=torch.int64, device=device)
    made = torch.zeros((), dtype=torch.int64, device=device)

    def admit():
        sums = torch.rand(matrices, size + 1, **wide)
        newest, slots = ring.admit(sums, accept, (gram, decay, momentum, position, count), BETAS)
        slot = turn % size
        entries = sums[:, :-1].index_copy(1, slot, sums[:, -1:])
        right[0].index_copy_(1, slot, entries[:, None, :]).index_copy_(2, slot, entries[:, :, None])
        right[1].mul_(BETAS[1]).index_fill_(1, slot, 1.0)
        right[2].mul_(BETAS[0]).index_fill_(1, slot, 1.0)
        turn.add_(1)
        wrong = torch.stack([
            (position != turn % size) | (count != turn.clamp(max=size)),
            (decay != right[1]).any(1) | (momentum != right[2]).any(1),
            (gram != right[0]).flatten(1).any(1),
            (slots != slot) | (newest.argmax(1) != slot) | (newest.sum(1) != 1),
        ])  # fmt: skip
        found[:4].add_(wrong.sum(1))
        found[4].add_(wrong.any(0).sum())
        made.add_(matrices)
        gram.copy_(right[0]), decay.copy_(right[1]), momentum.copy_(right[2])
        position.copy_((turn % size).expand(matrices)), count.copy_(turn.clamp(max=size).expand(matrices))

    again = captured(torch, admit, device)
    names = ("position or count", "weights", "Gram matrix", "newest", "any")
    while not report(lambda: {"admissions": int(made), "wrong": dict(zip(names, found.tolist(), strict=True))}):
        for _ in range(10 if device == "cuda" else 1):
            load.more(4)
            again()


def check_of(torch, window, size, found, device):
    """A function that checks what the last step wrote into the window, and counts in ``found``."""
    before, counted = window.position.clone(), window.count.clone()

    def check():
        newest = before.view(1)
        row = window.rows.index_select(0, newest)[0].double()
        products = window.rows.double() @ row
        bound = 1e-9 * row.square().sum()
        wrong = torch.stack([
            ((window.position != (before + 1) % size) | (window.count != (counted + 1).clamp(max=size))).any(),
            (window.decay.index_select(0, newest) != 1).any() | ((window.decay == 1).sum() != 1),
            ((window.gram.index_select(0, newest)[0] - products).abs() > bound).any()
            | ((window.gram.index_select(1, newest)[:, 0] - products).abs() > bound).any(),
        ])  # fmt: skip
        found[:3].add_(wrong)
        found[3].add_(wrong.any())
        before.copy_(window.position)
        counted.copy_(window.count)

    if device == "cpu":
        return check
    before_warm_up = found.clone()
    for _ in range(3):  # cuBLAS may not begin its work during a capture
        check()
    found.copy_(before_warm_up)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()  # one launch for all of it
    with torch.cuda.graph(graph):
        check()
    graph.kept = window, before, counted  # the graph reads them
    return graph.replay


def steps(torch, ring, device, size, load, report, *, graph):
    """Steps of the paper's GGT; after each, the newest row of the Gram matrix is computed again from the rows."""
    from ggt_lab.optimizers.paper_ggt import PaperGGT
    from torch_ggt import backends
    from torch_ggt.backends import triton as triton_backend

    triton_backend.ring = ring
    backends.choose = lambda _: triton_backend.TritonBackend()
    shapes = ((300,), (2000,)) if device == "cuda" else ((5,), (3, 2))
    found = torch.zeros(4, dtype=torch.int64, device=device)
    total, broken = 0, []
    names = ("position or count", "weights", "Gram matrix", "any")

    def state():
        return {
            "admissions": total,
            "wrong": dict(zip(names, found.tolist(), strict=True)),
            "broken after steps": broken,
        }

    def step(parameters, optimizer):
        for p in parameters:
            p.grad.normal_()
        optimizer.step()

    while not report(state):  # a run that is broken begins anew: parameters are NaN or far away
        parameters = [torch.nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
        for p in parameters:
            p.grad = torch.zeros_like(p)
        optimizer = PaperGGT(
            parameters, lr=1e-3, betas=BETAS, window=size, window_dtype="bfloat16", cuda_graph=graph,
            solver="cholesky", jitter=1e-6 if device == "cuda" else 0.1,
        )  # fmt: skip
        for _ in range(6):  # now there is a graph, if one is wanted
            step(parameters, optimizer)
        check = check_of(torch, optimizer.attached_blocks()[0].window, size, found, device)
        own, over = 6, False
        while not over and all(float(p.abs().amax()) < FAR for p in parameters):  # not so for NaN, too
            for _ in range(100 if device == "cuda" else 2):
                load.more(4)
                step(parameters, optimizer)
                check()
            own += 100 if device == "cuda" else 2
            total += 100 if device == "cuda" else 2
            over = report(state)
        if not over:
            broken.append(own)


def multiply(torch, device, report):
    """What the other processes do: products of float32 matrices, whose warps have something to start in every cycle."""
    matrix = torch.randn(4096 if device == "cuda" else 16, 4096 if device == "cuda" else 16, device=device)
    numbers = {"products": 0}
    while not report(lambda: numbers):
        for _ in range(20):
            matrix @ matrix
        if device == "cuda":
            torch.cuda.synchronize()
        numbers["products"] += 20


def child(plan, path, device):
    """One process: what it does stands in ``plan``; its numbers are in the file at ``path``, again and again."""
    warnings.simplefilter("ignore")
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(plan["seed"])
    end, next_look = time.monotonic() + plan["seconds"], [0.0]
    began = time.monotonic()

    def report(numbers):
        """Write the numbers now and then; whether the time is over."""
        now = time.monotonic()
        if now >= next_look[0] or now >= end:
            found = plan | numbers() | {"seconds": round(now - began, 1)}
            Path(path).write_text(json.dumps(found))
            next_look[0] = now + 5
        return now >= end

    if plan["mode"] == "load":
        multiply(torch, device, report)
        return
    if device == "cpu":
        from torch_ggt import step as step_module

        step_module._DEFAULT_TOLERANCE = 1e-2  # few nodes: the interpreter is slow
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        ring = ring_of(plan["kind"], folder)
        load = OwnLoad(torch, plan["own load"], device)
        if plan["mode"] == "admissions":
            admissions(torch, ring, device, plan["size"], load, report)
        else:
            steps(torch, ring, device, plan["size"], load, report, graph=plan["mode"] == "graph")


# ---- all processes ---------------------------------------------------------------------------------------------------


def run(plans, seconds, folder, device):
    """Start one process for each plan, all at once; what they found."""
    processes = []
    for number, one in enumerate(plans):
        path = Path(folder) / f"found-{time.monotonic_ns()}-{number}.json"
        plan = one | {"seconds": seconds, "seed": number}
        command = [sys.executable, __file__, "--child", json.dumps(plan), str(path), "--device", device]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
        if device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        error = path.with_suffix(".txt").open("w")
        processes.append((plan, path, subprocess.Popen(command, env=environment, stderr=error, stdout=error)))
    end = time.monotonic() + seconds + (60 if device == "cuda" else 240)  # the imports, and compiling the kernels
    found = []
    for plan, path, process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        numbers = json.loads(path.read_text()) if path.exists() else dict(plan)
        if process.returncode:
            numbers |= {"exit code": process.returncode, "error": path.with_suffix(".txt").read_text()[-600:]}
        found.append(numbers)
    return found


def plans_of(number, kinds, size, modes=MODES):
    """``number`` processes: kinds in turns, each in every way of running; those of other sizes come last."""
    found = []
    for own_load in (True, False):
        for mode in modes:
            for kind in kinds:
                found.append({"kind": kind, "mode": mode, "size": size, "own load": own_load})
    return [found[i % len(found)] for i in range(number)]


@contextlib.contextmanager
def service(wanted):
    """NVIDIA's MPS, so that kernels of several processes run on one processor at the same time."""
    if not wanted or shutil.which("nvidia-cuda-mps-control") is None:
        yield False
        return
    folder = tempfile.mkdtemp()
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    started = subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False, capture_output=True, timeout=30)
    try:
        yield started.returncode == 0
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False, capture_output=True, timeout=30)
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


def table(result):
    """What was found, in Markdown: one line for each kind, mode and size."""
    heads = (
        "kernel",
        "run as",
        "rows",
        "products beside it",
        "processes",
        "admissions",
        "wrong",
        "of a million",
        "broken",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    groups = {}
    for one in result.get("late", []) + result.get("stress", []):
        if one["mode"] != "load":
            key = one["kind"], one["mode"], one["size"], one["own load"]
            groups.setdefault(key, []).append(one)
    for (kind, mode, size, own), found in groups.items():
        made = sum(one.get("admissions", 0) for one in found)
        wrong = sum(one.get("wrong", {}).get("any", 0) for one in found)
        broken = [step for one in found for step in one.get("broken after steps", [])]
        first = f"{len(broken)}, the first after {min(broken)} steps" if broken else "0"
        failed = sum("error" in one for one in found)
        cells = (
            kind, mode, size, "yes" if own else "no", f"{len(found)}, {failed} failed" if failed else len(found),
            f"{made:,}", f"{wrong:,}", f"{1e6 * wrong / max(made, 1):.3g}",
            "" if mode == "admissions" else first,
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    errors = [one["error"] for one in result.get("late", []) + result.get("stress", []) if "error" in one]
    return "\n".join([*lines, *(f"error: {error[-300:]}" for error in errors[:3])])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=120, help="of the stress, after a start of about 20")
    parser.add_argument("--late-seconds", type=float, default=15, help="of the late versions; 0: leave them out")
    parser.add_argument("--processes", type=int, default=8, help="half with the barrier, half without")
    parser.add_argument("--loads", type=int, default=2, help="processes that multiply matrices")
    parser.add_argument("--size", type=int, default=200, help="rows of the window")
    parser.add_argument("--mps", action="store_true", help="start NVIDIA's MPS for these processes")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only print the table of a file")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.table:
        print(table(json.loads(chosen.table.read_text())))
        return
    if chosen.child:
        child(json.loads(chosen.child[0]), chosen.child[1], chosen.device)
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    result = {"device": chosen.device, "loads": chosen.loads, "processes": chosen.processes}
    with tempfile.TemporaryDirectory() as folder:

        def keep(**more):
            result.update(more)
            (chosen.out / "admit_race.json").write_text(json.dumps(result, indent=1) + "\n")

        if chosen.late_seconds and chosen.device == "cuda":  # the interpreter has no warps
            late = plans_of(4, ("late, no barrier", "late, barrier"), chosen.size, ("admissions", "graph"))
            late = [plan | {"own load": False} for plan in late]
            late += [
                {"kind": "late, no barrier", "mode": "graph", "size": size, "own load": False} for size in (20, 32)
            ]
            keep(late=run(late, chosen.late_seconds, folder, chosen.device))
            print(table(result), flush=True)
        with service(chosen.mps) as shared:
            keep(mps="started here" if shared else "wanted, and not started" if chosen.mps else "not started here")
            plans = plans_of(chosen.processes, ("no barrier", "barrier"), chosen.size)
            plans += [{"mode": "load"}] * chosen.loads
            keep(stress=run(plans, chosen.seconds, folder, chosen.device))
    print(table(result))


if __name__ == "__main__":
    main()
