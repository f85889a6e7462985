"""Claims about wall-clock time: the steps of a curve, times the milliseconds of a step measured alone on the device.

The clock of the runs themselves says nothing, because several runs share a GPU. Step times come from a folder that
``ggt bench --what training --out FOLDER`` wrote: it times all optimizers of a model in turn, in one process.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggt_lab.bench.case_files import read_cases
from ggt_lab.experiments.claim import Claim, Finding, Runs, absent, in_words, mean_curve, nothing_run
from ggt_lab.runs.results import Record

__all__ = ["FirstInSeconds", "StepTimes", "early_curve", "epoch_curve", "new_minima", "read_step_times", "time_to"]

_MEASURE = "ggt bench --what training --out FOLDER"
_GGT = "GGT r=200 bfloat16"  # the GGT of the long runs


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of a training step of each optimizer, by model."""

    results: Mapping[str, Mapping[str, Any]]
    """The results of `ggt_lab.bench.training_step.training` in eager mode, by model."""

    def milliseconds(self, model: str) -> dict[str, float]:
        """Milliseconds of a step, by entrant; empty if the model was not measured.

        This is the time of SGD times the ratio to SGD, which was paired round by round. The bare times do not serve:
        baselines are timed after the GGTs, when the host may be faster or slower.
        """
        if model not in self.results:
            return {}
        sgd = float(self.results[model]["times"]["SGD"]["median_ms"])
        ratios = {"SGD": 1.0, **self.results[model]["over_SGD"]}
        return {("GGT" if name == _GGT else name): sgd * ratio for name, ratio in ratios.items()}

    def differences(self, model: str, record: Record) -> list[str]:
        """The settings in which the measured training step differs from the steps of a run."""
        measured, setup = self.results.get(model, {}), record.get("setup", {})
        names = ("batch", "length", "autocast", "channels_last", "l2", "weight_drop")
        pairs = [("parameters", "d"), *((name, name) for name in names)]
        return [
            f"{name} {setup[name]} in the runs, {measured[theirs]} where steps were timed"
            for name, theirs in pairs
            if name in setup and theirs in measured and setup[name] != measured[theirs]
        ]


def read_step_times(folder: Path) -> StepTimes:
    """The step times in a folder of ``ggt bench``.

    Raises:
        ValueError: the folder holds none.
    """
    cases = read_cases([folder]) if folder.is_dir() else []
    found = {
        record["result"]["model"]: record["result"]
        for record in cases
        if record["kind"] == "training" and record["status"] == "done" and record["result"]["mode"] == "eager"
    }
    if not found:
        raise ValueError(f"{folder} holds no times of training steps; measure them: {_MEASURE}")
    return StepTimes(found)


@dataclass(frozen=True)
class FirstInSeconds(Claim):
    """In seconds, ``who`` is the first to reach every level of ``key`` that one of ``others`` reaches.

    With ``wins=False`` the claim is that ``who`` is not always the first. The levels are the new minima, epoch by
    epoch, of the mean curve of each other entrant. Between its points the curve of ``who`` counts as a straight line; a
    curve of training is convex, so that in truth ``who`` is there sooner. If runs looked at held-out data inside their
    first epoch, these looks are points of the curve of ``who``. The levels that others reach there are counted and
    shown, but decide nothing, because the claim is about curves by epoch.
    """

    claim: str
    who: str
    others: tuple[str, ...]
    key: str
    model: str
    """One of `ggt_lab.bench.training_step.MODELS`."""
    paper: str
    wins: bool = True
    where: str = ""
    """Words that say in which runs, if there are several experiments."""
    times: StepTimes | None = None
    at: str = "at the end of an epoch"
    """When the curves have points, in words."""
    measure: str = f"measure them alone on the GPU ({_MEASURE}), and give --step-times FOLDER"
    """What to do where there are no step times."""

    def judge(self, runs: Runs) -> Finding:
        """Count the levels that ``who`` reaches first, and say how many times sooner."""
        sense = "the first to reach every" if self.wins else "not always the first to reach a"
        words = f"{in_words(self.key)} that a baseline reaches {self.at}"
        statement = f"{self.where}: " * bool(self.where) + f"in seconds, {self.who} is {sense} {words}"
        missing = absent(runs, *self.others)
        if absent(runs, self.who) or len(missing) == len(self.others):
            return nothing_run(statement, absent(runs, self.who, *self.others))
        if reason := self._unusable(runs):
            return Finding(statement, f"not judged: {reason}", n=0, holds=None)
        assert self.times is not None
        ms = self.times.milliseconds(self.model)
        own = {**epoch_curve(runs[self.who], self.key), **early_curve(runs[self.who], self.key)}
        along = _by_second(own, ms[self.who])
        parts, ratios = [f"{other}: not run" for other in missing], list[float]()
        for other in (name for name in self.others if name not in missing):
            found, early = (
                _times_sooner(along, _by_second(curve(runs[other], self.key), ms[other]))
                for curve in (epoch_curve, early_curve)
            )
            inside = f" (inside the first epoch: first to {_won(early)} of {len(early)})" if early else ""
            parts.append(f"{other} ({ms[other]:.2f} ms a step): {_sooner(found)}{inside}")
            ratios += found
        everywhere = _won(ratios) == len(ratios)
        undecided = not ratios or (everywhere and missing)
        return Finding(
            statement=statement,
            ours=f"{self.who} takes {ms[self.who]:.2f} ms a step. Against {'; '.join(parts)}",
            n=len(runs[self.who]),
            holds=None if undecided else everywhere == self.wins,
        )

    def _unusable(self, runs: Runs) -> str:
        """Why the step times cannot be used; empty if they can."""
        if self.times is None:
            return f"no step times; {self.measure}"
        ms = self.times.milliseconds(self.model)
        untimed = [name for name in (self.who, *self.others) if name in runs and name not in ms]
        if untimed:
            return f"no time of a step of {self.model} with {', '.join(untimed)} in that folder ({_MEASURE})"
        return "; ".join(self.times.differences(self.model, runs[self.who][0]))


