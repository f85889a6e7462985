"""What the checks cost: in a step, and in loading. All times are processor time of one thread, measured in turns."""

import contextlib
import statistics
import time

import torch
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import step

SIZES = {"1,600 parameters": [(20, 20)] * 4, "40,000": [(100, 100)] * 4, "1,000,000": [(500, 500)] * 4}
SLICE = {"1,600 parameters": 100, "40,000": 40, "1,000,000": 2}  # steps between two looks at the clock


def seconds(work):
    start = time.thread_time()
    work()
    return time.thread_time() - start


def made(shapes, steps):
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer = GGT(parameters, window=20)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for _ in range(steps):
        optimizer.step()
    return optimizer


@contextlib.contextmanager
def without_checks(optimizer, judged=step.judged):
    """The optimizer looks at no option, no learning rate, and no verdict on its gradients."""
    optimizer._live.follow = lambda groups: None
    optimizer._refused = lambda blocks, taken, finishing=False: False
    step.judged = lambda blocks, taken: taken
    try:
        yield
    finally:
        del optimizer._live.follow, optimizer._refused
        step.judged = judged


def of_a_step(repetitions):
    """Median time of a step with the checks, divided by the time of a step without, for models of several sizes."""
    found = {}
    for size, shapes in SIZES.items():
        optimizer = made(shapes, 25)

        def steps(optimizer=optimizer, number=SLICE[size]):
            for _ in range(number):
                optimizer.step()

        ratios, times = [], []
        for turn in range(repetitions):
            pair = {}
            for checks in (True, False) if turn % 2 else (False, True):
                with contextlib.nullcontext() if checks else without_checks(optimizer):
                    pair[checks] = seconds(steps)
            ratios.append(pair[True] / pair[False])
            times.append(pair[True] / SLICE[size])
        found[size] = {"with / without": round(statistics.median(ratios), 4), "µs": statistics.median(times) * 1e6}
    return found


def of_loading(repetitions):
    """Loading 20 rows of 2,000,000 numbers, in units of a copy into memory in use, and of a clone."""
    optimizer = made([(1000, 1000)] * 2, 22)
    saved = optimizer.state_dict()
    tensors = [value for entry in saved["state"].values() for value in entry.values()]
    room = [tensor.clone() for tensor in tensors]
    works = {
        "warm copy": lambda: [one.copy_(other) for one, other in zip(room, tensors, strict=True)],
        "clone": lambda: [tensor.clone() for tensor in tensors],
        "check": lambda: optimizer.check_state_dict(saved),
        "load": lambda: optimizer.load_state_dict(saved),
        "save": optimizer.state_dict,
    }
    times = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            times[name].append(seconds(work))
    median = {name: statistics.median(found) for name, found in times.items()}
    return {
        "milliseconds": {name: round(1e3 * value, 1) for name, value in median.items()},
        "load / warm copy": round(median["load"] / median["warm copy"], 2),
        "load / clone": round(median["load"] / median["clone"], 2),
    }
