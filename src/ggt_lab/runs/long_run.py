"""Long runs: epochs, a learning-rate schedule, and checkpoints. Several runs share one device.

A run stops when time is up, and leaves a checkpoint. Called again, it goes on from the same step, and ends with the
same record as a run that was never stopped. ``ggt train`` and the deep experiments train such runs. This module needs
torch and numpy alone.
"""

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ggt_lab.data.atomic_files import atomic_file
from ggt_lab.data.json_files import AT_LEAST_1, COUNT, POSITIVE, TEXT, WHOLE, Kind, flaw, given, one_of, read_list
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class
from ggt_lab.problems.deep_problem import DeepProblem
from ggt_lab.runs.process_pool import processes, run_all, waiting
from ggt_lab.runs.results import Record, Results
from ggt_lab.runs.schedules import SCHEDULES
from ggt_lab.runs.training_loop import training_steps
from ggt_lab.spectra.eigenvalue_log import EigenvalueLog
from torch_ggt import GGT

__all__ = [
    "WITHOUT_EFFECT",
    "LongRun",
    "advance",
    "changed_since",
    "class_with",
    "numbers_of",
    "read_runs",
    "run_until",
]

_PAIRS = Kind(
    lambda value: value is None or (isinstance(value, list) and all(map(_is_setting, value))),
    'a list of pairs such as ["dropout", 0.2]',
)

WITHOUT_EFFECT = ("captured", "compiled", "epochs")
"""Settings of a problem that do not change the result of a run.

Two settings change only the speed of a run. The number of epochs belongs to the run, not to the problem."""


def _is_setting(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)


_SHAPE = {
    "problem": TEXT,
    "optimizer": TEXT,
    "lr": POSITIVE,
    "seed": WHOLE,
    "epochs": AT_LEAST_1,
    "schedule": given(one_of(*SCHEDULES)),
    "device": given(TEXT),
    "settings": _PAIRS,
    "spectrum_every": given(COUNT),
    "early_looks": given(COUNT),
}


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
    """The number of steps from one record of the eigenvalues of GᵀG to the next; 0 records none."""
    early_looks: int = 0
    """How often held-out data is evaluated inside the first epoch, evenly spread."""

    @property
    def key(self) -> str:
        """The run in words that do not change."""
        words = asdict(self)
        for name in ("spectrum_every", "early_looks"):  # older runs were recorded without these fields
            if not words[name]:
                del words[name]
        return json.dumps(["long", words], sort_keys=True)

    @property
    def digest(self) -> str:
        """The key as a name for files."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.problem}, {self.optimizer}, lr {self.lr:g}, seed {self.seed}, {self.epochs} epochs"


def read_runs(path: Path) -> list[LongRun]:
    """The runs in a JSON file: a list of objects with the fields of `LongRun`.

    Raises:
        ValueError: the file holds something else; the message names the run by its place in the list.
        OSError: the file cannot be read.
    """
    names = [field.name for field in fields(LongRun)]
    runs = []
    try:
        listed = read_list(path)
    except ValueError as error:
        raise ValueError(f"{path} is no list of runs: {error}") from None
    for number, each in enumerate(listed, start=1):
        strange = [name for name in each if name not in names]
        wrong = f"it has {', '.join(strange)}; a run has {', '.join(names)}" if strange else flaw(each, _SHAPE)
        if wrong is not None:
            raise ValueError(f"run {number} of {path}: {wrong}")
        runs.append(LongRun(**{**each, "settings": tuple(map(tuple, each.get("settings") or ()))}))
    return runs


def advance(run: LongRun, kept: Path, *, deadline: float = math.inf, spectra: Path = Path("spectra")) -> Record | None:
    """Train from where ``run`` was left, until it is finished or ``time.monotonic()`` reaches ``deadline``.

    Args:
        run: the run.
        kept: the folder of checkpoints.
        deadline: when to save and stop; the clock is read before each step.
        spectra: the folder of the eigenvalues, if the run records them.

    Returns:
        The record of the finished run, whose checkpoint is removed. None if the run is saved and not finished.
    """
    if time.monotonic() >= deadline:
        return None  # a run that is not begun costs nothing
    training = _Training(run, kept / f"{run.digest}.pt")
    if not training.advance(deadline):
        training.save()
        return None
    record = training.record()
    if run.spectrum_every:
        record["spectrum"] = training.log.write(spectra / f"{run.digest}.npz")
    training.checkpoint.unlink(missing_ok=True)
    return record


class _Training:
    """A long run in memory: the problem, the optimizer, and what was seen so far. Goes on from its checkpoint."""

    def __init__(self, run: LongRun, checkpoint: Path) -> None:
        self.run, self.checkpoint = run, checkpoint
        torch.manual_seed(run.seed)
        if run.device != "cpu":  # shapes stay equal for thousands of steps: cuDNN may try which algorithm is fastest
            torch.backends.cudnn.benchmark = True
        self.problem = class_with(run.problem, run.settings)(run.seed, torch.device(run.device))
        self.optimizer = optimizer_factory(run.optimizer)(list(self.problem.parameters()), run.lr)
        self.log = EigenvalueLog(self.optimizer, run.spectrum_every)
        self.steps = run.epochs * self.problem.steps_per_epoch
        self.status = "done"
        self.curve: list[dict[str, Any]] = []
        self.early: list[dict[str, Any]] = []
        self._early_steps = _early_steps(run.early_looks, self.problem.steps_per_epoch)
        self._seconds_before = 0.0
        if checkpoint.exists():
            self._load(_read_checkpoint(checkpoint, run.device))
        elif run.epochs > 0:
            self.curve.append({"epoch": 0, "step": 0, "seconds": 0.0, **self.problem.evaluate()})
        self._started = time.perf_counter()

    def advance(self, deadline: float) -> bool:
        """Train until the end or the deadline; whether the run is finished."""
        factor = SCHEDULES[self.run.schedule]
        for _ in training_steps(
            self.optimizer,
            self.problem.take_gradients,
            first=self.problem.step,
            last=self.steps,
            rate_at=lambda step: self.run.lr * factor(step / self.steps),
            time_is_up=lambda: time.monotonic() >= deadline,
        ):
            self._look()
            if self.status == "diverged":
                return True
        return self.problem.step >= self.steps

    def _look(self) -> None:
        """After a step: record the eigenvalues, look at held-out data, evaluate at the end of an epoch."""
        step = self.problem.step
        self.log.after(step)
        if step in self._early_steps:
            self.early.append({"step": step, **self.problem.held_out()})
        epoch, rest = divmod(step, self.problem.steps_per_epoch)
        if rest == 0:
            numbers = self.problem.evaluate()
            if all(map(math.isfinite, numbers.values())):
                self.curve.append({"epoch": epoch, "step": step, "seconds": self._seconds(), **numbers})
            else:
                self.status = "diverged"

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started

    def save(self) -> None:
        """Write the checkpoint."""
        parts: dict[str, Any] = {"problem": self.problem, "optimizer": self.optimizer, "spectra": self.log}
        state = {name: part.state_dict() for name, part in parts.items()}
        with atomic_file(self.checkpoint) as file:
            torch.save({**state, "curve": self.curve, "early": self.early, "seconds": self._seconds()}, file)

    def _load(self, state: dict[str, Any]) -> None:
        self.problem.load_state_dict(state["problem"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.curve, self.early, self._seconds_before = state["curve"], state["early"], state["seconds"]
        if self.run.spectrum_every:
            self.log.load_state_dict(state["spectra"])

    def record(self) -> Record:
        """What the finished run says."""
        count = sum(p.numel() for p in self.problem.parameters())
        setup = numbers_of(type(self.problem)) | {"parameters": count}
        found = {"metric": self.problem.metric, "status": self.status, "setup": setup, "curve": self.curve}
        record = {**asdict(self.run), **found}
        if self.run.early_looks:
            record["early"] = [point for point in self.early if all(map(math.isfinite, point.values()))]
        if isinstance(self.optimizer, GGT):  # it leaves a step out whose gradient is not finite; others end there
            record["skipped"] = self.optimizer.skipped
        return record


def _read_checkpoint(path: Path, device: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises errors of many kinds on a damaged file
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    else:
        names = ("problem", "optimizer", "spectra", "curve", "early", "seconds")
        missing = [name for name in names if not isinstance(state, dict) or name not in state]
        if not missing:
            return state
        reason = f"it has no {', '.join(missing)}"
    raise ValueError(f"the checkpoint {path} cannot be read ({reason}); restore it, or remove it to begin the run anew")


def _early_steps(looks: int, steps_per_epoch: int) -> set[int]:
    """The steps of the looks inside the first epoch. There are fewer looks if the epoch is too short for all."""
    return {round(part * steps_per_epoch / (looks + 1)) for part in range(1, looks + 1)} - {0, steps_per_epoch}


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
        How many runs are left.
    """
    kept.mkdir(parents=True, exist_ok=True)
    spectra = results.path.parent / "spectra"
    execute = functools.partial(advance, kept=kept, deadline=time.monotonic() + seconds, spectra=spectra)
    with processes(workers) as pool:
        run_all(runs, execute, results, pool, on_done=on_done)
    return len(waiting(runs, results))


