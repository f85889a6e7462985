"""What an experiment is: tasks to run, claims to judge by their records, figures to draw from them."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ggt_lab.experiments.verdicts import Figure, Verdict, write_verdicts
from ggt_lab.figures import drawn
from ggt_lab.runs.process_pool import processes, run_all, waiting
from ggt_lab.runs.progress import Progress, count_tasks
from ggt_lab.runs.results import Record, Results, Task

__all__ = ["Experiment", "Reproduction", "Settings", "reproduce"]


@dataclass(frozen=True)
class Settings:
    """How an experiment is run."""

    seeds: int
    smoke: bool = False
    """Tiny sizes: shows that everything works, and nothing else."""
    device: str = "cpu"
    """Where long runs are trained."""
    folder: Path = Path()
    """The folder of the results."""
    deadline: float = math.inf
    """The time, by ``time.monotonic()``, at which long runs stop."""

    @property
    def kept(self) -> Path:
        """The folder of the checkpoints of long runs."""
        return self.folder / "kept"


class Experiment(Protocol):
    """One experiment of the paper. Its verdicts and figures come from records alone."""

    name: str
    title: str
    seeds: int
    """The number of seeds, unless the user says otherwise."""

    def first(self, settings: Settings) -> Sequence[Task]:
        """The tasks to begin with."""
        ...

    def more(self, settings: Settings, tasks: Sequence[Any], records: Sequence[Record]) -> Sequence[Task]:
        """The tasks that follow from these records, such as a wider grid; none when all is there."""
        ...

    def execute(self, task: Any, settings: Settings) -> Record | None:  # noqa: ANN401 - each has tasks of its own kind
        """Do one task, in a process of its own; None if time was up before the task was finished."""
        ...

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge the claims."""
        ...

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """Draw the figures into ``folder``, as PNG and PDF."""
        ...


@dataclass(frozen=True)
class Reproduction:
    """What a reproduction of an experiment gave."""

    verdicts: list[Verdict]
    figures: list[Figure]
    results: Path
    left: int = 0
    """The number of tasks that are not finished because time was up. If there are any, there are no verdicts."""


def reproduce(
    experiment: Experiment,
    folder: Path,
    settings: Settings,
    *,
    command: str,
    workers: int = 1,
    progress: Progress | None = None,
) -> Reproduction:
    """Run the tasks that are missing, judge, draw, and write ``folder/verdicts.json``.

    After an interruption, the same call goes on.
    """
    settings = replace(settings, folder=folder)
    settings.kept.mkdir(parents=True, exist_ok=True)
    execute = functools.partial(experiment.execute, settings=settings)
    results = Results(folder / "results.jsonl")
    tasks = list(experiment.first(settings))
    wanted: Sequence[Task] = tasks
    with processes(workers) as pool:
        while wanted:
            run_all(wanted, execute, results, pool, on_done=count_tasks(tasks, results, progress))
            wanted = experiment.more(settings, tasks, results.of(tasks))
            tasks += wanted
    left = len(waiting(tasks, results))
    if left:
        return Reproduction([], [], results.path, left)
    if not any(settings.kept.iterdir()):
        settings.kept.rmdir()
    records = results.of(tasks)
    verdicts = experiment.verdicts(records, command)
    title = experiment.title
    if settings.smoke:  # tiny sizes decide nothing
        title += " (smoke test: tiny sizes, nothing is decided)"
        verdicts = [replace(verdict, holds=None) for verdict in verdicts]
    figures = list(drawn(lambda: experiment.draw(records, folder)))
    write_verdicts(
        folder,
        experiment=experiment.name,
        title=title,
        verdicts=verdicts,
        figures=figures,
        records=records,
        smoke=settings.smoke,
    )
    return Reproduction(verdicts, figures, results.path)
