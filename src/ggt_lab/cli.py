"""The command ``ggt``: picks what a person typed, and turns errors into words."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape

from ggt_lab.commands.bench import BenchCommand
from ggt_lab.commands.claims import ClaimsCommand
from ggt_lab.commands.console import console
from ggt_lab.commands.plan import PlanCommand
from ggt_lab.commands.race import RaceCommand
from ggt_lab.commands.report import ReportCommand
from ggt_lab.commands.reproduce import ReproduceCommand
from ggt_lab.commands.scale import ScaleCommand
from ggt_lab.commands.spectrum import SpectrumCommand
from ggt_lab.optimizers import optimizer_names
from ggt_lab.problems import problem_names, template
from ggt_lab.reproduce import experiment, experiment_names

__all__ = ["main"]


@dataclass(frozen=True)
class ListCommand:
    """List the built-in problems, the optimizers that need no import path, and the experiments."""

    def run(self) -> None:
        """Print them."""
        console.print("problems:    " + ", ".join(problem_names()))
        console.print("optimizers:  " + ", ".join(optimizer_names()))
        titles = (f"{name} ({experiment(name).title})" for name in experiment_names())
        console.print("experiments: " + ", ".join(titles))


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
        console.print(f"Wrote {self.path}. Try it: ggt race {self.path}")


def main() -> None:
    """Entry point of ``ggt``."""
    commands = (
        Annotated[RaceCommand, tyro.conf.subcommand("race")]
        | Annotated[ReproduceCommand, tyro.conf.subcommand("reproduce")]
        | Annotated[SpectrumCommand, tyro.conf.subcommand("spectrum")]
        | Annotated[ReportCommand, tyro.conf.subcommand("report")]
        | Annotated[ClaimsCommand, tyro.conf.subcommand("claims")]
        | Annotated[BenchCommand, tyro.conf.subcommand("bench")]
        | Annotated[PlanCommand, tyro.conf.subcommand("plan")]
        | Annotated[ScaleCommand, tyro.conf.subcommand("scale")]
        | Annotated[ListCommand, tyro.conf.subcommand("list")]
        | Annotated[NewProblemCommand, tyro.conf.subcommand("new-problem")]
    )
    command = tyro.cli(commands, prog="ggt", description="Full-matrix adaptive optimization: races and experiments.")
    try:
        command.run()
    except (ValueError, OSError) as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
