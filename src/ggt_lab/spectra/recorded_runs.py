"""Spectra of runs of a race: a run is trained again, with a recorder attached to its optimizer."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.runs.race import Run
from ggt_lab.runs.results import Results
from ggt_lab.runs.short_run import steps_of, train
from ggt_lab.runs.standings import standings
from ggt_lab.runs.training_loop import seed_everything
from ggt_lab.runs.users_code import called, problem_of, running
from torch_ggt import GGT
from torch_ggt.spectrum import SpectrumRecorder

__all__ = ["record_spectrum", "tuned_runs", "would_execute", "write_spectrum"]

_RECORDS = 200
_DIAGNOSES = 20


def record_spectrum(run: Run, *, every: int | None = None, window: int | None = None) -> dict[str, Any]:
    """Train ``run`` as a race would, and record the spectrum of its window.

    Args:
        run: the problem, optimizer, learning rate and seed.
        every: the number of steps from one record to the next; None gives about 200 records.
        window: the rows of the window that the recorder keeps beside an optimizer. A GGT has a window of its own.

    Returns:
        What `SpectrumRecorder.to_json` gives, and the run. The summary of the diagnosis begins with its verdict. If
        nothing was recorded, the verdict says why.
    """
    with running(run.problem, str(run)):
        cls = problem_of(run.problem)
        seed_everything(run.seed)
        problem = called("__init__", cls, run.seed, torch.device(run.device))
        steps = steps_of(problem, run.steps)
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
        outcome = train(problem, make, run.lr, steps=run.steps, evaluations=1, schedule=run.schedule)
        (recorder,) = recorders
        recorder.close()
    label = f"{run.optimizer} on {run.problem}, lr {run.lr:g}, seed {run.seed}"
    spectrum = {**recorder.to_json(label), "status": outcome.status, "run": json.loads(run.key)}
    if outcome.status != "done":
        spectrum["label"] += " (diverged)"
    if not recorder.records:
        verdict = f"Nothing was recorded: {_why_nothing(steps, every, outcome.skipped)}."
        spectrum["diagnosis"] |= {"verdict": verdict, "summary": verdict}
    else:
        verdict = recorder.diagnose().verdict
        reasons = spectrum["diagnosis"]["summary"].removesuffix(verdict).strip()
        spectrum["diagnosis"] |= {"verdict": verdict, "summary": f"{verdict} {reasons}"}
    return spectrum


def _why_nothing(steps: int, every: int, skipped: int) -> str:
    if skipped:
        return f"{skipped} steps were left out, because the loss or its gradient was not finite"
    if steps < every:
        return f"no step of {steps} is a multiple of {every}; give a smaller --every, or more --steps"
    return "every gradient was zero"


def tuned_runs(folder: Path) -> list[Run]:
    """The first seed of each optimizer at its best learning rate, from the folder of a race.

    Raises:
        ValueError: the folder holds no race.
    """
    # Long runs have curves too, but epochs in place of steps.
    records = [record for record in Results(folder / "results.jsonl") if "curve" in record and "epochs" not in record]
    if not records:
        raise ValueError(
            f"{folder} holds no results of a race (no run in results.jsonl); make some: ggt race PROBLEM --out {folder}"
        )
    runs = []
    for problem in dict.fromkeys(record["problem"] for record in records):
        mine = [record for record in records if record["problem"] == problem]
        for standing in standings(mine):
            best = [r for r in mine if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
            first = min(best, key=lambda record: int(record["seed"]))
            steps, device = first.get("steps"), first.get("device") or "cpu"
            schedule = first.get("schedule") or "constant"
            runs.append(Run(first["problem"], first["optimizer"], first["lr"], first["seed"], steps, device, schedule))
    return runs


def would_execute(runs: Iterable[Run]) -> list[str]:
    """The code that these runs would execute, beyond the code of the lab and of torch: files and packages.

    Example:
        >>> would_execute([Run("digits", "torch.optim.SGD", 0.1, 0), Run("own.py", "package.Best(a=1)", 0.1, 0)])
        ['own.py', 'package.Best']
    """
    found = []
    for run in runs:
        found += [run.problem] if run.problem.endswith(".py") else []
        optimizer = run.optimizer.partition("(")[0].strip()
        package, dot, _ = optimizer.partition(".")
        found += [optimizer] if dot and package not in ("torch", "torch_ggt", "ggt_lab") else []
    return list(dict.fromkeys(found))


def write_spectrum(spectrum: dict[str, Any], folder: Path, name: str) -> Path:
    """Write ``folder/spectrum-NAME.json``, which the report reads."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / f"spectrum-{name}.json", json.dumps(spectrum, allow_nan=False) + "\n")
