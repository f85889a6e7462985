"""All commands by name, and how one is run: options are read, and errors become words."""

import difflib
import sys
import warnings
from collections.abc import Sequence

from ggt_lab.cli.bench_command import BenchCommand
from ggt_lab.cli.calibrate_command import CalibrateCommand
from ggt_lab.cli.claims_command import ClaimsCommand
from ggt_lab.cli.league_command import LeagueCommand
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
from ggt_lab.cli.versions import versions

__all__ = ["COMMANDS", "run_command"]

COMMANDS: dict[str, type] = {
    "race": RaceCommand,
    "league": LeagueCommand,
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
"""Every command by name. A command imports what it works with when it runs: these imports take a tenth of a second."""


_EXTRAS = {
    **dict.fromkeys(
        ("jinja2", "markupsafe", "matplotlib", "numpy", "plotly", "rich", "scipy", "sklearn", "tyro"), "lab"
    ),
    **dict.fromkeys(("pytorch_optimizer", "torchzero"), "bench"),
}
"""The extra of torch-ggt that installs a package, by the name under which the package is imported."""


def run_command(words: Sequence[str]) -> None:
    """Run the command that ``words`` name.

    The program ends with status 2 after a wrong option or an error of the user, and with status 1 after an error in
    the user's own code, in which case the line of that code comes first.
    """
    if list(words) in (["--version"], ["-V"]):
        say(versions())
        return
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        _fail(_unknown_command(words[0]), status=2)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        _run(words)


def _run(words: Sequence[str]) -> None:
    try:
        read(COMMANDS, words).run()
    except BrokenPipeError:  # `main` knows what to do
        raise
    except (ValueError, OSError) as error:
        _fail(f"{error}{_install(error.__cause__)}", status=2)
    except ModuleNotFoundError as error:
        _fail(_missing_package(error, words[0]), status=2)
    except RuntimeError as error:
        _fail_in_a_run(error)


def _fail(words: str, *, status: int) -> None:
    say(f"error: {words}", style="bold red")
    sys.exit(status)


def _unknown_command(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), COMMANDS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(COMMANDS)}."
    return f"unknown command {name!r}: {hint} `ggt --help` says what each does."


def _install(cause: BaseException | None) -> str:
    """How to install the package that an error comes from, if one of our extras has it."""
    extra = _EXTRAS.get((cause.name or "").partition(".")[0]) if isinstance(cause, ModuleNotFoundError) else None
    return f". Install it: pip install 'torch-ggt[{extra}]'" if extra else ""


def _missing_package(error: ModuleNotFoundError, command: str) -> str:
    """Which extra to install."""
    package = (error.name or "").partition(".")[0]
    if package == "torch":
        return f"`ggt {command}` needs torch, which is not installed: see https://pytorch.org/get-started/locally"
    if package not in _EXTRAS:
        raise error  # not a package of ours
    return (
        f"`ggt {command}` needs {package}, which is not installed. "
        f"Install the packages of the lab: pip install 'torch-ggt[{_EXTRAS[package]}]'"
    )


def _fail_in_a_run(error: RuntimeError) -> None:
    """End after an error in a run: the user's own line first, then the error, then the way to it."""
    from ggt_lab.runs.process_pool import TaskError
    from ggt_lab.runs.users_code import ProblemError

    if isinstance(error, TaskError):
        _fail(str(error), status=1)
    if not isinstance(error, ProblemError):
        raise error
    say(f"error: {error.place or error.what}", style="bold red")
    if error.place:
        say(error.what)
    if error.trace:
        print(f"\n{error.trace.rstrip()}", file=sys.stderr)
    sys.exit(1)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """A warning as a person reads it, without the line of our code that gave it."""
    kind = "" if issubclass(category, UserWarning) else f"{category.__name__}: "
    print(f"warning: {kind}{message}", file=sys.stderr, flush=True)
