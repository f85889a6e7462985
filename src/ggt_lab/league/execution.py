"""One run of the league, in this process."""

import gc
import math
import time
from typing import Any

import torch

from ggt_lab.league.protocol import LeagueRun
from ggt_lab.league.steppers import make_stepper
from ggt_lab.problems import Problem, problem_class
from ggt_lab.runs.results import Record
from ggt_lab.runs.training_loop import seed_everything

__all__ = ["execute", "fresh_problem"]

_GIVE_UP = 10  # moves in a row that are not finite


def fresh_problem(name: str, seed: int, device: str) -> Problem:
    """A problem with an equal start and equal batches for everybody who has this seed."""
    seed_everything(seed)
    problem = problem_class(name)(seed, torch.device(device))
    seed_everything(seed)
    return problem


def execute(run: LeagueRun) -> Record:
    """Train, and evaluate ``run.evaluations`` times at even distances, the last time at the end.

    Returns:
        The run as a record. Its ``points`` are the evaluations, ``skipped`` counts moves that were not finite, and
        ``cost_s`` is the time that the budget is charged: seconds of the core; on a GPU seconds of the clock,
        divided by the number of runs that share it.
    """
    clock = time.process_time if run.device == "cpu" else time.perf_counter
    began = clock()
    if run.device != "cpu":  # the memory of the run before this one belongs to everybody who shares the device
        gc.collect()
        torch.cuda.empty_cache()
    problem = fresh_problem(run.task.problem, run.seed, run.device)
    stepper = make_stepper(
        problem,
        run.entrant,
        dict(run.settings),
        run.lr,
        run.steps,
        warm_up=run.task.warm_up or 0.0,
        schedule=run.task.schedule or "cosine",
    )
    marks = sorted({math.ceil(run.steps * k / run.evaluations) for k in range(1, run.evaluations + 1)}, reverse=True)
    points = [_point(problem, 0)] if run.evaluations > 1 else []
    done = skipped = in_a_row = 0
    status = "done"
    while done < run.steps and status == "done":
        try:
            move = stepper.move(done)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            status = "diverged"  # an optimizer's own decomposition failed: its matrices are not finite
            break
        done += move.gradients
        skipped += not move.finite
        in_a_row = 0 if move.finite else in_a_row + 1
        if in_a_row >= _GIVE_UP:
            status = "diverged"
        elif done >= marks[-1]:
            while marks and done >= marks[-1]:  # L-BFGS may pass several
                mark = marks.pop()
            # What is left over at the end of L-BFGS was undone: the point is that of the last mark.
            points.append(_point(problem, min(done, run.steps) if marks else mark))
            if not all(math.isfinite(points[-1].get(name, math.nan)) for name in (run.task.metric, run.task.tuned_by)):
                points.pop()
                status = "diverged"
    return {
        **{"task": run.task.name, "entrant": run.entrant.name, "lr": run.lr, "settings": dict(run.settings)},
        **{
            "seed": run.seed,
            "steps": run.steps,
            "device": run.device,
            "spec": run.entrant.spec_with(dict(run.settings)),
        },
        **{"status": status, "skipped": skipped, "points": points},
        "cost_s": round((clock() - began) / (1 if run.device == "cpu" else run.sharing), 2),
    }


def _point(problem: Problem, step: int) -> dict[str, Any]:
    """An evaluation: the step, and the finite numbers of the problem to six digits."""
    with torch.no_grad():
        numbers = problem.evaluate()
    return {"step": step, **{name: float(f"{v:.6g}") for name, v in numbers.items() if math.isfinite(v)}}
