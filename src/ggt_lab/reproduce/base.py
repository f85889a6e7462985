"""What an experiment is: tasks to run, claims to judge by their records, figures to draw from them."""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ggt_lab.pool import Task, processes, run_all, waiting
from ggt_lab.results import Record, Results
from ggt_lab.verdict import Figure, Verdict, write_verdicts

__all__ = ["Experiment", "Outcome", "Settings", "reproduce"]

Progress = Callable[[int, int, str], None]
"""Called with (tasks done, tasks in all, words): for a progress bar."""


@dataclass(frozen=True)
class Settings:
    """How an experiment is run."""

    seeds: int
    smoke: bool = False
    """Tiny sizes: shows that everything works, and nothing else."""
    device: str = "cpu"
    """Where long runs are trained."""
    folder: Path = Path()
    """Of the results."""
    deadline: float = math.inf
    """When, by ``time.monotonic()``, long runs stop."""

    @property
    def kept(self) -> Path:
        """Folder of what long runs leave when time is up."""
        return self.folder / "kept"


class Experiment(Protocol):
    """One experiment of the paper. Its verdicts and figures come from records alone."""

    name: str
    title: str
    seeds: int
    """How many, unless the user says otherwise."""

    def first(self, settings: Settings) -> Sequence[Task]:
        """The tasks to begin with."""
        ...

    def more(self, settings: Settings, tasks: Sequence[Any], records: Sequence[Record]) -> Sequence[Task]:
        """What these records leave to be run (a grid to widen, say); empty when all is there."""
        ...

    def execute(self, task: Any, settings: Settings) -> Record | None:  # noqa: ANN401 - each has tasks of its own kind
        """Do one task, in a process of its own; None if time was up before it was finished."""
        ...

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge the claims."""
        ...

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """Draw the figures into ``folder``, as PNG and PDF."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What a reproduction left."""

    verdicts: list[Verdict]
    figures: list[Figure]
    results: Path
    left: int = 0
    """Tasks that are not finished because time was up: there are no verdicts then."""


def reproduce(
    experiment: Experiment,
    folder: Path,
    settings: Settings,
    *,
    command: str,
    workers: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Run what is missing, judge, draw, and write ``folder/verdicts.json``. Interrupted, the same call goes on."""
    settings = replace(settings, folder=folder)
    settings.kept.mkdir(parents=True, exist_ok=True)
    execute = functools.partial(experiment.execute, settings=settings)
    results = Results(folder / "results.jsonl")
    tasks = list(experiment.first(settings))
    wanted: Sequence[Task] = tasks
    with processes(workers) as pool:
        while wanted:
            run_all(wanted, execute, results, pool, on_done=_counter(tasks, results, progress))
            wanted = experiment.more(settings, tasks, _of(tasks, results))
            tasks += wanted
    left = len(waiting(tasks, results))
    if left:
        return Outcome([], [], results.path, left)
    if not any(settings.kept.iterdir()):
        settings.kept.rmdir()
    records = _of(tasks, results)
    verdicts = experiment.verdicts(records, command)
    title = experiment.title
    if settings.smoke:  # tiny sizes decide nothing, wherever they are shown
        title += " (smoke test: tiny sizes, nothing is decided)"
        verdicts = [replace(verdict, holds=None) for verdict in verdicts]
    try:
        figures = experiment.draw(records, folder)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        warnings.warn("matplotlib is not installed: no figures; the same command where it is draws them", stacklevel=2)
        figures = []
    write_verdicts(
        folder,
        experiment=experiment.name,
        title=title,
        verdicts=verdicts,
        figures=figures,
        records=records,
        smoke=settings.smoke,
    )
    return Outcome(verdicts, figures, results.path)


def _counter(
    tasks: Sequence[Task], results: Results, progress: Progress | None
) -> Callable[[Task, Record], None] | None:
    """What tells ``progress`` of each task that is done, those of earlier calls counted."""
    if progress is None:
        return None
    total, done = len(tasks), len(tasks) - len(waiting(tasks, results))
    progress(done, total, "")

    def count(task: Task, _: Record) -> None:
        nonlocal done
        done += 1
        progress(done, total, str(task))

    return count


def _of(tasks: Sequence[Task], results: Results) -> list[Record]:
    """The records of these tasks, in the tasks' order, whatever else is in the file."""
    by_key = {record.get("key"): record for record in results}
    return [by_key[task.key] for task in tasks if task.key in by_key]
