"""How large a window is worth its memory? The measurement behind the default of ``GGT(window=...)``.

Trains two models of the paper's kind with several windows (and AdamW beside them), several runs at a time on one
device, and writes one JSON line per run:

    python benchmarks/window_size.py --data DIR --out out/window_size.jsonl [--problems lstm,cnn] [--seconds 500]

``DIR`` holds ``train.npy`` and ``valid.npy`` (uint8 character codes, for "lstm") and ``images.npy``, ``labels.npy``,
``test_images.npy``, ``test_labels.npy`` (uint8 NHWC images, for "cnn").
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ggt_lab.optimizers.paper_ggt import PaperGGT


class CharLSTM(nn.Module):
    """Three layers of 500 units: 5.3 M parameters."""

    def __init__(self, vocabulary, width=500):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 128)
        self.lstm = nn.LSTM(128, width, num_layers=3, dropout=0.1)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, codes, hidden=None):
        output, hidden = self.lstm(self.embed(codes), hidden)
        return self.out(output), hidden


class LSTMProblem:
    """Next-character prediction with truncated back-propagation through time."""

    def __init__(self, data, device, small):
        self.batch, self.length = (8, 10) if small else (128, 100)
        self.train, self.valid = (self._columns(np.load(data / f"{name}.npy"), device) for name in ("train", "valid"))
        if small:
            self.train, self.valid = self.train[:200], self.valid[:50]
        vocabulary = int(max(self.train.max(), self.valid.max())) + 1
        self.model = CharLSTM(vocabulary, 16 if small else 500).to(device)
        self.steps_per_epoch = (len(self.train) - 1) // self.length

    def _columns(self, codes, device):
        usable = len(codes) // self.batch * self.batch
        return torch.from_numpy(codes[:usable]).long().reshape(self.batch, -1).t().contiguous().to(device)

    def _losses(self, stream):
        hidden = None
        for start in range(0, len(stream) - self.length, self.length):
            logits, hidden = self.model(stream[start : start + self.length], hidden)
            hidden = tuple(h.detach() for h in hidden)
            yield F.cross_entropy(logits.flatten(0, 1), stream[start + 1 : start + self.length + 1].flatten())

    def epoch(self):
        self.model.train()
        yield from self._losses(self.train)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        return {"perplexity": math.exp(torch.stack(list(self._losses(self.valid))).mean().item())}


class Residual(nn.Module):
    """Two 3 × 3 convolutions beside an identity (or a strided 1 × 1 convolution)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs) for _ in range(2)])
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.skip(x)).relu()


class CNNProblem:
    """Image classification with a residual network of 1.1 M parameters, crops and flips on the device."""

    def __init__(self, data, device, small):
        self.batch = 128
        load = lambda name: torch.from_numpy(np.load(data / f"{name}.npy"))[: 512 if small else None]  # noqa: E731
        self.images, self.test_images = (self._prepare(load(n), device) for n in ("images", "test_images"))
        self.labels, self.test_labels = (load(n).long().to(device) for n in ("labels", "test_labels"))
        width = 4 if small else 32
        layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        for stage in range(3):
            for block in range(3):
                inputs = width * 2 ** max(0, stage - (block == 0))
                layers.append(Residual(inputs, width * 2**stage, 1 + (block == 0 and stage > 0)))
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width * 4, 10)]
        self.model = nn.Sequential(*layers).to(device)
        self.steps_per_epoch = len(self.images) // self.batch

    @staticmethod
    def _prepare(images, device):
        return (images.to(device).permute(0, 3, 1, 2).float() / 255 - 0.47) / 0.25

    def epoch(self):
        self.model.train()
        order = torch.randperm(len(self.images), device=self.images.device)
        for index in order.split(self.batch)[: self.steps_per_epoch]:
            x = F.pad(self.images[index], (4, 4, 4, 4))
            top, left = torch.randint(0, 9, (2,)).tolist()
            x = x[:, :, top : top + 32, left : left + 32]
            flip = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
            yield F.cross_entropy(self.model(torch.where(flip, x.flip(3), x)), self.labels[index])

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        logits = torch.cat([self.model(x) for x in self.test_images.split(1000)])
        return {"accuracy": (logits.argmax(1) == self.test_labels).float().mean().item()}


