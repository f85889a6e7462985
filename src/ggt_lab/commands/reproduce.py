"""``ggt reproduce``."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tyro
from rich.table import Table

from ggt_lab.commands.console import all_cores, console, progress_bar
from ggt_lab.reproduce import Settings, chosen_experiment, default_folder, reproduce
from ggt_lab.results import command_line
from ggt_lab.verdict import Verdict

__all__ = ["ReproduceCommand"]

_WORDS = {True: "[green]holds[/]", False: "[red]does not hold[/]", None: "undecided"}


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce an experiment of the paper, and judge its claims by the results. Run again to go on."""

    name: tyro.conf.Positional[str]
    """One of the paper's claims: S1, S2, T1, T2, T3, P1, R1, R2, R3, C1, A1, A2, R4 or E1 (see `ggt list`)."""
    entrants: tuple[str, ...] = ()
    """Of a deep experiment, only these optimizers (of E1: models); what was run before is not lost."""
    epochs: int | None = None
    """Of a deep experiment, the length of the full runs."""
    set: tuple[str, ...] = ()
    """Settings of a deep experiment's problem: `--set batch=512 weight_drop=0.5`; smoke tests have their own."""
    step_times: Path | None = None
    """A folder of `ggt bench --what training`: claims about seconds are judged by the step times in it."""
    seeds: int | None = None
    """How many seeds; the experiment knows by itself."""
    smoke: bool = False
    """Tiny sizes: shows in a minute that everything works, and nothing else."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """Where the deep experiments are trained."""
    data: Path | None = None
    """A folder that holds the data of the deep experiments; it is downloaded otherwise."""
    seconds: float = math.inf
    """Stop the deep experiments after so many seconds; the same command goes on."""
    workers: int = field(default_factory=all_cores)
    """Runs at a time."""
    out: Path | None = None
    """Folder of the results; out/reproduce/NAME by default."""

    def run(self) -> None:
        """Run, judge, draw."""
        chosen = chosen_experiment(
            self.name, entrants=self.entrants, epochs=self.epochs, changes=self.set, step_times=self.step_times
        )
        if self.data is not None:
            os.environ["GGT_DATA"] = str(self.data.resolve())  # the processes that train inherit it
        folder = self.out or default_folder(self.name, smoke=self.smoke)
        seeds = self.seeds or (1 if self.smoke else chosen.seeds)
        with progress_bar(folder / "results.jsonl") as report:
            outcome = reproduce(
                chosen,
                folder,
                Settings(seeds, smoke=self.smoke, device=self.device, deadline=time.monotonic() + self.seconds),
                command=command_line(),
                workers=self.workers,
                progress=report,
            )
        if outcome.left:
            console.print(f"Time is up: {outcome.left} runs are left. The same command goes on from where they are.")
            return
        console.print(_table(f"{chosen.name}: {chosen.title}", outcome.verdicts))
        if self.smoke:
            console.print("These are tiny sizes: nothing about the claims is decided.")
        figures = ", ".join(str(figure.path) for figure in outcome.figures)
        console.print(f"Results: {outcome.results}\nFigures: {figures}\nA page with all of it: ggt report {folder}")


def _table(title: str, verdicts: Sequence[Verdict]) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    for heading in ("claim", "", "paper", "ours", "n"):
        table.add_column(heading)
    for verdict in verdicts:
        ours = verdict.ours + (f"; {verdict.spread}" if verdict.spread else "")
        table.add_row(verdict.statement, _WORDS[verdict.holds], verdict.paper, ours, str(verdict.n))
    return table