def changed_since(record: Record) -> list[str]:
    """The attributes of a problem that changed since the record was made, so that the run would differ today."""
    now = numbers_of(class_with(record["problem"], record["settings"]))
    # An attribute that did not exist then had the default of all problems, or acted as 0 or False.
    then = {name: record.get("setup", {}).get(name, getattr(DeepProblem, name, 0)) for name in now}
    return [
        f"{name} {then[name]} there, {value} now"
        for name, value in now.items()
        if name not in WITHOUT_EFFECT and value != then[name]
    ]


def numbers_of(cls: type[DeepProblem]) -> dict[str, float]:
    """The public attributes of a problem that are numbers, True or False."""
    names = [name for name in dir(cls) if not name.startswith("_")]
    return {name: value for name in names if isinstance(value := getattr(cls, name), bool | int | float)}


def class_with(problem: str, settings: Iterable[tuple[str, Any]]) -> type[DeepProblem]:
    """A deep problem with some of its attributes changed.

    Raises:
        ValueError: there is no such problem, or it has no such attribute, or the value is of another type.
    """
    cls, changes = problem_class(problem), dict(settings)
    if not issubclass(cls, DeepProblem):
        raise ValueError(f"{problem} is not a deep problem: it has no epochs; race it with `ggt race`")
    numbers = numbers_of(cls)
    for name, value in changes.items():
        if name.startswith("_") or not hasattr(cls, name):
            raise ValueError(f"{problem} has no setting {name}; it has {', '.join(sorted(numbers))}")
        kinds = (int, float) if type(numbers.get(name)) is float else (type(getattr(cls, name)),)
        if type(value) not in kinds:
            raise ValueError(f"{name} of {problem} is {getattr(cls, name)!r}; {value!r} is of another kind")
    return type(cls.__name__, (cls,), changes)
