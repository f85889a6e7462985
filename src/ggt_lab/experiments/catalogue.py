"""The experiments of the paper by name, as ``ggt reproduce S1`` names them."""

import ast
from collections.abc import Sequence
from pathlib import Path

from ggt_lab.experiments.deep_experiments import DEEP_EXPERIMENTS
from ggt_lab.experiments.deep_race import DeepRace
from ggt_lab.experiments.experiment import Experiment, Reproduction, Settings, reproduce
from ggt_lab.experiments.spectra_over_training import SpectraOverTraining
from ggt_lab.experiments.wall_clock_claims import read_step_times
from ggt_lab.problems.unknown_name import unknown

__all__ = [
    "Experiment",
    "Reproduction",
    "Settings",
    "chosen_experiment",
    "default_folder",
    "experiment",
    "experiment_names",
    "reproduce",
]

_ON_A_CPU = ("S1", "S2", "T1", "T2", "T3", "P1", "P2")
_DEEP: dict[str, DeepRace | SpectraOverTraining] = {each.name: each for each in DEEP_EXPERIMENTS}


def experiment_names() -> list[str]:
    """The names of all experiments."""
    return [*_ON_A_CPU, *_DEEP]


def default_folder(name: str, *, smoke: bool) -> Path:
    """The folder of the results, unless the user names one. A smoke test has a folder of its own."""
    return Path("out/reproduce") / (name + ("-smoke" if smoke else ""))


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: there is no such experiment; the message names the closest ones.
    """
    if name in _DEEP:
        return _DEEP[name]
    if name not in _ON_A_CPU:
        raise unknown("experiment", name, experiment_names(), "Names are those of the paper's claims, see `ggt list`.")
    # These experiments need matplotlib, which a machine that trains deep experiments may not have.
    from ggt_lab.experiments.cpu_experiments import CPU_EXPERIMENTS  # noqa: PLC0415

    return next(each for each in CPU_EXPERIMENTS if each.name == name)


def chosen_experiment(
    name: str,
    *,
    entrants: Sequence[str] = (),
    epochs: int | None = None,
    changes: Sequence[str] = (),
    step_times: Path | None = None,
) -> Experiment:
    """The experiment of that name, with the choices of the user. Only deep experiments have choices.

    Args:
        name: the name of the experiment.
        entrants: the optimizers (in E1, the models) to run; empty: all.
        epochs: the length of the full runs; None: the length that the experiment names.
        changes: settings of the problem, as ``name=value``: ``weight_drop=0.5``.
        step_times: a folder of ``ggt bench --what training``: claims about seconds are judged by its step times.

    Raises:
        ValueError: there is no such experiment or entrant, or the experiment has no such choice.
    """
    if name not in _DEEP and (entrants or epochs is not None or changes or step_times is not None):
        raise ValueError(f"--entrants, --epochs, --set and --step-times are for deep experiments: {', '.join(_DEEP)}")
    chosen = experiment(name)
    if isinstance(chosen, SpectraOverTraining):
        if epochs is not None or changes or step_times is not None:
            raise ValueError(f"{name} has --entrants, but neither --epochs nor --set nor --step-times")
        return chosen.with_entrants(entrants) if entrants else chosen
    if isinstance(chosen, DeepRace):
        chosen = chosen.with_entrants(entrants) if entrants else chosen
        chosen = chosen.with_epochs(epochs) if epochs is not None else chosen
        chosen = chosen.with_changes(dict(map(_setting, changes))) if changes else chosen
        chosen = chosen.with_step_times(read_step_times(step_times)) if step_times is not None else chosen
    return chosen


def _setting(words: str) -> tuple[str, float | bool]:
    name, _, value = words.partition("=")
    try:
        found = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        found = None
    if not isinstance(found, bool | int | float):
        raise ValueError(f"--set takes name=value, with a number, True or False; got {words!r}")
    if name == "epochs":
        raise ValueError("the length of the full runs is --epochs, not --set epochs")
    return name, found
