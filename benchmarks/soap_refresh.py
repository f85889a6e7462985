"""Does SOAP lose because it refreshes its matrices at every tenth step? The league's small tasks with SOAP again.

    python benchmarks/soap_refresh.py OUT [--league records/2026-11-18-league-second] [--task convection]

`whiten` has a new matrix at every step, and SOAP a new one at every tenth step, as published. Here SOAP refreshes at
every step, with the trials and the fresh seeds of the league's protocol. OUT/results.jsonl has a line for each run; the
command goes on. It needs pytorch_optimizer and some minutes.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from ggt_lab.cli.terminal import say
from ggt_lab.league.cells import Cell, cell_of
from ggt_lab.league.execution import execute
from ggt_lab.league.play import Field
from ggt_lab.league.protocol import PROTOCOL, next_runs
from ggt_lab.league.tasks import SMALL
from ggt_lab.runs.results import Results

SOAP = PROTOCOL.entrant("soap")
OFTEN = replace(
    SOAP,
    name="soap-often",
    title="SOAP, a refresh at every step",
    spec=SOAP.spec.removesuffix(")") + ", precondition_frequency=1)",
)
FIELD = Field(replace(PROTOCOL, entrants=(OFTEN,)), SMALL, (OFTEN,))


def table(cells: list[Cell], league: Path) -> str:
    """Markdown: the geometric mean of the metric, by task."""
    summary = json.loads((league / "league.json").read_text())
    known = {(cell["task"], cell["entrant"]): cell["mean"] for cell in summary["cells"]}
    whitened = summary["recommended"]
    lines = ["| task | SOAP | SOAP, a refresh at every step | whiten(SOAP) |", "|---|---|---|---|"]
    for cell in cells:
        means = (known[cell.task, SOAP.name], cell.mean, known[cell.task, whitened])
        lines.append(f"| {cell.task} | {' | '.join(f'{mean:.2g}' for mean in means)} |")
    return "\n".join(lines)


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
    tasks = [task for task in SMALL if task.name in given.task]
    for task in tasks:
        while runs := next_runs(FIELD.protocol, task, OFTEN, done):
            for run in runs:
                done[run.key] = {"key": run.key, **execute(run)}
                results.append(done[run.key])
                say(str(run))
    words = table([cell_of(FIELD, task, OFTEN, done) for task in tasks], given.league)
    (given.out / "table.md").write_text(words + "\n")
    say(words)


if __name__ == "__main__":
    main()
