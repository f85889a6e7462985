"""Does single precision decide who solves an equation? Runs of the league again, in float64.

    python benchmarks/equations_in_float64.py OUT [--league records/2026-11-18-league-second] [--task convection]

Quasi-Newton methods are used in float64 by habit, and the league is in float32 for everybody. Here its equations have
float64 parameters, points and solutions; the starts are the float32 numbers. Every entrant has the settings that its
float32 trials chose, and the seeds are three of the league's. So the table says how much a precision changes, and not
who would win if everybody were tuned in float64. OUT/results.jsonl has a line for each run; the command goes on.
"""

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import torch

from ggt_lab.cli.terminal import say
from ggt_lab.league.execution import execute
from ggt_lab.league.protocol import PROTOCOL, LeagueRun
from ggt_lab.problems import problem_class
from ggt_lab.problems.registry import register
from ggt_lab.runs.results import Results

TASKS = ("poisson", "burgers", "allen-cahn", "convection")
ENTRANTS = ("muon", "soap", "lbfgs", "ssbroyden", "ssbfgs", "whiten-muon", "whiten-normuon", "whiten-soap")
SEEDS = PROTOCOL.seeds[:3]


def in_float64(name: str) -> str:
    """Register the equation with float64 numbers, and return the name of this problem."""
    base = problem_class(name)

    @register(f"{name}-float64")
    class Float64(base):  # type: ignore[misc, valid-type]
        def __init__(self, seed: int, device: torch.device) -> None:
            super().__init__(seed, device)
            for part in ("inputs", "known", "exact", "_grid"):
                setattr(self, part, getattr(self, part).double())
            self.network.double()

    return f"{name}-float64"


def runs(league: Path, tasks: list[str]) -> list[LeagueRun]:
    """The league's runs of three seeds, with the problem in float64."""
    cells = {(c["task"], c["entrant"]): c for c in json.loads((league / "league.json").read_text())["cells"]}
    found = []
    for name in tasks:
        task = replace(PROTOCOL.task(name), problem=in_float64(PROTOCOL.task(name).problem))
        for entrant in ENTRANTS:
            cell = cells[name, entrant]
            power, settings = round(2 * math.log10(cell["lr"])), tuple(sorted(cell["settings"].items()))
            digest = PROTOCOL.digest(task, PROTOCOL.entrant(entrant))
            found += [
                LeagueRun(task, PROTOCOL.entrant(entrant), power, settings, seed, task.steps, 2, digest)
                for seed in SEEDS
            ]
    return found


def table(results: list[dict], league: Path) -> str:
    """Markdown: the geometric mean of the metric in float32 and in float64, by task and entrant."""
    rows = []
    single = {(r["task"], r["entrant"], r["seed"]): r for r in Results(league / "results.jsonl") if r["seed"] in SEEDS}
    for task in TASKS:
        metric = PROTOCOL.task(task).metric
        for entrant in ENTRANTS:
            double = {r["seed"]: r for r in results if (r["task"], r["entrant"]) == (task, entrant)}
            if set(double) != set(SEEDS):
                continue
            both = ([single[task, entrant, seed] for seed in SEEDS], [double[seed] for seed in SEEDS])
            words = [
                f"{geometric_mean(max(r['points'][-1][metric], 1e-12) for r in of):.2g}"
                if all(r["status"] == "done" for r in of)
                else "diverged"
                for of in both
            ]
            rows.append(f"| {task} | {PROTOCOL.entrant(entrant).title} | {' | '.join(words)} |")
    return "\n".join(["| task | optimizer | float32 | float64 |", "|---|---|---|---|", *rows])


def main() -> None:
    """Make the runs that are missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--league", type=Path, default=Path("records/2026-11-18-league-second"))
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    results = Results(given.out / "results.jsonl")
    done = {record["key"] for record in results}
    for run in runs(given.league, given.task):
        if run.key not in done:
            record = execute(run)
            results.append({"key": run.key, **record})
            say(f"{run}: {record['points'][-1] if record['points'] else record['status']}")
    words = table(list(results), given.league)
    (given.out / "table.md").write_text(words + "\n")
    say(words)


if __name__ == "__main__":
    main()
