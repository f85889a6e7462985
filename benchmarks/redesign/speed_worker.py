"""Time steps of one optimizer on request; `speed` keeps one such process for each tree.

Requests and answers are lines of JSON. ``{"case": ...}`` makes an optimizer, fills its window, and answers
``{"ms": the median time of five steps in the first way of the case}``. ``{"steps": n, "way": ...}`` answers
``{"ms": the median time of n steps}``. If anything goes wrong, the answer is ``{"error": ...}``.
"""

import json
import os
import statistics
import sys
import time
import traceback

import torch
from paper_ggt import paper_ggt
from torch import nn
from trees import check_imported

import torch_ggt

WARM_UP = 32  # steps at least; a window is filled in any case


class Timed:
    """An optimizer on one device, and the ways to time its steps."""

    def __init__(self, case):
        torch.set_num_threads(case["threads"])
        torch.manual_seed(0)
        self.device = torch.device(case["device"])
        self.parameters = [nn.Parameter(torch.ones(shape, device=self.device)) for shape in case["shapes"]]
        for p in self.parameters:
            p.grad = torch.randn_like(p)
        if case["optimizer"] == "Adam":
            self.optimizer = torch.optim.Adam(self.parameters, foreach=True)
        else:
            options = dict(case["options"])
            if "window_dtype" in options:
                options["window_dtype"] = getattr(torch, options["window_dtype"])
            self.optimizer = paper_ggt(self.parameters, **options)
        self.graph = None
        for _ in range(max(WARM_UP, case["options"].get("window", 0) + 2)):
            self.renew_gradients()
            self.optimizer.step()
        self.wait()

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def renew_gradients(self):
        for p in self.parameters:
            p.grad.normal_()

    def clock(self, steps):
        """The clock's time of a step, which ends when the device has ended; each after a fresh gradient."""
        return self._by_clock(steps, self.wait)

    def host(self, steps):
        """The time that ``step()`` takes on the host. The device is idle when it begins, and is not waited for."""
        return self._by_clock(steps, lambda: None)

    def _by_clock(self, steps, ended):
        times = []
        for _ in range(steps):
            self.renew_gradients()
            self.wait()
            start = time.perf_counter()
            self.optimizer.step()
            ended()
            times.append(time.perf_counter() - start)
        self.wait()
        return [1e3 * seconds for seconds in times]

    def eager(self, steps):
        """Between two events on the device; steps follow each other, and the host does not wait between them."""
        return self._by_events(self.optimizer.step, steps)

    def captured(self, steps):
        """As `eager`, for the step as a CUDA graph: its time is that of the device, without the host."""
        if self.graph is None:
            self.graph = self._capture()
        return self._by_events(self.graph.replay, steps)

    def _by_events(self, step, steps):
        if self.device.type != "cuda":  # a trial run
            return self.clock(steps)
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(steps)]
        step()
        for start, end in pairs:
            start.record()
            step()
            end.record()
        self.wait()
        return [start.elapsed_time(end) for start, end in pairs]

    def _capture(self):
        if self.device.type != "cuda":
            return type("Trial", (), {"replay": None})
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                self.optimizer.step()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.optimizer.step()
        return graph


WAYS = ("clock", "host", "eager", "captured")
"""The ways to time a step: the methods of `Timed` with these names."""


def main():
    check_imported(torch_ggt)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer
    timed = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "case" in request:
                timed = None  # the old window goes before the new one comes
                if request["case"]["device"] == "cuda":
                    torch.cuda.empty_cache()
                timed = Timed(request["case"])
                request |= {"steps": 5, "way": request["case"]["ways"][0]}
            answer = {"ms": statistics.median(getattr(timed, request["way"])(request["steps"]))}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