def epoch_curve(records: Sequence[Record], key: str) -> dict[int, float]:
    """The mean of ``key`` over seeds at the end of each epoch, by step."""
    steps = {point["epoch"]: point["step"] for record in records for point in record["curve"]}
    return {steps[epoch]: value for epoch, value in mean_curve(records, key).items()}


def early_curve(records: Sequence[Record], key: str) -> dict[int, float]:
    """The mean of ``key`` over seeds at the looks inside the first epoch, by step."""
    seen = [{point["step"]: point[key] for point in record.get("early", ()) if key in point} for record in records]
    steps = sorted(set.intersection(*map(set, seen)))
    return {step: statistics.fmean(values[step] for values in seen) for step in steps}


def _by_second(curve: Mapping[int, float], step_ms: float) -> list[tuple[float, float]]:
    """Pairs of seconds of training and a value, in order of time."""
    return [(step * step_ms / 1000, curve[step]) for step in sorted(curve)]


def _times_sooner(own: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]) -> list[float]:
    """For each level that ``theirs`` reaches, how many times as fast ``own`` reaches it."""
    return [_ratio(seconds, time_to(own, level)) for seconds, level in new_minima(theirs)]


def new_minima(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points after the start that are below all earlier points.

    Example:
        >>> new_minima([(0.0, 9.0), (1.0, 3.0), (2.0, 4.0), (3.0, 2.0)])
        [(1.0, 3.0), (3.0, 2.0)]
    """
    found, lowest = [], math.inf
    for seconds, value in curve:
        if seconds > 0 and value < lowest:
            found.append((seconds, value))
        lowest = min(lowest, value)
    return found


def time_to(curve: Sequence[tuple[float, float]], level: float) -> float:
    """When a curve, straight between its points, first reaches a level; infinite if it never does.

    A curve that begins below the level reaches it at its first point. (The first training loss is the loss of the
    first epoch.)

    Example:
        >>> falling = [(0.0, 9.0), (2.0, 5.0), (4.0, 1.0)]
        >>> time_to(falling, 7.0), time_to(falling, 0.5)
        (1.0, inf)
    """
    if curve[0][1] <= level:
        return curve[0][0]
    for (left, high), (right, low) in itertools.pairwise(curve):
        if low <= level:
            return left + (right - left) * (high - level) / (high - low) if math.isfinite(high) else right
    return math.inf


def _sooner(ratios: Sequence[float]) -> str:
    if not ratios:
        return "no levels, because the mean over its seeds is never below its start"  # infinite if one diverged
    return (
        f"first to {_won(ratios)} of {len(ratios)} levels, {statistics.median(ratios):.2f} times as fast (median), "
        f"{min(ratios):.2f} at worst"
    )


def _won(ratios: Sequence[float]) -> int:
    return sum(ratio > 1 for ratio in ratios)


def _ratio(theirs: float, own: float) -> float:
    return theirs / own if own > 0 else math.inf
