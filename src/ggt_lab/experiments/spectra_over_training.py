"""E1: the eigenvalues of GᵀG over training, for several models, each trained by GGT at its tuned learning rate.

The window holds momentum, as in all our long runs. Momentum alone makes rows alike: with β₁ = 0.9 and 200 rows,
gradients without any structure have a condition number of 354. Every verdict names that number beside the measured one.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from ggt_lab.experiments.deep_race import DeepRace
from ggt_lab.experiments.experiment import Settings
from ggt_lab.experiments.verdicts import Figure, Verdict
from ggt_lab.problems.unknown_name import unknown
from ggt_lab.runs.long_run import LongRun
from ggt_lab.runs.results import Record
from ggt_lab.spectra.eigenvalue_filters import median_filter
from ggt_lab.spectra.eigenvalue_log import read_spectra

__all__ = ["SpectraOverTraining", "condition_between"]

_AROUND_THOUSAND = (10**2.5, 10**3.5)
_ENORMOUS = 10**5.5
_STEADY = 2.0
_CLEAR = 1.1
"""Medians of two parts of a run differ by some percent without any trend, which decides nothing."""


class SpectraOverTraining:
    """Experiment E1.

    Args:
        parts: one experiment for each model. Each has the single entrant "GGT" and records spectra.
    """

    name, title = "E1", "The spectrum of GᵀG over training"
    seeds = 3

    def __init__(self, parts: Mapping[str, DeepRace]) -> None:
        self._parts = dict(parts)
        self._all = tuple(parts)

    def entrant_names(self) -> list[str]:
        """The models."""
        return list(self._parts)

    def with_entrants(self, names: Sequence[str]) -> Self:
        """The experiment with these models only.

        Raises:
            ValueError: there is no such model.
        """
        for name in names:
            if name not in self._parts:
                raise unknown("entrant", name, self._parts, "Those of E1 are models.")
        other = type(self)({name: part for name, part in self._parts.items() if name in names})
        other._all = self._all
        return other

    def first(self, settings: Settings) -> list[LongRun]:
        """The short runs of each model."""
        return [run for part in self._parts.values() for run in part.first(settings)]

    def more(self, settings: Settings, tasks: Sequence[LongRun], records: Sequence[Record]) -> list[LongRun]:
        """The runs that each model has left."""
        return [
            run
            for part in self._parts.values()
            for run in part.more(
                settings, [task for task in tasks if part.is_on(task.problem)], self._records_of(part, records)
            )
        ]

    def execute(self, task: LongRun, settings: Settings) -> Record | None:
        """Go on with one run."""
        return next(iter(self._parts.values())).execute(task, settings)

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge the observations of the paper, one by one."""
        runs = self._full_runs(records)
        found = [
            _around_thousand("CNN", runs, command),
            _around_thousand("RNN", runs, command),
            _rises(runs, command),
            *_early(runs, command),
        ]
        found += [
            part.tuning_verdict(self._records_of(part, records), command, of=name)
            for name, part in self._parts.items()
            if self._records_of(part, records)
        ]
        missing = [name for name in self._all if name not in runs]
        return found + [_not_run(f"spectra of {n} were recorded", "CNN and RNN", n, command) for n in missing]

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """Draw one heat-map for each model, from the first seed."""
        from ggt_lab.figures.spectrum_density import draw_spectrum  # noqa: PLC0415 - a machine that trains may not have it

        spectra = []
        for name, runs in self._full_runs(records).items():
            run = runs[0]
            label = f"{self._parts[name].title}, lr {run['lr']:g}, {run['epochs']} epochs"
            spectra.append({**read_spectra(folder / run["spectrum"]["file"]), "label": label})
        if not spectra:
            return []
        files = draw_spectrum(spectra, folder / "spectra", title="E1: eigenvalues of GᵀG over training, GGT, seed 0")
        words = ", ".join(self._full_runs(records))
        return [
            Figure(files[0], f"Heat-maps of the eigenvalues of GᵀG by step, with their median-filtered range: {words}.")
        ]

    def _records_of(self, part: DeepRace, records: Sequence[Record]) -> list[Record]:
        return [record for record in records if part.is_on(record["problem"])]

    def _full_runs(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """The full runs of each model that recorded spectra."""
        found = {}
        for name, part in self._parts.items():
            mine = self._records_of(part, records)
            runs = [run for run in (part.full_runs(mine).get("GGT", []) if mine else []) if run.get("spectrum")]
            if runs:
                found[name] = runs
        return found


def condition_between(record: Record, start: float, end: float, *, largest: bool = False) -> float:
    """The median condition number in a part of a run, after a median filter as in the figure.

    Args:
        record: the record of a run with spectra.
        start: the part begins after this share of the steps.
        end: the part ends with this share of the steps.
        largest: True takes the largest condition number in place of the median.
    """
    spectrum = record["spectrum"]
    last = spectrum["steps"][-1]
    filtered = median_filter(spectrum["conditions"])
    part = [c for step, c in zip(spectrum["steps"], filtered, strict=True) if start * last < step <= end * last]
    if not part:
        return math.nan
    return max(part) if largest else statistics.median(part)


def _not_run(statement: str, paper: str, name: str, command: str) -> Verdict:
    return Verdict("E1", statement, paper, f"not run: {name}", spread=None, n=0, holds=None, command=command)


def _verdict(
    statement: str,
    paper: str,
    runs: Sequence[Record],
    shown: Mapping[str, Sequence[float]],
    holds: bool | None,
    command: str,
) -> Verdict:
    words = ", ".join(f"{what} {statistics.fmean(values):.3g}" for what, values in shown.items())
    diverged = sum(run["status"] != "done" for run in runs)
    ranges = "; ".join(f"{what} {min(values):.3g} to {max(values):.3g}" for what, values in shown.items())
    return Verdict(
        claim="E1",
        statement=statement,
        paper=paper,
        ours=f"{words} (gradients without structure: {runs[0]['spectrum']['isotropic']:.3g})"
        + (f"; {diverged} seeds diverged" if diverged else ""),
        spread=f"over seeds: {ranges}" if len(runs) > 1 else None,
        n=len(runs),
        holds=None if diverged else holds,
        command=command,
    )


def _around_thousand(name: str, runs: Mapping[str, Sequence[Record]], command: str) -> Verdict:
    statement = f"{name}: the condition number in mid-training is of the order of 10³ (10^2.5 to 10^3.5)"
    paper = "a condition number of ~10³ in each case"
    if name not in runs:
        return _not_run(statement, paper, name, command)
    middle = [condition_between(run, 0.25, 0.75) for run in runs[name]]
    low, high = _AROUND_THOUSAND
    return _verdict(
        statement, paper, runs[name], {"median": middle}, all(low <= value <= high for value in middle), command
    )


def _rises(runs: Mapping[str, Sequence[Record]], command: str) -> Verdict:
    statement = "CNN: gradients are more anisotropic at the end (last tenth) than in mid-training"
    paper = "the condition number surges near the end"
    if "CNN" not in runs:
        return _not_run(statement, paper, "CNN", command)
    shown = {
        "condition in mid-training": [condition_between(run, 0.25, 0.75) for run in runs["CNN"]],
        "at the end": [condition_between(run, 0.9, 1.0) for run in runs["CNN"]],
    }
    growth = [end / middle for middle, end in zip(*shown.values(), strict=True)]
    unclear = any(1 / _CLEAR < each < _CLEAR for each in growth)
    holds = None if unclear else all(each > 1 for each in growth)
    return _verdict(statement, paper, runs["CNN"], shown, holds, command)


def _early(runs: Mapping[str, Sequence[Record]], command: str) -> list[Verdict]:
    """What the paper says of the first epochs of the RNN. The runs have five epochs, so that a fifth is one epoch."""
    falls = (
        "RNN: gradients become more isotropic within the first epochs, and then stay so "
        "(from the 4th to the 5th epoch: within a factor of 2)"
    )
    reaches = "RNN: the condition number of the first epoch reaches the order of 10⁶ (above 10^5.5)"
    isotropic, enormous = "more isotropic within the first few epochs, then stable", "an early condition number of ~10⁶"
    if "RNN" not in runs:
        return [
            _not_run(statement, paper, "RNN", command) for statement, paper in ((falls, isotropic), (reaches, enormous))
        ]
    first = [condition_between(run, 0.0, 0.2, largest=True) for run in runs["RNN"]]
    fourth = [condition_between(run, 0.6, 0.8) for run in runs["RNN"]]
    fifth = [condition_between(run, 0.8, 1.0) for run in runs["RNN"]]
    steady = all(1 / _STEADY <= b / a <= _STEADY for a, b in zip(fourth, fifth, strict=True))
    lower = all(b < a for a, b in zip(first, fifth, strict=True))
    shown = {"largest of the first epoch": first, "4th epoch": fourth, "5th": fifth}
    return [
        _verdict(falls, isotropic, runs["RNN"], shown, lower and steady, command),
        _verdict(
            reaches, enormous, runs["RNN"], {"largest of the first epoch": first}, min(first) >= _ENORMOUS, command
        ),
    ]
