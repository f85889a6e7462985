"""The paper's deep experiments: learning rates tuned on a short run, then all seeds of the full one.

Runs are those of `ggt_lab.longrun`: they stop when time is up, and go on, from the same step, with the same command.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ggt_lab.figures.epochs import draw_epochs
from ggt_lab.longrun import LongRun, advance
from ggt_lab.race import beyond_the_edge, standings
from ggt_lab.reproduce.base import Settings
from ggt_lab.reproduce.claims import AtMost, Claim, GapAtEnd, LowestAlong
from ggt_lab.results import Record
from ggt_lab.verdict import Figure, Verdict

__all__ = ["DEEP_EXPERIMENTS", "DeepRace"]

_LARGEST_GRID = 8
_GGT = "GGT(window=200, window_dtype='bfloat16', adjust_lr_fn='original')"
_GGT_TINY = "GGT(window=5, adjust_lr_fn='original')"


class DeepRace:
    """Several optimizers on one deep problem.

    Args:
        name: the claim.
        title: in a few words.
        problem: a deep problem; ``problem-tiny`` serves for smoke tests.
        entrants: what an optimizer is called, its spec, and its first grid of learning rates.
        tuning_epochs: length of the short runs.
        epochs: length of the full ones.
        claims: what they are to show.
        keys: the numbers that are drawn.
        changes: attributes of the problem to change.
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
        claims: Sequence[Claim],
        keys: tuple[str, ...],
        schedule: str = "cosine",
        changes: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self.name, self.title = name, title
        self._problem, self._entrants = problem, entrants
        self._tuning_epochs, self._epochs = tuning_epochs, epochs
        self._claims, self._keys = claims, keys
        self._schedule, self._changes = schedule, changes

    def first(self, settings: Settings) -> list[LongRun]:
        """The short runs."""
        return [
            self._run(settings, spec, rate, 0, tuning=True)
            for spec, rates in self._entrants.values()
            for rate in (rates[:2] if settings.smoke else rates)
        ]

    def more(self, settings: Settings, tasks: Sequence[LongRun], records: Sequence[Record]) -> list[LongRun]:
        """Wider grids while a best rate is at the edge, then the full runs at the best rates."""
        short = self._lengths(settings)[0]
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
            self._run(settings, standing.optimizer, standing.lr, seed, tuning=False)
            for seed in range(settings.seeds)
            for standing in standings(tuned)
        ]
        known = {task.key for task in tasks}
        return [run for run in full if run.key not in known]

    def execute(self, task: LongRun, settings: Settings) -> Record | None:
        """Go on with one run."""
        return advance(task, settings.kept, deadline=settings.deadline)

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge every claim by the full runs, and whether all best rates lie inside of their grids."""
        runs = self._full_runs(records)
        verdicts = [claim.verdict(runs, command) for claim in self._claims]
        short = min(record["epochs"] for record in records)
        names = {spec: name for name, spec in self._specs(records).items()}
        places = standings([record for record in records if record["epochs"] == short])
        edges = [f"{names[place.optimizer]} {place.lr:g}" for place in places if place.at_edge]
        tuned = ", ".join(f"{names[place.optimizer]} {place.lr:g}" for place in places)
        verdicts.append(
            Verdict(
                claim=self.name,
                statement="every best learning rate lies inside of its grid",
                paper="learning rates tuned per optimizer",
                ours=f"at the edge: {', '.join(edges)}" if edges else f"all inside: {tuned}",
                spread=None,
                n=1,
                holds=not edges,
                command=command,
            )
        )
        return verdicts

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """The full runs by epoch."""
        runs = self._full_runs(records)
        title = f"{self.name}: {self.title}, mean and range over {len(next(iter(runs.values())))} seeds"
        files = draw_epochs(runs, self._keys, folder / "epochs", title=title)
        words = " and ".join(key.replace("_", " ") for key in self._keys)
        return [Figure(files[0], f"{self.title}: {words} by epoch, for {', '.join(runs)}.")]

    def _run(self, settings: Settings, spec: str, rate: float, seed: int, *, tuning: bool) -> LongRun:
        short, long = self._lengths(settings)
        return LongRun(
            problem=f"{self._problem}-tiny" if settings.smoke else self._problem,
            optimizer=_GGT_TINY if settings.smoke and spec == _GGT else spec,
            lr=rate,
            seed=seed,
            epochs=short if tuning else long,
            schedule=self._schedule,
            device="cpu" if settings.smoke else settings.device,
            settings=() if settings.smoke else self._changes,
        )

    def _lengths(self, settings: Settings) -> tuple[int, int]:
        return (1, 2) if settings.smoke else (self._tuning_epochs, self._epochs)

    def _specs(self, records: Sequence[Record]) -> dict[str, str]:
        """The spec of each entrant in these records: tiny runs have a GGT of their own."""
        present = {record["optimizer"] for record in records}
        return {name: spec if spec in present else _GGT_TINY for name, (spec, _) in self._entrants.items()}

    def _full_runs(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        long = max(record["epochs"] for record in records)
        full = [record for record in records if record["epochs"] == long]
        return {
            name: [record for record in full if record["optimizer"] == spec]
            for name, spec in self._specs(records).items()
        }


_PERPLEXITY = {
    "GGT": (_GGT, (1.5, 3.0, 6.0)),
    "Adam": ("Adam", (0.001, 0.002, 0.004)),
    "AdaGrad": ("Adagrad", (0.002, 0.005, 0.01)),
    "SGD": ("SGD(momentum=0.9)", (0.3, 1.0, 3.0)),
}
_BASELINES = ("Adam", "AdaGrad", "SGD")
_IMAGES = {
    "GGT": (_GGT, (0.1, 0.3, 1.0)),
    "Adam": ("Adam", (0.0003, 0.001, 0.003)),
    "AdaGrad": ("Adagrad", (0.003, 0.01, 0.03)),
    "SGD": ("SGD(momentum=0.9)", (0.03, 0.1, 0.3)),
}

DEEP_EXPERIMENTS = (
    DeepRace(
        "R1",
        "PTB characters, 3-layer LSTM",
        "ptb-chars",
        _PERPLEXITY,
        tuning_epochs=4,
        epochs=50,
        claims=[
            LowestAlong("R1", "GGT", _BASELINES, "validation_perplexity", "best for the first 50 epochs", first=2),
            LowestAlong("R1", "GGT", _BASELINES, "train_perplexity", "best for the first 50 epochs", first=2),
            GapAtEnd("R1", "GGT", "Adam", "validation_perplexity", 0.07, "0.09 at 500 epochs"),
            AtMost("R2", "GGT", "validation_perplexity", 2.45, "2.42 after 500 epochs"),
        ],
        keys=("train_perplexity", "validation_perplexity"),
    ),
    DeepRace(
        "C1",
        "CIFAR-10, Shake-Shake 26 2×32d",
        "cifar10",
        _IMAGES,
        tuning_epochs=3,
        epochs=30,
        claims=[
            LowestAlong("C1", "GGT", _BASELINES, "train_loss", "lowest training loss per epoch"),
            GapAtEnd("C2", "SGD", "GGT", "test_error", -0.002, "SGD generalizes best, the gap is below 0.2 %"),
        ],
        keys=("train_loss", "test_error"),
    ),
    DeepRace(
        "A1",
        "CIFAR-10, VGG-19 without batch norm",
        "cifar10-vgg",
        _IMAGES,
        tuning_epochs=3,
        epochs=30,
        schedule="halving",
        claims=[
            GapAtEnd("A1", "GGT", "SGD", "test_error", -0.015, "about 1 % behind SGD at the end"),
            GapAtEnd("A1", "GGT", "Adam", "train_loss", 0.1, "diagonal methods fail to train"),
            GapAtEnd("A1", "GGT", "AdaGrad", "train_loss", 0.1, "diagonal methods fail to train"),
        ],
        keys=("train_loss", "test_error"),
    ),
    DeepRace(
        "A2",
        "PTB characters, Transformer",
        "ptb-chars-transformer",
        {**_PERPLEXITY, "Adam": ("Adam", (0.0003, 0.001, 0.003)), "SGD": ("SGD(momentum=0.9)", (0.03, 0.1, 0.3))},
        tuning_epochs=2,
        epochs=20,
        claims=[
            GapAtEnd("A2", "Adam", "GGT", "validation_perplexity", 0.0, "Adam wins after an early lead of GGT"),
            GapAtEnd("A2", "Adam", "GGT", "train_perplexity", 0.0, "Adam wins after an early lead of GGT"),
        ],
        keys=("train_perplexity", "validation_perplexity"),
    ),
    DeepRace(
        "R4",
        "PTB words, LSTM",
        "ptb-words",
        {**_PERPLEXITY, "SGD": ("SGD(momentum=0.9)", (0.3, 1.0, 3.0))},
        tuning_epochs=2,
        epochs=40,
        claims=[GapAtEnd("R4", "GGT", "Adam", "validation_perplexity", -1.0, "level with Adam")],
        keys=("train_perplexity", "validation_perplexity"),
    ),
)
