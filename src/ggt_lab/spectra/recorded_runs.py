"""Spectra of training runs: one run, trained again with a recorder attached."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class
from ggt_lab.runs.race import Run
from ggt_lab.runs.results import Results
from ggt_lab.runs.short_run import train
from ggt_lab.runs.standings import standings
from ggt_lab.runs.training_loop import seed_everything
from torch_ggt import GGT
from torch_ggt.spectrum import SpectrumRecorder

__all__ = ["record_spectrum", "tuned_runs", "write_spectrum"]

_RECORDS = 200
_DIAGNOSES = 20


def record_spectrum(run: Run, *, every: int | None = None, window: int | None = None) -> dict[str, Any]:
    """Train ``run`` as a race would, and record the spectrum of its window.

    Args:
        run: which problem, optimizer, learning rate and seed.
        every: record each ``every``-th step; None: about 200 records.
        window: rows of the recorder's own window; of a GGT its own is read.

    Returns:
        What `SpectrumRecorder.to_json` gives, and the run.
    """
    cls = problem_class(run.problem)
    seed_everything(run.seed)
    problem = cls(run.seed, torch.device(run.device))
    steps = problem.steps if run.steps is None else run.steps
    every = every or max(1, steps // _RECORDS)
    factory = optimizer_factory(run.optimizer)
    recorders: list[SpectrumRecorder] = []

    def make(parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        optimizer = factory(parameters, lr)
        diagnose_every = max(1, steps // every // _DIAGNOSES)
        own = None if isinstance(optimizer, GGT) else window
        recorders.append(SpectrumRecorder(optimizer, every=every, window=own, diagnose_every=diagnose_every))
        return optimizer

    seed_everything(run.seed)
    outcome = train(problem, make, run.lr, steps=run.steps, evaluations=1)
    (recorder,) = recorders
    recorder.close()
    label = f"{run.optimizer} on {run.problem}, lr {run.lr:g}, seed {run.seed}"
    spectrum = {**recorder.to_json(label), "status": outcome.status, "run": json.loads(run.key)}
    if outcome.status != "done":
        spectrum["label"] += " (diverged)"
    return spectrum


def tuned_runs(folder: Path) -> list[Run]:
    """Of a race's folder, the first seed of each optimizer at its best learning rate.

    Raises:
        ValueError: no race is there.
    """
    records = [record for record in Results(folder / "results.jsonl") if "curve" in record]
    if not records:
        raise ValueError(f"{folder} holds no results of a race; make some: ggt race PROBLEM --out {folder}")
    runs = []
    for problem in dict.fromkeys(record["problem"] for record in records):
        mine = [record for record in records if record["problem"] == problem]
        for standing in standings(mine):
            best = [r for r in mine if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
            first = min(best, key=lambda record: int(record["seed"]))
            runs.append(Run(*(first[name] for name in ("problem", "optimizer", "lr", "seed", "steps", "device"))))
    return runs


def write_spectrum(spectrum: dict[str, Any], folder: Path, name: str) -> Path:
    """Write ``folder/spectrum-NAME.json``, which the report reads; whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / f"spectrum-{name}.json", json.dumps(spectrum, allow_nan=False) + "\n")
