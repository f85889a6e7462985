"""A deep experiment: learning rates tuned on short runs, then all seeds of the full one, then the claims.

The runs are long runs (`ggt_lab.runs.long_run`): they stop when time is up, and the same command goes on from the same
step. `ggt_lab.experiments.deep_experiments` lists the experiments.
"""

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ggt_lab.experiments.claim import Claim, in_words
from ggt_lab.experiments.experiment import Settings
from ggt_lab.experiments.verdicts import Figure, Verdict
from ggt_lab.experiments.wall_clock_claims import FirstInSeconds, StepTimes
from ggt_lab.optimizers.specs import missing_package
from ggt_lab.problems.unknown_name import unknown
from ggt_lab.runs.long_run import WITHOUT_EFFECT, LongRun, advance, changed_since, class_with
from ggt_lab.runs.results import Record, Results
from ggt_lab.runs.standings import beyond_the_edge, standings

__all__ = ["DeepRace", "Variant"]

_LARGEST_GRID = 8


@dataclass(frozen=True)
class Variant:
    """More full runs of an entrant, with another schedule or learning rate."""

    of: str
    """The entrant. Its tuned learning rate serves for the variant."""
    schedule: str | None = None
    """The schedule; None takes the schedule of the experiment."""
    factor: float = 1.0
    """A factor of the tuned learning rate."""


