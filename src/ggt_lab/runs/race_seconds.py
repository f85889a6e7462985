"""The seconds of a race: steps times the time of a step that all optimizers took in turns."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.data.json_files import POSITIVE, flaw, read_object
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import Standing
from ggt_lab.runs.training_loop import loss_gradients, seed_everything, training_steps
from ggt_lab.runs.turns import seconds_in_turns
from ggt_lab.runs.users_code import problem_of, running

__all__ = ["STEP_SECONDS", "read_step_seconds", "step_seconds", "with_seconds", "write_step_seconds"]

_STEPS, _ROUNDS = 10, 5


def step_seconds(problem: str, best: Sequence[Standing], *, device: str = "cpu") -> dict[str, float]:
    """The seconds of a step of each optimizer at its best learning rate, taken in turns."""

    def mover(spec: str, lr: float) -> Callable[[], int]:
        seed_everything(0)
        made = problem_of(problem)(0, torch.device(device))
        optimizer = optimizer_factory(spec)(made.parameters(), lr)
        steps = training_steps(optimizer, loss_gradients(optimizer, made.loss), last=_STEPS * (_ROUNDS + 1))

        def move() -> int:
            return sum(1 for _ in zip(range(_STEPS), steps, strict=False))

        return move

    with running(problem, f"the time of a step on {problem}"):
        movers = {standing.optimizer: mover(standing.optimizer, standing.lr) for standing in best}
        return seconds_in_turns(movers, rounds=_ROUNDS, device=device)


def with_seconds(records: Sequence[Record], seconds: Mapping[str, float]) -> list[Record]:
    """Copies of the records in which the seconds of every point are its step times the time of a step."""

    def point_of(record: Record, point: dict[str, Any]) -> dict[str, Any]:
        return {**point, "seconds": point["step"] * seconds[record["optimizer"]]}

    return [{**record, "curve": [point_of(record, point) for point in record["curve"]]} for record in records]


STEP_SECONDS = "step_seconds.json"
"""The file of `write_step_seconds`."""


def write_step_seconds(folder: Path, seconds: Mapping[str, float]) -> Path:
    """Write the seconds of a step by optimizer, beside the results of a race; a report takes them from there."""
    return write_atomically(folder / STEP_SECONDS, json.dumps(dict(seconds), indent=1) + "\n")


def read_step_seconds(path: Path) -> dict[str, float]:
    """What `write_step_seconds` wrote.

    Raises:
        ValueError: the file holds something else.
    """
    content = read_object(path)
    found = flaw(content, dict.fromkeys(content, POSITIVE))
    if found is not None:
        raise ValueError(found)
    return content
