"""Run what is missing of the league, in a folder that belongs to one protocol. After an interruption it goes on."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.data.json_files import read_object, there
from ggt_lab.data.published_files import DataError
from ggt_lab.league.entrants import Entrant
from ggt_lab.league.execution import execute, fresh_problem
from ggt_lab.league.protocol import LeagueRun, Protocol, next_runs
from ggt_lab.league.tasks import LeagueTask
from ggt_lab.optimizers.specs import missing_package
from ggt_lab.runs.process_pool import processes, run_as_ready
from ggt_lab.runs.results import Record, Results

__all__ = ["Field", "check_folder", "finished", "missing_data", "missing_packages", "play"]

_FILE = "protocol.json"


class Field(NamedTuple):
    """What is to be played: some tasks and some entrants of a protocol."""

    protocol: Protocol
    tasks: tuple[LeagueTask, ...]
    entrants: tuple[Entrant, ...]
    device: str = "cpu"

    def rules(self) -> Record:
        """What a folder of results must agree on, as JSON."""
        rules = {
            "common": self.protocol.common(),
            "tasks": {task.name: task.rules() for task in self.tasks},
            "entrants": {entrant.name: entrant.rules() for entrant in self.entrants},
        }
        return dict(json.loads(json.dumps(rules)))

    def cells(self) -> list[tuple[LeagueTask, Entrant]]:
        """Every entrant on every task that it enters. Those that the task names come first, in its order."""
        found = []
        for task in self.tasks:
            entrants = [each for each in self.entrants if self.protocol.enters(each, task)]
            order = [*task.powers, *(each.name for each in entrants if each.name not in task.powers)]
            found += [(task, each) for each in sorted(entrants, key=lambda e: order.index(e.name))]
        return found


def check_folder(folder: Path, field: Field) -> None:
    """Write the protocol into a new folder, or see that the folder belongs to the protocol of this field.

    Tasks and entrants that the folder has not seen are added to its protocol.

    Raises:
        ValueError: the folder has results of another protocol; the message says in what they differ.
    """
    path, ours = folder / _FILE, field.rules()
    theirs = read_object(path) if there(path) else {"common": ours["common"], "tasks": {}, "entrants": {}}
    known = {**theirs["tasks"], **theirs["entrants"]}
    differing = [name for name, each in {**ours["tasks"], **ours["entrants"]}.items() if known.get(name, each) != each]
    if theirs["common"] != ours["common"]:
        differing.append("the rules for all")
    if differing:
        raise ValueError(
            f"{folder} holds results of another protocol: it differs in {', '.join(differing)}. "
            "Results of two protocols cannot be compared; give another folder with --out."
        )
    together = {part: {**theirs[part], **ours[part]} for part in ("common", "tasks", "entrants")}
    if together != theirs or not there(path):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(together, indent=1, ensure_ascii=False) + "\n")


def missing_packages(field: Field) -> dict[str, str]:
    """The package that an entrant needs and that is not installed, by entrant."""
    specs = [(each.name, spec) for each in field.entrants for spec in (each.spec_with(each.start), each.then) if spec]
    return {name: package for name, spec in specs if (package := missing_package(spec)) is not None}


def missing_data(field: Field) -> dict[str, str]:
    """Why a task that needs data has none, by task."""
    found = {}
    for task in field.tasks:
        if task.data and not task.problem.endswith("-tiny"):
            try:
                fresh_problem(task.problem, 0, "cpu")  # this process takes nothing of a GPU
            except DataError as error:
                found[task.name] = str(error)
    return found


def finished(results: Results) -> dict[str, Record]:
    """The finished runs by key."""
    return {record["key"]: record for record in results if isinstance(record.get("key"), str)}


def play(
    field: Field,
    folder: Path,
    *,
    jobs: int = 1,
    minutes: float | None = None,
    on_done: Callable[[LeagueRun, Record], None] | None = None,
) -> bool:
    """Make the runs that are missing, ``jobs`` at a time; those of the first cells begin first.

    Cells whose package or data is missing are left out, and so is what no longer fits into the budget of a task; the
    summary names both.

    Args:
        field: what is to be played.
        folder: where ``results.jsonl`` and the protocol are.
        jobs: the number of processes.
        minutes: no run begins after this time.
        on_done: called after each run.

    Returns:
        Whether all runs are there.
    """
    check_folder(folder, field)
    results = Results(folder / "results.jsonl")
    without = {*missing_packages(field), *missing_data(field)}
    cells = [(task, each) for task, each in field.cells() if not without & {task.name, each.name}]
    done = finished(results)
    spent = Counter[str]()
    for record in done.values():
        spent[record["task"]] += record["cost_s"]
    until = time.monotonic() + 60 * minutes if minutes is not None else math.inf
    running: set[str] = set()

    def ready() -> list[LeagueRun]:
        """The next runs of the first cells that can go on, as many as there are idle processes."""
        found: list[LeagueRun] = []
        for task, entrant in cells:
            if spent[task.name] < 60 * task.minutes:
                runs = next_runs(field.protocol, task, entrant, done, field.device)
                found += [replace(run, sharing=jobs) for run in runs if run.key not in running]
            if len(running) + len(found) >= jobs:
                break
        begun = found[: jobs - len(running)] if time.monotonic() < until else []
        running.update(run.key for run in begun)
        return begun

    def note(run: LeagueRun, record: Record) -> None:
        running.remove(run.key)
        done[run.key] = record
        spent[run.task.name] += record["cost_s"]
        if on_done is not None:
            on_done(run, record)

    with processes(jobs) as pool:
        run_as_ready(ready, execute, results, pool, on_done=note)
    return time.monotonic() < until
