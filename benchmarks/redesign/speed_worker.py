"""Time steps of one optimizer on request; `speed` keeps one such process for each tree.

Requests and answers are lines of JSON. ``{"case": ...}`` makes an optimizer and fills its window. ``{"steps": n}``
makes n steps, each after a fresh gradient that is not timed. The answer is always the median time of a step.
"""

import json
import statistics
import sys
import time

import torch
from paper_ggt import paper_ggt
from torch import nn
from trees import check_imported

import torch_ggt

WARM_UP = 32  # steps at least; a window is filled in any case


def make(case):
    """Parameters with gradients, and their optimizer."""
    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.ones(shape)) for shape in case["shapes"]]
    for p in parameters:
        p.grad = torch.randn_like(p)
    if case["optimizer"] == "Adam":
        return parameters, torch.optim.Adam(parameters, foreach=True)
    options = dict(case["options"])
    if "window_dtype" in options:
        options["window_dtype"] = getattr(torch, options["window_dtype"])
    return parameters, paper_ggt(parameters, **options)


def timed(parameters, optimizer, steps):
    """The median time of a step, in milliseconds."""
    times = []
    for _ in range(steps):
        for p in parameters:
            p.grad.normal_()
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main():
    check_imported(torch_ggt)
    parameters, optimizer = [], None
    for line in sys.stdin:
        request = json.loads(line)
        if "case" in request:
            parameters, optimizer = [], None  # the old window goes before the new one comes
            parameters, optimizer = make(request["case"])
            timed(parameters, optimizer, max(WARM_UP, request["case"]["options"].get("window", 0) + 2))
            request["steps"] = 5
        print(json.dumps(timed(parameters, optimizer, request["steps"])), flush=True)


if __name__ == "__main__":
    main()
