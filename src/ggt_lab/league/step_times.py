"""The time of a step of every entrant on a task, taken in turns, so that a busy machine cannot favour one of them.

Each round times all entrants one after the other. The time of an entrant is its median over the rounds. A round has 20
steps: two whole cycles of an optimizer that refreshes its matrices at every tenth step.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ggt_lab.league.execution import fresh_problem
from ggt_lab.league.play import Field, missing_packages
from ggt_lab.league.records import read_times
from ggt_lab.league.steppers import Stepper, make_stepper
from ggt_lab.league.tasks import LeagueTask
from ggt_lab.runs.process_pool import processes, run_as_ready
from ggt_lab.runs.results import Record, Results
from ggt_lab.runs.turns import seconds_in_turns

__all__ = ["TimedTask", "measure", "timed"]

_STEPS = 20
_ADAM_STEPS = 100


@dataclass(frozen=True)
class TimedTask:
    """The step times of one task: something to be done once."""

    field: Field
    task: LeagueTask
    rounds: int

    @property
    def key(self) -> str:
        """The timing in words, with a hash of the entrants."""
        names = [entrant.name for task, entrant in self.field.cells() if task == self.task]
        digests = [self.field.protocol.digest(self.task, self.field.protocol.entrant(name)) for name in names]
        digest = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12]
        return json.dumps(["league times", self.task.name, self.rounds, self.field.device, digest])

    def __str__(self) -> str:
        return f"step times, {self.task.name}"


def measure(field: Field, tasks: Sequence[LeagueTask], rounds: int, folder: Path) -> None:
    """Add the step times of these tasks to ``times.jsonl`` of a folder, as far as they are not there."""
    path = folder / "times.jsonl"
    there = read_times(path)
    left = [job for job in (TimedTask(field, task, rounds) for task in tasks) if job.key not in there]
    with processes(1) as pool:  # one process: nothing of ours runs beside it
        run_as_ready(lambda: [left.pop(0)] if left else [], timed, Results(path), pool)


def timed(job: TimedTask) -> Record:
    """The median seconds of a gradient and a step, by entrant. The number of rounds is in the record."""
    field, task = job.field, job.task
    without = missing_packages(field)
    entrants = [each for one, each in field.cells() if one == task and each.name not in without]
    endless = 10**9  # so that the schedule stays where it begins
    steppers = {}
    for entrant in entrants:
        problem = fresh_problem(task.problem, field.protocol.tuning_seed, field.device)
        # Of "Adam, then …" the dearer part is timed. From a random start that part may stop, which costs no time.
        share = {"share": _ADAM_STEPS / endless} if "share" in entrant.start else {}
        # A low rate: the time of a step does not depend on it, and nothing diverges. L-BFGS searches its own step.
        rate = 1.0 if entrant.kind == "L-BFGS" else 1e-3 if share else 1e-4
        steppers[entrant.name] = make_stepper(problem, entrant, {**entrant.start, **share}, rate, endless)
        for done in range(_ADAM_STEPS if share else 0):
            steppers[entrant.name].move(done)
    movers = {name: _mover(stepper) for name, stepper in steppers.items()}
    found = seconds_in_turns(movers, rounds=job.rounds, device=field.device)
    return {"task": task.name, "step_seconds": found, "rounds": job.rounds}


def _mover(stepper: Stepper) -> Callable[[], int]:
    def move() -> int:
        """About 20 gradients; L-BFGS takes several at once."""
        done = 0
        while done < _STEPS:
            done += stepper.move(_ADAM_STEPS + done).gradients
        return done

    return move
