"""The seconds of a race: steps times the time of a step that all optimizers took in turns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import Standing
from ggt_lab.runs.training_loop import loss_gradients, seed_everything, training_steps
from ggt_lab.runs.turns import seconds_in_turns
from ggt_lab.runs.users_code import problem_of, running

__all__ = ["recommendation", "step_seconds", "with_seconds"]

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


def recommendation(best: Sequence[Standing], metric: str, seeds: int) -> str:
    """What to use on this problem, in words, and how sure that is.

    A lead is clear if it is larger than the spread over seeds of the first and of the second.

    Args:
        best: what `standings` returned, the best first.
        metric: the name of the metric.
        seeds: how many seeds there are.
    """
    first = best[0]
    if first.final == float("inf"):
        return "No recommendation: every optimizer diverged. Try lower learning rates."
    words = f"Recommended on this problem: {first.optimizer} with lr {first.lr:g} ({metric} {first.final:.4g})."
    if len(best) > 1 and best[1].final < float("inf"):
        second = best[1]
        near = second.final - first.final <= max(first.spread, second.spread)
        doubt = "one seed decides nothing" if seeds < 2 else "a lead within the spread of the seeds" if near else ""
        words += f" Next: {second.optimizer} with lr {second.lr:g} ({second.final:.4g})" + (
            f", {doubt}." if doubt else "."
        )
    if first.at_edge:
        words += " Its learning rate is at the edge of its grid: race again with --widen 3."
    return words
