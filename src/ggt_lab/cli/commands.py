"""All commands by name, and how one is run: options are read, and errors become words."""

import sys
from collections.abc import Sequence

from ggt_lab.cli.bench_command import BenchCommand
from ggt_lab.cli.calibrate_command import CalibrateCommand
from ggt_lab.cli.claims_command import ClaimsCommand
from ggt_lab.cli.list_command import ListCommand
from ggt_lab.cli.new_problem_command import NewProblemCommand
from ggt_lab.cli.options import read
from ggt_lab.cli.plan_command import PlanCommand
from ggt_lab.cli.race_command import RaceCommand
from ggt_lab.cli.report_command import ReportCommand
from ggt_lab.cli.reproduce_command import ReproduceCommand
from ggt_lab.cli.scale_command import ScaleCommand
from ggt_lab.cli.spectrum_command import SpectrumCommand
from ggt_lab.cli.terminal import say
from ggt_lab.cli.train_command import TrainCommand

__all__ = ["COMMANDS", "run_command"]

COMMANDS: dict[str, type] = {
    "race": RaceCommand,
    "reproduce": ReproduceCommand,
    "train": TrainCommand,
    "spectrum": SpectrumCommand,
    "report": ReportCommand,
    "claims": ClaimsCommand,
    "bench": BenchCommand,
    "plan": PlanCommand,
    "calibrate": CalibrateCommand,
    "scale": ScaleCommand,
    "list": ListCommand,
    "new-problem": NewProblemCommand,
}
"""Every command by name. A command imports what it works with when it runs: the names above cost little to import."""


def run_command(words: Sequence[str]) -> None:
    """Run the command that ``words`` name. A wrong option or an error of the user ends the program with status 2."""
    command = read(COMMANDS, words)
    try:
        command.run()
    except (ValueError, OSError) as error:
        say(f"error: {error}", style="bold red")
        sys.exit(2)
