"""The command ``ggt``: what a person types, shown with progress and tables. All work is done elsewhere."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ggt_lab.figures.curves import draw_curves
from ggt_lab.optimizers import optimizer_names
from ggt_lab.problems import problem_names, template
from ggt_lab.race import grid, race, standings
from ggt_lab.results import Record, Results

__all__ = ["main"]

_console = Console()


@dataclass(frozen=True)
class RaceCommand:
    """Race optimizers on a problem: the same starts, the same data, tuned learning rates. Run again to go on."""

    problem: tyro.conf.Positional[str]
    """A built-in problem (see `ggt list`), or a Python file of your own (see `ggt new-problem`)."""
    optimizers: tuple[str, ...] = ("SGD(momentum=0.9)", "Adam", "GGT")
    """Names, with or without options: GGT "GGT(window=50)" "torch.optim.AdamW(weight_decay=0.1)"."""
    lrs: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    """The grid of learning rates, for every optimizer."""
    seeds: int = 3
    """How many seeds."""
    steps: int | None = None
    """How long a run is; the problem knows by itself."""
    device: str = "cpu"
    """cpu or cuda."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Runs at a time."""
    out: Path | None = None
    """Folder of the results; out/race/PROBLEM by default."""

    def run(self) -> None:
        """Race, then show where everyone stands."""
        folder = self.out or Path("out/race") / Path(self.problem).stem
        results = Results(folder / "results.jsonl")
        rates = dict.fromkeys(self.optimizers, self.lrs)
        runs = grid(self.problem, rates, range(self.seeds), steps=self.steps, device=self.device)
        left = len({run.key for run in runs} - results.finished())
        if left < len(runs):
            _console.print(f"{len(runs) - left} of {len(runs)} runs are finished already")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        try:
            with Progress(*columns, console=_console) as progress:
                task = progress.add_task("racing", total=left)
                race(
                    runs,
                    results,
                    workers=self.workers,
                    on_done=lambda run, _: progress.update(
                        task, advance=1, description=f"{run.optimizer}, lr {run.lr:g}, seed {run.seed}"
                    ),
                )
        except KeyboardInterrupt:
            _console.print(
                f"\nInterrupted. What is finished is in {results.path}; the same command goes on from there."
            )
            sys.exit(130)
        keys = {run.key for run in runs}
        records = [record for record in results if record.get("key") in keys]
        _console.print(_table(self.problem, records))
        files = draw_curves(
            records,
            folder / "curves",
            title=f"{self.problem}: best learning rate of each; mean and range over {self.seeds} seeds",
        )
        _console.print(f"Results: {results.path}\nCurves: {', '.join(map(str, files))}")


@dataclass(frozen=True)
class ListCommand:
    """List the built-in problems and the optimizers that need no import path."""

    def run(self) -> None:
        """Print both."""
        _console.print("problems:   " + ", ".join(problem_names()))
        _console.print("optimizers: " + ", ".join(optimizer_names()))


@dataclass(frozen=True)
class NewProblemCommand:
    """Write a template for a problem of your own."""

    path: tyro.conf.Positional[Path] = Path("my_problem.py")
    """The file to write; an existing one is left alone."""

    def run(self) -> None:
        """Copy the template."""
        if self.path.exists():
            raise ValueError(f"{self.path} exists already; choose another name")
        self.path.write_text(Path(template.__file__).read_text())
        _console.print(f"Wrote {self.path}. Try it: ggt race {self.path}")


def _table(problem: str, records: list[Record]) -> Table:
    table = Table(title=f"{problem}: best learning rate of each optimizer, by final {records[0]['metric']}")
    for heading in ("optimizer", "lr", "final", "± seeds", "mean per step", "mean per second"):
        is_name = heading == "optimizer"  # a name cut short is no name: let the other columns wrap
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=is_name)
    for standing in standings(records):
        notes = " (edge of the grid)" if standing.at_edge else ""
        notes += f" ({standing.diverged} diverged)" if standing.diverged else ""
        numbers = (standing.final, standing.spread, standing.per_step, standing.per_second)
        table.add_row(standing.optimizer, f"{standing.lr:g}{notes}", *(f"{number:.4g}" for number in numbers))
    return table


def main() -> None:
    """Entry point of ``ggt``."""
    commands = (
        Annotated[RaceCommand, tyro.conf.subcommand("race")]
        | Annotated[ListCommand, tyro.conf.subcommand("list")]
        | Annotated[NewProblemCommand, tyro.conf.subcommand("new-problem")]
    )
    command = tyro.cli(commands, prog="ggt", description="Full-matrix adaptive optimization: races and experiments.")
    try:
        command.run()
    except ValueError as error:
        _console.print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
