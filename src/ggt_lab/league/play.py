"""Run what is missing of the league, in a folder that belongs to one protocol. After an interruption it goes on."""

import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.data.json_files import OBJECT, flaw, read_object, there
from ggt_lab.data.published_files import DataError
from ggt_lab.league.entrants import Entrant
from ggt_lab.league.execution import execute, fresh_problem
from ggt_lab.league.protocol import LeagueRun, Protocol, next_runs
from ggt_lab.league.records import read_runs
from ggt_lab.league.tasks import LeagueTask
from ggt_lab.optimizers.specs import missing_package
from ggt_lab.runs.process_pool import processes, run_as_ready
from ggt_lab.runs.results import Record, Results

__all__ = [
    "Field",
    "check_folder",
    "finished",
    "missing_data",
    "missing_packages",
    "own_runs",
    "play",
    "protocol_of",
    "spent_seconds",
    "unfinished",
]

_FILE, _RESULTS = "protocol.json", "results.jsonl"
_DIGEST = slice(-14, -2)
"""Where the hash of the protocol is in the key of a run."""


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

    def digests(self) -> set[str]:
        """The hashes of all that this protocol can run, in the field or beside it."""
        tasks, entrants = (*self.protocol.tasks, *self.tasks), (*self.protocol.entrants, *self.entrants)
        return {self.protocol.digest(task, entrant) for task in tasks for entrant in entrants}

    def cells(self) -> list[tuple[LeagueTask, Entrant]]:
        """Every entrant on every task that it enters. Those that the task names come first, in its order."""
        found = []
        for task in self.tasks:
            entrants = [each for each in self.entrants if self.protocol.enters(each, task)]
            order = [*task.powers, *(each.name for each in entrants if each.name not in task.powers)]
            found += [(task, each) for each in sorted(entrants, key=lambda e: order.index(e.name))]
        return found


def protocol_of(folder: Path) -> Record | None:
    """What ``protocol.json`` of a folder says: its rules for all, its tasks and its entrants; None if it is not there.

    Raises:
        ValueError: the file holds something else.
    """
    path = folder / _FILE
    if not there(path):
        return None
    try:
        found = read_object(path)
        wrong = flaw(found, dict.fromkeys(("common", "tasks", "entrants"), OBJECT))
    except ValueError as error:
        wrong = str(error)
    if wrong is not None:
        raise ValueError(
            f"{path} is not the protocol of a league: {wrong}. "
            "Remove this file if all results of the folder are of today's protocol, or give another folder with --out."
        )
    return found


def check_folder(folder: Path, field: Field, *, write: bool = True) -> None:
    """See that a folder belongs to the protocol of this field, and write the protocol into it.

    Tasks and entrants that the folder has not seen are added to its protocol.

    Args:
        folder: the folder; it need not be there.
        field: what is to be played.
        write: whether the protocol is written.

    Raises:
        ValueError: the folder has results of another protocol; the message says in what they differ.
    """
    ours, written = field.rules(), protocol_of(folder)
    theirs = written or {"common": ours["common"], "tasks": {}, "entrants": {}}
    known = {**theirs["tasks"], **theirs["entrants"]}
    differing = [name for name, each in {**ours["tasks"], **ours["entrants"]}.items() if known.get(name, each) != each]
    if theirs["common"] != ours["common"]:
        differing.append("the rules for all")
    foreign = _runs(field, folder)[1] if written is None else 0
    if differing or foreign:
        which = f"it differs in {', '.join(differing)}" if differing else f"{foreign} runs, and no {_FILE}"
        raise ValueError(
            f"{folder} holds results of another protocol: {which}. "
            "Results of two protocols cannot be compared; give another folder with --out."
        )
    together = {part: {**theirs[part], **ours[part]} for part in ("common", "tasks", "entrants")}
    if write and together != written:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _FILE, json.dumps(together, indent=1, ensure_ascii=False) + "\n")


def _runs(field: Field, folder: Path) -> tuple[dict[str, Record], int]:
    """The finished runs of this protocol by key, and the number of runs of other protocols."""
    digests = field.digests()
    needed = {task.name: {task.metric, task.tuned_by} for task in (*field.protocol.tasks, *field.tasks)}

    def lacking(record: Record) -> str:
        if record["key"][_DIGEST] not in digests:
            return ""
        numbers = needed.get(record["task"], set())
        return ", ".join(sorted(numbers)) if any(numbers - point.keys() for point in record["points"]) else ""

    found = read_runs(folder / _RESULTS, lacking)
    own = {key: record for key, record in found.items() if key[_DIGEST] in digests}
    return own, len(found) - len(own)


def own_runs(field: Field, folder: Path) -> dict[str, Record]:
    """The finished runs of this protocol by key; those of other protocols are left out, with a warning."""
    own, foreign = _runs(field, folder)
    if foreign:
        warnings.warn(f"{folder / _RESULTS}: {foreign} runs of another protocol are left out", stacklevel=1)
    return own


def spent_seconds(runs: Mapping[str, Record]) -> Counter[str]:
    """What the runs of each task took of its budget."""
    spent = Counter[str]()
    for run in runs.values():
        spent[run["task"]] += run["cost_s"]
    return spent


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
    results = Results(folder / _RESULTS)
    cells, done = _playable(field), own_runs(field, folder)
    spent = spent_seconds(done)
    until = time.monotonic() + 60 * minutes if minutes is not None else math.inf
    running: set[str] = set()

    def ready() -> list[LeagueRun]:
        """The next runs of the first cells that can go on, as many as there are idle processes."""
        found: list[LeagueRun] = []
        for task, entrant in cells:
            runs = _next_runs(field, task, entrant, done, spent)
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
    return not any(_next_runs(field, task, entrant, done, spent) for task, entrant in cells)


def unfinished(field: Field, folder: Path) -> int:
    """How many cells of a field still need runs that `play` would make."""
    done = own_runs(field, folder)
    spent = spent_seconds(done)
    return sum(bool(_next_runs(field, task, entrant, done, spent)) for task, entrant in _playable(field))


def _playable(field: Field) -> list[tuple[LeagueTask, Entrant]]:
    """The cells whose package and data are there."""
    without = {*missing_packages(field), *missing_data(field)}
    return [(task, entrant) for task, entrant in field.cells() if not without & {task.name, entrant.name}]


def _next_runs(
    field: Field, task: LeagueTask, entrant: Entrant, done: Mapping[str, Record], spent: Mapping[str, float]
) -> list[LeagueRun]:
    """The runs that a cell needs next; none when it has all of them, or the budget of its task is used up."""
    if spent.get(task.name, 0.0) >= 60 * task.minutes:
        return []
    return next_runs(field.protocol, task, entrant, done, field.device)
