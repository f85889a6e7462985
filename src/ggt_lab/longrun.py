"""Long runs: epochs, a learning-rate schedule, checkpoints. Several share one device, and stop when time is up.

    python -m ggt_lab.longrun plan.json --kept DIR --results FILE [--seconds 540] [--workers 12]

``plan.json`` is a list of runs (the fields of `LongRun`). What is finished is appended to the results; what is not is
kept in DIR and goes on, from the same step, when the same command is given again. Needs torch and numpy alone.
Spectra of runs with ``spectrum_every`` are written into ``spectra`` beside the results.
"""

import argparse
import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ggt_lab.optimizers import optimizer_factory
from ggt_lab.pool import processes, run_all, waiting
from ggt_lab.problems import problem_class
from ggt_lab.problems.deep import DeepProblem
from ggt_lab.results import Record, Results
from ggt_lab.spectrum_log import SpectrumLog
from ggt_lab.whole import whole_file
from torch_ggt import GGT

__all__ = ["OF_NO_EFFECT", "SCHEDULES", "LongRun", "advance", "changed_since", "class_with", "run_until"]

OF_NO_EFFECT = ("captured", "compiled", "epochs")
"""Settings of a problem that no result depends on: two are how fast, and a run has epochs of its own."""


def _cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _halving(progress: float) -> float:
    return 0.5 ** math.floor(progress * 8)


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": lambda _: 1.0, "cosine": _cosine, "halving": _halving}
"""Factors of the learning rate, as functions of the share of the run that is done; "halving" does it seven times."""