PROBLEMS = {"lstm": LSTMProblem, "cnn": CNNProblem}


def run_one(job, data, device, small):
    """Train once; the learning rate follows a cosine to zero."""
    torch.manual_seed(job["seed"])
    problem = PROBLEMS[job["problem"]](data, device, small)
    parameters = problem.model.parameters()
    if job["optimizer"] == "AdamW":
        optimizer = torch.optim.AdamW(parameters, lr=job["lr"], weight_decay=0.0)
    else:
        dtype = getattr(torch, job.get("dtype", "float32"))
        optimizer = PaperGGT(
            parameters, lr=job["lr"], window=job["window"], adjust_lr_fn="original", window_dtype=dtype
        )
    steps = job["epochs"] * problem.steps_per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    curve = []
    start = time.perf_counter()
    for _ in range(job["epochs"]):
        losses = []
        for loss in problem.epoch():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        curve.append({"train_loss": torch.stack(losses).mean().item(), **problem.evaluate()})
    return {
        **job,
        "steps": steps,
        "seconds": time.perf_counter() - start,
        "curve": curve,
        "skipped": getattr(optimizer, "skipped", 0),
        "parameters": sum(p.numel() for p in problem.model.parameters()),
    }


def jobs(problems, small):
    windows = (5, 20) if small else (5, 10, 20, 50, 100, 200)
    rates = {"lstm": (1.5, 3.0, 6.0), "cnn": (0.1, 0.3)}
    adam_rates = {"lstm": (1e-3, 2e-3, 4e-3), "cnn": (1e-3, 2e-3, 4e-3)}
    epochs = {"lstm": 6, "cnn": 12}
    for problem in problems:
        common = {"problem": problem, "seed": 0, "epochs": 1 if small else epochs[problem]}
        for window in windows:
            for lr in rates[problem]:
                if lr == 1.5 and window in (10, 50, 200):
                    continue  # the coarse half of the grid will do where the optimum is not expected
                yield {**common, "optimizer": "GGT", "window": window, "lr": lr}
        for window in (20, 100):
            yield {**common, "optimizer": "GGT", "window": window, "lr": rates[problem][-2], "dtype": "bfloat16"}
        for lr in adam_rates[problem]:
            yield {**common, "optimizer": "AdamW", "lr": lr}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", default="lstm,cnn")
    parser.add_argument("--parallel", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=500, help="start no run after this")
    parser.add_argument("--small", action="store_true", help="a smoke test")
    parser.add_argument("--one", help="one job as JSON (used by the driver itself)")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.one:
        record = run_one(json.loads(arguments.one), arguments.data, device, arguments.small)
        record |= {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        }
        with arguments.out.open("a") as out:
            out.write(json.dumps(record) + "\n")
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    waiting = [
        job
        for job in jobs(arguments.problems.split(","), arguments.small)
        if not any(all(record.get(key) == value for key, value in job.items()) for record in done)
    ]
    running, begin = [], time.perf_counter()
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        elapsed = time.perf_counter() - begin
        if waiting and len(running) < arguments.parallel and elapsed < arguments.seconds:
            command = [sys.executable, __file__, "--data", str(arguments.data), "--out", str(arguments.out)]
            job = waiting.pop(0)
            running.append(subprocess.Popen([*command, "--one", json.dumps(job), *["--small"] * arguments.small]))
        elif waiting and elapsed >= arguments.seconds:
            print(f"{len(waiting)} runs not started", flush=True)
            waiting = []
        else:
            time.sleep(0.2)
    print(f"done in {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
