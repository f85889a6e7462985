"""Would a momentum below 0.8 change the small tasks of the league? Nobody was offered one.

    python benchmarks/lower_momentum.py OUT [--league records/2026-11-18-league-second] [--task curves]

AdamW, Muon, NorMuon, SOAP, their whitened forms and our deep member get two trials more, with momenta 0.7 and 0.5, on
every task on which their trials chose 0.8. All other settings stay. Where such a trial is the lowest, five fresh runs
follow. OUT/results.jsonl has a line for each run; the command goes on. It needs pytorch_optimizer and some minutes.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ggt_lab.cli.terminal import say
from ggt_lab.league.cells import cell_of
from ggt_lab.league.entrants import BASELINES, RECOMMENDED_DEEP
from ggt_lab.league.execution import execute
from ggt_lab.league.play import Field
from ggt_lab.league.protocol import PROTOCOL, LeagueRun, best_trial, fresh_runs, trials_of
from ggt_lab.league.tasks import SMALL, LeagueTask
from ggt_lab.runs.results import Record, Results

ENTRANTS = (*BASELINES, *(f"whiten-{name}" for name in BASELINES), RECOMMENDED_DEEP)
OFFERED, LOWER = 0.8, (0.7, 0.5)
FIELD = Field(PROTOCOL, SMALL, tuple(map(PROTOCOL.entrant, ENTRANTS)))


def with_momentum(run: LeagueRun, momentum: float) -> LeagueRun:
    """The run with another momentum."""
    return replace(run, settings=tuple(sorted({**dict(run.settings), "momentum": momentum}.items())))


def again(task: LeagueTask, name: str, league: Mapping[str, Record], run: Callable[[LeagueRun], Record]) -> str | None:
    """The line of the table for a cell; None if its trials did not choose the lowest momentum that was offered."""
    entrant = PROTOCOL.entrant(name)
    best = best_trial(trials_of(PROTOCOL, task, entrant, league), league)
    if best is None or dict(best.settings).get("momentum") != OFFERED:
        return None
    trials = [best, *(with_momentum(best, momentum) for momentum in LOWER)]
    known = {**league, **{trial.key: run(trial) for trial in trials[1:]}}
    chosen = best_trial(trials, known)
    cell = cell_of(FIELD, task, entrant, league)
    if chosen is None or chosen == best:
        return f"| {task.name} | {entrant.title} | {OFFERED:g} | {cell.mean:.2g} | – | – |"
    ends = [run(each)["points"][-1][task.metric] for each in fresh_runs(PROTOCOL, task, entrant, chosen)]
    lower = replace(cell, values=tuple(ends))
    momentum = dict(chosen.settings)["momentum"]
    return (
        f"| {task.name} | {entrant.title} | {momentum:g} | {cell.mean:.2g} | {lower.mean:.2g} | "
        f"{lower.apart(cell) if math.isfinite(lower.mean) else math.inf:+.1f} |"
    )


def main() -> None:
    """Make the runs that are missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--league", type=Path, default=Path("records/2026-11-18-league-second"))
    parser.add_argument("--task", nargs="+", choices=[task.name for task in SMALL], default=[t.name for t in SMALL])
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    results = Results(given.out / "results.jsonl")
    done = {record["key"]: record for record in results}

    def run(each: LeagueRun) -> Record:
        if each.key not in done:
            done[each.key] = json.loads(json.dumps({"key": each.key, **execute(each)}))
            results.append(done[each.key])
            say(str(each))
        return done[each.key]

    league = {record["key"]: record for record in Results(given.league / "results.jsonl")}
    heading = "| task | optimizer | momentum chosen now | in the league | with it | standard errors above |"
    cells = [again(task, name, league, run) for task in SMALL if task.name in given.task for name in ENTRANTS]
    words = "\n".join([heading, "|---|---|---|---|---|---|", *(cell for cell in cells if cell is not None)])
    (given.out / "table.md").write_text(words + "\n")
    say(words)


if __name__ == "__main__":
    main()