@dataclass(frozen=True)
class LongRun:
    """A run of a deep problem; equal runs give equal results."""

    problem: str
    optimizer: str
    lr: float
    seed: int
    epochs: int
    schedule: str = "cosine"
    device: str = "cuda"
    settings: tuple[tuple[str, Any], ...] = ()
    """Attributes of the problem to change, by name: (("dropout", 0.2),)."""
    spectrum_every: int = 0
    """Record the eigenvalues of a GGT's GᵀG at each so-many-th step; 0: never."""
    early_looks: int = 0
    """At held-out data inside of the first epoch, evenly spread, beside those at the ends of epochs."""

    @property
    def key(self) -> str:
        """The run in words that do not change."""
        words = asdict(self)
        for name in ("spectrum_every", "early_looks"):  # runs recorded before there were such keep their key
            if not words[name]:
                del words[name]
        return json.dumps(["long", words], sort_keys=True)

    @property
    def digest(self) -> str:
        """The key as a name for files."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.problem}, {self.optimizer}, lr {self.lr:g}, seed {self.seed}, {self.epochs} epochs"


def advance(run: LongRun, kept: Path, *, deadline: float = math.inf, spectra: Path = Path("spectra")) -> Record | None:
    """Train from where ``run`` was left, until it is finished or ``time.monotonic()`` reaches ``deadline``.

    Args:
        run: what to train.
        kept: folder of checkpoints.
        deadline: when to save and stop; looked at before each step.
        spectra: folder of the spectra, if the run records them.

    Returns:
        The record of the finished run (its checkpoint is removed), or None: saved, and to be called again.
    """
    if time.monotonic() >= deadline:
        return None  # what is not begun costs nothing
    torch.manual_seed(run.seed)
    if run.device != "cpu":  # shapes stay the same for thousands of steps: worth trying which convolutions are fastest
        torch.backends.cudnn.benchmark = True
    problem = class_with(run.problem, run.settings)(run.seed, torch.device(run.device))
    parameters = list(problem.parameters())
    optimizer = optimizer_factory(run.optimizer)(parameters, run.lr)
    factor = SCHEDULES[run.schedule]
    log = SpectrumLog(optimizer, run.spectrum_every)
    checkpoint = kept / f"{run.digest}.pt"
    curve: list[dict[str, Any]] = []
    early: list[dict[str, Any]] = []
    looks = _early_steps(run.early_looks, problem.steps_per_epoch)
    seconds = 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=run.device, weights_only=True)
        problem.load_state_dict(state["problem"])
        optimizer.load_state_dict(state["optimizer"])
        curve, early, seconds = state["curve"], state["early"], state["seconds"]
        if run.spectrum_every:
            log.load_state_dict(state["spectra"])
    elif run.epochs > 0:
        curve.append({"epoch": 0, "step": 0, "seconds": 0.0, **problem.evaluate()})
    started = time.perf_counter()
    status = "done"
    while problem.step < run.epochs * problem.steps_per_epoch:
        if time.monotonic() >= deadline:
            spent = seconds + time.perf_counter() - started
            parts = {"problem": problem, "optimizer": optimizer, "spectra": log}
            _save(parts, {"curve": curve, "early": early, "seconds": spent}, checkpoint)
            return None
        for group in optimizer.param_groups:
            group["lr"] = run.lr * factor(problem.step / (run.epochs * problem.steps_per_epoch))
        problem.take_gradients()
        optimizer.step()
        log.after(problem.step)
        if problem.step in looks:
            early.append({"step": problem.step, **problem.held_out()})
        if problem.step % problem.steps_per_epoch == 0:
            numbers = problem.evaluate()
            if not all(math.isfinite(value) for value in numbers.values()):
                status = "diverged"
                break
            epoch = problem.step // problem.steps_per_epoch
            spent = seconds + time.perf_counter() - started
            curve.append({"epoch": epoch, "step": problem.step, "seconds": spent, **numbers})
    record = {**_record(run, problem, status, curve, early), **_skipped(optimizer)}
    if run.spectrum_every:
        record["spectrum"] = log.write(spectra / f"{run.digest}.npz")
    checkpoint.unlink(missing_ok=True)
    return record


def run_until(
    runs: Sequence[LongRun],
    results: Results,
    kept: Path,
    *,
    seconds: float = math.inf,
    workers: int = 1,
    on_done: Callable[[LongRun, Record], None] | None = None,
) -> int:
    """Advance all runs that are not finished, ``workers`` at a time, for so many seconds.

    Returns:
        How many are left.
    """
    kept.mkdir(parents=True, exist_ok=True)
    spectra = results.path.parent / "spectra"
    execute = functools.partial(advance, kept=kept, deadline=time.monotonic() + seconds, spectra=spectra)
    with processes(workers) as pool:
        run_all(runs, execute, results, pool, on_done=on_done)
    return len(waiting(runs, results))


def changed_since(record: Record) -> list[str]:
    """In what the run of a record would be another one today: attributes of its problem that have changed since."""
    now = _numbers(class_with(record["problem"], record["settings"]))
    # What there was not yet was as problems have it by default, or as if 0 or False.
    then = {name: record.get("setup", {}).get(name, getattr(DeepProblem, name, 0)) for name in now}
    return [
        f"{name} {then[name]} there, {value} now"
        for name, value in now.items()
        if name not in OF_NO_EFFECT and value != then[name]
    ]


def _numbers(cls: type[DeepProblem]) -> dict[str, float]:
    """Those among the public attributes of a problem."""
    names = [name for name in dir(cls) if not name.startswith("_")]
    return {name: value for name in names if isinstance(value := getattr(cls, name), bool | int | float)}


def class_with(problem: str, settings: Iterable[tuple[str, Any]]) -> type[DeepProblem]:
    """A deep problem with some of its attributes changed.

    Raises:
        ValueError: there is no such problem, or it has no such attribute, or one of another kind.
    """
    cls, changes = problem_class(problem), dict(settings)
    if not issubclass(cls, DeepProblem):
        raise ValueError(f"{problem} is not a deep problem: it has no epochs; race it with `ggt race`")
    numbers = _numbers(cls)
    for name, value in changes.items():
        if name.startswith("_") or not hasattr(cls, name):
            raise ValueError(f"{problem} has no setting {name}; it has {', '.join(sorted(numbers))}")
        kinds = (int, float) if type(numbers.get(name)) is float else (type(getattr(cls, name)),)
        if type(value) not in kinds:
            raise ValueError(f"{name} of {problem} is {getattr(cls, name)!r}; {value!r} is of another kind")
    return type(cls.__name__, (cls,), changes)


def _early_steps(looks: int, steps_per_epoch: int) -> set[int]:
    """So many steps inside of the first epoch, fewer where it is too short."""
    return {round(part * steps_per_epoch / (looks + 1)) for part in range(1, looks + 1)} - {0, steps_per_epoch}


def _save(parts: dict[str, Any], plain: dict[str, Any], path: Path) -> None:
    with whole_file(path) as file:
        torch.save({**{name: part.state_dict() for name, part in parts.items()}, **plain}, file)


def _record(
    run: LongRun, problem: DeepProblem, status: str, curve: list[dict[str, Any]], early: list[dict[str, Any]]
) -> Record:
    setup = _numbers(type(problem)) | {"parameters": sum(p.numel() for p in problem.parameters())}
    record = {**asdict(run), "metric": problem.metric, "status": status, "setup": setup, "curve": curve}
    if run.early_looks:
        record["early"] = [point for point in early if all(map(math.isfinite, point.values()))]
    return record


def _skipped(optimizer: torch.optim.Optimizer) -> Record:
    """How many gradients were not finite, where steps with such are left out; the runs of others end there."""
    return {"skipped": optimizer.skipped} if isinstance(optimizer, GGT) else {}


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    plan = json.loads(arguments.plan.read_text())
    runs = [LongRun(**{**each, "settings": tuple(map(tuple, each.get("settings", ())))}) for each in plan]

    def say(run: LongRun, record: Record) -> None:
        final = record["curve"][-1].get(record["metric"]) if record["curve"] else None
        print(f"{run}: {record['status']}, {record['metric']} {final}", flush=True)

    left = run_until(
        runs,
        Results(arguments.results),
        arguments.kept,
        seconds=arguments.seconds,
        workers=arguments.workers,
        on_done=say,
    )
    print(f"{left} of {len(runs)} runs are left" if left else "all runs are finished")


if __name__ == "__main__":
    main()
