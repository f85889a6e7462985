"""Trace one steady step of GGT and write down which functions of the library were entered; `calls` runs this."""

import ast
import inspect
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from paper_ggt import paper_ggt
from torch import nn
from trees import TREE, check_imported

import torch_ggt


def use_kernels():
    """Make the library take the path of a GPU with tensors on a CPU, where Triton interprets the kernels.

    TRITON_INTERPRET=1 is in the environment already. The quadrature of the solver gets fewer nodes: they are a loop
    inside a kernel, which the interpreter runs slowly.
    """
    if (Path(os.environ[TREE]) / "torch_ggt" / "kernels").exists():  # the layout before the redesign
        from torch_ggt.kernels import gpu  # noqa: PLC0415

        from torch_ggt import block, optimizer, products, window  # noqa: PLC0415

        for module in (block, products, window):
            module.gpu_kernels = lambda _: gpu
        optimizer._DEFAULT_TOLERANCE = 1e-2
        return
    from torch_ggt import backends, step  # noqa: PLC0415
    from torch_ggt.backends.triton import TritonBackend  # noqa: PLC0415

    backends.choose = lambda _: TritonBackend()
    step._DEFAULT_TOLERANCE = 1e-2


PACKAGE = str(Path(os.environ[TREE]) / "torch_ggt") + os.sep
TRITON = f"site-packages{os.sep}triton{os.sep}"
WARM_UP = 32  # steps before the one that is traced: more than the default window
KERNEL_OPTIONS = {"solver": "cholesky", "jitter": 0.1}  # solver="auto" is eigh on a CPU and cholesky on a GPU


class Trace:
    """The functions of the library that are entered, in order, with the depth of each among them.

    A frame counts if its code is in a file of the library and no frame of Triton lies outside of it. The second half
    of the rule leaves out the bodies of kernels, which Triton's interpreter calls. A generator counts at its first
    entry; how often generators were resumed is counted apart.
    """

    def __init__(self):
        self.entered = []
        self.resumed = 0
        self._generators = set()

    def __call__(self, frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        depth = depth_in_library(frame)
        if depth is None:
            return
        if frame in self._generators:
            self.resumed += 1
            return
        if code.co_flags & inspect.CO_GENERATOR:
            self._generators.add(frame)
        self.entered.append((depth, code))


def depth_in_library(frame):
    """How many frames of the library lie outside of this one; None if one of Triton's does."""
    depth, outer = 0, frame.f_back
    while outer is not None:
        name = outer.f_code.co_filename
        if TRITON in name and not name.startswith(PACKAGE):
            return None
        depth += name.startswith(PACKAGE)
        outer = outer.f_back
    return depth


def length(code):
    """Lines from def to the end, docstring included; of a lambda or comprehension, the lines that it spans."""
    tree = ast.parse(Path(code.co_filename).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node.end_lineno - node.lineno + 1
    lines = [end or start for start, end, _, _ in code.co_positions() if start]
    return max(lines) - code.co_firstlineno + 1


def make(mode):
    """Two linear layers and their optimizer, as the mode wants them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    if mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
        return model, paper_ggt(model.parameters(), process_group=dist.group.WORLD)
    if mode == "triton":
        use_kernels()
        return model, paper_ggt(model.parameters(), **KERNEL_OPTIONS)
    return model, paper_ggt(model.parameters())


def traced_step(model, optimizer):
    """The trace of one step, after those that warm up."""
    trace = Trace()
    for step in range(WARM_UP + 1):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - torch.randn(8, 2)).square().mean().backward()  # rows that are far from collinear
        if step == WARM_UP:
            sys.setprofile(trace)
        optimizer.step()
        sys.setprofile(None)
    return trace


def name_of(code):
    return f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}"


def main(mode, out, rank):
    check_imported(torch_ggt)
    torch.set_num_threads(1)
    if mode == "ddp":
        dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=int(rank), world_size=2)
    trace = traced_step(*make(mode))
    codes = dict.fromkeys(code for _, code in trace.entered)
    found = {
        "calls": len(trace.entered),
        "resumed": trace.resumed,
        "functions": [(name_of(code), code.co_firstlineno, length(code)) for code in codes],
        "files": sorted({code.co_filename.removeprefix(PACKAGE) for code in codes}),
        "trace": [(depth, name_of(code)) for depth, code in trace.entered],
    }
    if rank == "0":
        Path(out).write_text(json.dumps(found))
    if mode == "ddp":
        dist.barrier()
        os._exit(0)  # how processes of a group end is the matter of `leaving`


if __name__ == "__main__":
    main(*sys.argv[1:])
