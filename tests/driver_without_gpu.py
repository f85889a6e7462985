"""A driver for Triton that starts nothing: kernels are compiled for a GPU, and what would be started is kept.

Run by `test_gpu_kernels`, in a process of its own: the driver cannot be put back.
"""

import collections
import functools
import re

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import Whitening, backends
from torch_ggt.backends.triton import TritonBackend, coded, noise, passes, ring, root, tensors
from torch_ggt.backends.triton.launch import start

started = []


class Utils:
    def load_binary(self, *_):
        return 0, 0, 32, 0, 1024  # module, function, registers, spills, threads

    def get_device_properties(self, _):
        return {"max_shared_mem": 232448, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32}


class Launcher:
    def __init__(self, *_):
        pass

    def __call__(self, *arguments):
        grid, stream_and_kernel, given = arguments[:3], arguments[3:6], arguments[9:]
        pointers = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in given]
        started.append((*grid, *stream_and_kernel, *map(str, pointers)))


class Driver:
    utils, launcher_cls = Utils(), Launcher

    def get_current_device(self):
        return 0

    def get_current_stream(self, _):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def launch_both_ways(kernel, programs, *arguments, **options):
    """By Triton itself and, twice, by `start`."""
    kernel[programs](*arguments, enable_fp_fusion=True, **options)
    for _ in range(2):
        start(kernel, programs, arguments, options, 0)
    if kernel is ring._admit:
        check_that_state_is_read_before_it_is_written(kernel.warmup(*arguments, grid=(1,), **options).asm["ptx"])
    by_triton, *ours = started
    assert len(ours) == 2
    assert by_triton == ours[0] == ours[1], kernel
    started.clear()
    counted[kernel.fn.__name__] += 1


def check_that_state_is_read_before_it_is_written(ptx):
    """Every warp reads the ring's position and count, one thread writes them: a barrier must be in between."""
    accesses = re.findall(r"\b(ld\.global|st\.global|bar\.sync)", ptx)
    assert accesses[-3:] == ["bar.sync", "st.global", "st.global"], accesses
    assert accesses.count("bar.sync") == 1


driver.set_active(Driver())
counted = collections.Counter()
for module in (coded, noise, passes, tensors, ring, root):
    module.launch = launch_both_ways
backends.choose = lambda _: TritonBackend()
for scope in ("model", "parameter"):
    for dtype, shrinkage in ((torch.float32, 0.0), (torch.bfloat16, "auto")):
        made = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((16, 16), (7,), (3, 5))]
        optimizer = GGT(made, window=20, scope=scope, window_dtype=dtype, solver="cholesky", shrinkage=shrinkage)
        optimizer._refused = lambda *_: False  # nothing was computed
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        for _ in range(2):
            optimizer.step()
plain_ones = dict(counted)
counted.clear()
for dtype in (torch.float32, torch.bfloat16):
    made = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((16, 16), (7,), (3, 5))]
    whitening = Whitening(made, window=20, window_dtype=torch.bfloat16, solver="cholesky")
    whitening._refused = lambda *_: False
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    whitening()
of_gradients = dict(counted)
counted.clear()
for dtype in ("int8", "int4"):
    for make in (
        GGT,
        functools.partial(GGT, scope="parameter", weight_decay=0.1),
        functools.partial(GGT, finish="adam"),
        Whitening,
    ):
        made = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((16, 16), (7,), (3, 5))]
        optimizer = make(made, window=20, window_dtype=dtype, solver="cholesky")
        optimizer._refused = lambda *_: False
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        optimizer() if make is Whitening else optimizer.step()
print(of_gradients)
print(dict(counted))
print(plain_ones)
