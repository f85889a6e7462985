"""``ggt reproduce``."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.table import Table

from ggt_lab.commands.console import all_cores, console, progress_bar
from ggt_lab.reproduce import Settings, experiment, reproduce
from ggt_lab.verdict import Verdict

__all__ = ["ReproduceCommand"]

_WORDS = {True: "[green]holds[/]", False: "[red]does not hold[/]", None: "undecided"}


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce an experiment of the paper, and judge its claims by the results. Run again to go on."""

    name: tyro.conf.Positional[str]
    """S1, S2, T1, T2, T3 or P1: the names of the paper's claims (see `ggt list`)."""
    seeds: int | None = None
    """How many seeds; the experiment knows by itself."""
    smoke: bool = False
    """Tiny sizes: shows in a minute that everything works, and nothing else."""
    workers: int = field(default_factory=all_cores)
    """Runs at a time."""
    out: Path | None = None
    """Folder of the results; out/reproduce/NAME by default."""

    def run(self) -> None:
        """Run, judge, draw."""
        chosen = experiment(self.name)
        folder = self.out or Path("out/reproduce") / (self.name + ("-smoke" if self.smoke else ""))
        seeds = self.seeds or (1 if self.smoke else chosen.seeds)
        with progress_bar(folder / "results.jsonl") as report:
            outcome = reproduce(
                chosen,
                folder,
                Settings(seeds, smoke=self.smoke),
                command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                workers=self.workers,
                progress=report,
            )
        console.print(_table(f"{chosen.name}: {chosen.title}", outcome.verdicts))
        if self.smoke:
            console.print("These are tiny sizes: the verdicts above say nothing about the claims.")
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