class DeepRace:
    """Several optimizers on one deep problem.

    Args:
        name: the name of the claim.
        title: the experiment in a few words.
        problem: a deep problem; ``problem-tiny`` serves for smoke tests.
        entrants: for each name of an entrant, the spec of the optimizer and its first grid of learning rates.
        tuning_epochs: the length of the short runs.
        epochs: the length of the full runs.
        claims: what the full runs are to show.
        keys: the numbers that are drawn.
        schedule: the schedule of the full runs.
        tuning_schedule: the schedule of the short runs; None takes the schedule of the full runs.
        variants: more full runs, by name.
        changes: attributes of the problem to change.
        model: the name of the model in `ggt_lab.bench.training_step`, which has its step times.
        spectrum_every: the number of steps between records of spectra in the full runs; 0 records none.
        early_looks: how often the full runs look at held-out data inside the first epoch.
    """

    seeds = 3

    def __init__(
        self,
        name: str,
        title: str,
        problem: str,
        entrants: Mapping[str, tuple[str, tuple[float, ...]]],
        *,
        tuning_epochs: int,
        epochs: int,
        claims: Sequence[Claim] = (),
        keys: tuple[str, ...] = (),
        schedule: str = "cosine",
        tuning_schedule: str | None = None,
        variants: Mapping[str, Variant] | None = None,
        changes: tuple[tuple[str, Any], ...] = (),
        model: str = "",
        spectrum_every: int = 0,
        early_looks: int = 0,
    ) -> None:
        self.name, self.title = name, title
        self._problem, self._entrants, self._variants = problem, entrants, variants or {}
        self._chosen = self.entrant_names()
        self._tuning_epochs, self._epochs = tuning_epochs, epochs
        self._claims, self._keys = claims, keys
        self._schedule, self._tuning_schedule = schedule, tuning_schedule or schedule
        self._changes, self._spectrum_every, self._early_looks = changes, spectrum_every, early_looks
        self._model, self._step_ms = model, dict[str, float]()
        self._own = (epochs, changes)

    # ---- choices of the user: each choice gives another experiment -------------------------------------------------

    def is_on(self, problem: str) -> bool:
        """Whether ``problem`` names the problem of the experiment or its tiny variant."""
        return problem in (self._problem, f"{self._problem}-tiny")

    def entrant_names(self) -> list[str]:
        """The names of the optimizers, and of the variants."""
        return [*self._entrants, *self._variants]

    def with_entrants(self, names: Sequence[str]) -> Self:
        """The experiment with these entrants only. For a variant, the learning rate of its entrant is tuned too.

        Raises:
            ValueError: there is no such entrant.
        """
        for name in names:
            if name not in self.entrant_names():
                raise unknown("entrant", name, self.entrant_names(), f"Several of {self.name}'s may be given.")
        return self._with(_chosen=list(dict.fromkeys(names)))

    def with_epochs(self, epochs: int) -> Self:
        """The experiment with full runs of another length.

        Raises:
            ValueError: the full runs would not be longer than the short runs.
        """
        if epochs <= self._tuning_epochs:
            raise ValueError(f"{self.name} tunes over {self._tuning_epochs} epochs; full runs need more, got {epochs}")
        return self._with(_epochs=epochs)

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """The experiment with other attributes of the problem.

        Raises:
            ValueError: the problem has no such attribute, or the value is of another type.
        """
        merged = tuple((dict(self._changes) | dict(changes)).items())
        class_with(self._problem, merged)  # raises here, and not in a process that trains
        return self._with(_changes=merged)

    def with_step_times(self, times: StepTimes) -> Self:
        """The experiment with step times, by which claims about seconds are judged."""
        claims = [replace(c, times=times) if isinstance(c, FirstInSeconds) else c for c in self._claims]
        return self._with(_claims=claims, _step_ms=times.milliseconds(self._model))

    def _with(self, **changes: Any) -> Self:  # noqa: ANN401 - attributes
        other = copy.copy(self)
        other.__dict__.update(changes)
        return other

    # ---- runs ------------------------------------------------------------------------------------------------------

    def first(self, settings: Settings) -> list[LongRun]:
        """The short runs.

        Raises:
            ValueError: the folder holds runs with other settings of the problem.
        """
        self._refuse_others(settings)
        runs = [
            self._run(settings, spec, rate, 0, epochs=self._lengths(settings)[0], schedule=self._tuning_schedule)
            for spec, rates in self._tuned().values()
            for rate in (rates[:2] if settings.smoke else rates)
        ]
        return self._possible(settings, runs)

    def more(self, settings: Settings, tasks: Sequence[LongRun], records: Sequence[Record]) -> list[LongRun]:
        """Wider grids while a best rate is at the edge of its grid, then the full runs at the best rates."""
        short, long = self._lengths(settings)
        tuning = [task for task in tasks if task.epochs == short]
        tuned = [record for record in records if record["epochs"] == short]
        if len(tuned) < len(tuning):
            return []  # time is up
        if not settings.smoke:
            sizes = {task.optimizer: len({t.lr for t in tuning if t.optimizer == task.optimizer}) for task in tuning}
            wider = [run for run in beyond_the_edge(tuning, tuned) if sizes[run.optimizer] < _LARGEST_GRID]
            if wider:
                return wider
        full = [
            replace(
                self._run(settings, spec, rate, seed, epochs=long, schedule=schedule),
                spectrum_every=min(self._spectrum_every, 1) if settings.smoke else self._spectrum_every,
                early_looks=self._early_looks,
            )
            for seed in range(settings.seeds)
            for name, (spec, rate, schedule) in self._full(tuned).items()
            if name in self._chosen
        ]
        known = {task.key for task in tasks}
        return [run for run in self._possible(settings, full) if run.key not in known]

    def execute(self, task: LongRun, settings: Settings) -> Record | None:
        """Go on with one run."""
        return advance(task, settings.kept, deadline=settings.deadline, spectra=settings.folder / "spectra")

    def full_runs(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """The full runs of each chosen entrant and variant; one without full runs is not there."""
        long = max(record["epochs"] for record in records)
        wanted = self._full([record for record in records if record["epochs"] < long])
        found = {
            name: [r for r in records if r["epochs"] == long and (r["optimizer"], r["lr"], r["schedule"]) == what]
            for name, what in wanted.items()
            if name in self._chosen
        }
        return {name: runs for name, runs in found.items() if runs}

    def _tuned(self) -> dict[str, tuple[str, tuple[float, ...]]]:
        """The entrants whose learning rates are needed."""
        needed = {self._variants[name].of if name in self._variants else name for name in self._chosen}
        return {name: entrant for name, entrant in self._entrants.items() if name in needed}

    def _full(self, tuned: Sequence[Record]) -> dict[str, tuple[str, float, str]]:
        """Optimizer, learning rate and schedule of the full runs, for each entrant and variant that was tuned."""
        best = {standing.optimizer: standing.lr for standing in standings(tuned)}
        found = {}
        for name in self.entrant_names():
            variant = self._variants.get(name, Variant(name))
            spec = self._entrants[variant.of][0]
            spec = _tiny(spec) if _tiny(spec) in best else spec
            if spec in best:
                rate = float(f"{variant.factor * best[spec]:.6g}") if variant.factor != 1 else best[spec]
                found[name] = (spec, rate, variant.schedule or self._schedule)
        return found

    def _possible(self, settings: Settings, runs: Sequence[LongRun]) -> list[LongRun]:
        """The runs whose optimizer is installed, and the runs that are finished."""
        if not any(missing_package(run.optimizer) for run in runs):
            return list(runs)
        finished = Results(settings.folder / "results.jsonl").finished()
        return [run for run in runs if missing_package(run.optimizer) is None or run.key in finished]

    def _refuse_others(self, settings: Settings) -> None:
        """Raise if the folder holds runs with other settings: keys name the problem, but not all of its settings."""
        results = Results(settings.folder / "results.jsonl")
        for record in results:
            if not self.is_on(record["problem"]):
                continue
            changes = changed_since(record)
            if not settings.smoke and list(map(tuple, record["settings"])) != list(self._changes):
                changes.append(f"{_in_words(record['settings'])} there, {_in_words(self._changes)} asked for")
            if changes:
                raise ValueError(
                    f"{results.path} holds runs with other settings ({'; '.join(changes)}); give another folder (--out)"
                )

    def _run(self, settings: Settings, spec: str, rate: float, seed: int, *, epochs: int, schedule: str) -> LongRun:
        return LongRun(
            problem=f"{self._problem}-tiny" if settings.smoke else self._problem,
            optimizer=_tiny(spec) if settings.smoke else spec,
            lr=rate,
            seed=seed,
            epochs=epochs,
            schedule=schedule,
            device="cpu" if settings.smoke else settings.device,
            settings=() if settings.smoke else self._changes,
        )

    def _lengths(self, settings: Settings) -> tuple[int, int]:
        return (1, 2) if settings.smoke else (self._tuning_epochs, self._epochs)

    # ---- results ---------------------------------------------------------------------------------------------------

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge every claim by the full runs, whether all best rates lie inside their grids, and who took part."""
        runs = self.full_runs(records)
        verdicts = [claim.verdict(runs, command) for claim in self._claims]
        verdicts += [self.tuning_verdict(records, command), self._attendance(runs, command)]
        # With another length or other settings these are other statements; the experiment's own verdicts stay.
        return [replace(verdict, statement=self._otherwise() + verdict.statement) for verdict in verdicts]

    def _otherwise(self) -> str:
        """The choices of the user that differ from the experiment, in words."""
        epochs, changes = self._own
        words = [f"{self._epochs} epochs"] if self._epochs != epochs else []
        others = [(name, value) for name, value in self._changes if name not in WITHOUT_EFFECT]
        words += [f"{name} {value}" for name, value in others if (name, value) not in changes]
        return f"with {', '.join(words)}: " if words else ""

    def tuning_verdict(self, records: Sequence[Record], command: str, *, of: str = "") -> Verdict:
        """Whether all best rates lie inside their grids; ``of`` names the model, if there are several."""
        long = max(record["epochs"] for record in records)
        tuned = [record for record in records if record["epochs"] < long]
        places = {standing.optimizer: standing for standing in standings(tuned)}
        named = {name: places[what[0]] for name, what in self._full(tuned).items() if name in self._entrants}
        edges = [f"{name} {place.lr:.3g}" for name, place in named.items() if place.at_edge]
        rates = ", ".join(f"{name} {place.lr:.3g}" for name, place in named.items())
        failed = [name for name, place in named.items() if not math.isfinite(place.final)]
        words = f"at the edge: {', '.join(edges)}; of {rates}" if edges else f"all inside: {rates}"
        return Verdict(
            claim=self.name,
            statement=f"{of}: " * bool(of) + "every best learning rate lies inside of its grid",
            paper="learning rates tuned per optimizer",
            ours=words + (f"; diverged at every rate: {', '.join(failed)}" if failed else ""),
            spread=None,
            n=1,
            holds=not edges,
            command=command,
        )

    def _attendance(self, runs: Mapping[str, Sequence[Record]], command: str) -> Verdict:
        """Who took part, and why others did not."""
        reasons = {}
        for name in self.entrant_names():
            if name not in runs:
                package = missing_package(self._entrants[self._variants.get(name, Variant(name)).of][0])
                reasons[name] = f"not installed ({package})" if package and name in self._chosen else "not run"
        diverged = [
            f"{name} {sum(r['status'] != 'done' for r in found)} of {len(found)}"
            for name, found in runs.items()
            if any(record["status"] != "done" for record in found)
        ]
        parts = [f"took part: {', '.join(runs)}"] if runs else []
        parts += [f"{name}: {reason}" for name, reason in reasons.items()]
        parts += [f"diverged seeds: {', '.join(diverged)}"] if diverged else []
        return Verdict(
            claim=self.name,
            statement="every entrant was run, and no seed diverged",
            paper="not stated",
            ours="; ".join(parts),
            spread=None,
            n=max(map(len, runs.values()), default=0),
            holds=not reasons and not diverged,
            command=command,
        )

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """Draw the full runs by epoch, variants beside their entrants, and by second where there are step times."""
        from ggt_lab.figures.epoch_curves import draw_epochs  # noqa: PLC0415 - a machine that trains may not have it

        runs = self.full_runs(records)
        own = {name: found for name, found in runs.items() if name in self._entrants}
        variants = {name: found for name, found in runs.items() if name in self._variants}
        bases = {self._variants[name].of for name in variants}
        timed = {name: found for name, found in own.items() if name in self._step_ms}
        words = " and ".join(in_words(key) for key in self._keys)
        figures = []
        for file, shown, by in (
            ("epochs", own, "epoch"),
            ("variants", {**{n: f for n, f in own.items() if n in bases}, **variants} if variants else {}, "epoch"),
            ("seconds", timed, "second"),
        ):
            if not shown:
                continue
            title = f"{self.name}: {self.title}, mean and range over {max(map(len, shown.values()))} seeds"
            step_ms = self._step_ms if by == "second" else None
            files = draw_epochs(shown, self._keys, folder / file, title=title, step_ms=step_ms)
            figures.append(Figure(files[0], f"{self.title}: {words} by {by}, for {', '.join(shown)}."))
        return figures


def _in_words(settings: Iterable[Sequence[Any]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings) or "the problem's own"


def _tiny(spec: str) -> str:
    """The spec with a window that fills in a few steps, if it is a GGT."""
    return re.sub(r"window=\d+", "window=5", re.sub(r", window_dtype='\w+'", "", spec))
