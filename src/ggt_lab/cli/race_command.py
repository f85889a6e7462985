"""``ggt race``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ggt_lab.cli.options import Positional, all_cores
from ggt_lab.cli.terminal import Column, progress_bar, say, show_table

if TYPE_CHECKING:
    from ggt_lab.runs.race import Run
    from ggt_lab.runs.results import Record, Results
    from ggt_lab.runs.standings import Standing

__all__ = ["RaceCommand"]

_FIRST_FRESH = 1000
"""The first seed of those that tune nothing."""
_COLUMNS = (
    Column("optimizer"),
    *(Column(heading, right=True) for heading in ("tuned lr", "final", "± seeds", "mean per step", "mean per second")),
)


@dataclass(frozen=True)
class RaceCommand:
    """Race optimizers on a problem: equal starts, equal data, tuned learning rates. Run again to go on."""

    problem: Positional[str]
    """A built-in problem (see `ggt list`), or a Python file of your own (see `ggt new-problem`)."""
    optimizers: tuple[str, ...] = ("SGD(momentum=0.9)", "Adam", "GGT")
    """Names, with or without options: GGT "GGT(window=50)" "torch.optim.AdamW(weight_decay=0.1)"."""
    lrs: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    """The grid of learning rates, for every optimizer."""
    widen: int = 0
    """How often every optimizer gets one more learning rate, as long as a best one is at the edge of its grid."""
    seeds: int = 3
    """How many seeds the learning rates are tuned by."""
    fresh: int = 3
    """How many other seeds decide, each optimizer at its tuned rate; 0: the seeds of the tuning decide."""
    schedule: str | None = None
    """constant, cosine, linear, halving, or own: the method schedule(progress) of the problem, and its default."""
    steps: int | None = None
    """The length of a run; by default the length that the problem names."""
    device: str = "cpu"
    """cpu or cuda."""
    workers: int = field(default_factory=all_cores)
    """How many runs train at a time."""
    out: Path | None = None
    """Folder of the results; out/race/PROBLEM by default."""

    def run(self) -> None:
        """Race, then show how the optimizers stand."""
        from ggt_lab.figures import drawn
        from ggt_lab.runs.process_pool import waiting
        from ggt_lab.runs.race import FRESH
        from ggt_lab.runs.race_seconds import step_seconds, with_seconds, write_step_seconds
        from ggt_lab.runs.recommendation import recommendation_of_race
        from ggt_lab.runs.results import Results
        from ggt_lab.runs.standings import CRITERIA, larger_is_better, one_more_rate, standings

        if self.seeds < 1 or self.workers < 1 or self.widen < 0 or self.fresh < 0:
            raise ValueError(
                f"need seeds ≥ 1, workers ≥ 1, widen ≥ 0, fresh ≥ 0; got seeds={self.seeds}, workers={self.workers}, "
                f"widen={self.widen}, fresh={self.fresh}"
            )
        folder = self.out or Path("out/race") / Path(self.problem).stem
        results = Results(folder / "results.jsonl")
        rates = dict.fromkeys(self.optimizers, self.lrs)
        runs = self._runs(rates, range(self.seeds))
        left = len(waiting(runs, results))
        if left < len(runs):
            say(f"{len(runs) - left} of {len(runs)} runs are finished already")
        self._race(runs, results)
        for _ in range(self.widen):
            wider = one_more_rate(runs, results.of(runs))
            if not wider:
                break
            runs += wider
            self._race(runs, results)
        records = results.of(runs)
        tuned = standings(records)
        # Runs share the machine, so that their own clocks say little.
        seconds = step_seconds(self.problem, tuned, device=self.device)
        write_step_seconds(folder, seconds)
        records = with_seconds(records, seconds)
        aim = ", larger is better" if larger_is_better(records) else ""
        for by, words in CRITERIA.items():
            _show_standings(f"{self.problem}: {words.format(metric=records[0]['metric'])}{aim}", records, by)

        if any(standing.at_edge for by in CRITERIA for standing in standings(records, by=by)):
            say("(edge): the best learning rate is at the edge of its grid; --widen 3 tries rates beyond it.")

        say("Seconds are steps times the time of a step, which all optimizers took in turns.")
        decisive: list[Record] = []
        if self.fresh:
            beside = Results(folder / FRESH / "results.jsonl")
            decisive = self._fresh(beside, tuned)
            write_step_seconds(beside.path.parent, seconds)
        say(recommendation_of_race(records, decisive, step_seconds=seconds), style="bold")

        def draw() -> list[Path]:
            from ggt_lab.figures.race_curves import draw_curves

            title = f"{self.problem}: best learning rate of each; mean and range over {self.seeds} seeds"
            return draw_curves(records, folder / "curves", title=title, seconds=True)

        files = drawn(draw)
        say(f"Results: {results.path}\nCurves: {', '.join(map(str, files))}")
        say(f"A page with all of it: ggt report {folder}")

    def _runs(self, rates: "Mapping[str, Sequence[float]]", seeds: "Sequence[int]") -> "list[Run]":
        from ggt_lab.runs.race import grid

        return grid(self.problem, rates, seeds, steps=self.steps, device=self.device, schedule=self.schedule)

    def _fresh(self, results: "Results", tuned: "Sequence[Standing]") -> "list[Record]":
        """Runs of seeds that tuned nothing: each optimizer at its tuned learning rate."""
        rates = {standing.optimizer: (standing.lr,) for standing in tuned}
        runs = self._runs(rates, range(_FIRST_FRESH, _FIRST_FRESH + self.fresh))
        self._race(runs, results)
        records = results.of(runs)
        metric = str(records[0]["metric"])
        _show_standings(f"{self.problem}: final {metric} of {self.fresh} fresh seeds", records, "final", seconds=False)
        return records

    def _race(self, runs: "Sequence[Run]", results: "Results") -> None:
        from ggt_lab.runs.progress import count_tasks
        from ggt_lab.runs.race import race

        with progress_bar(results.path) as progress:
            race(runs, results, workers=self.workers, on_done=count_tasks(runs, results, progress))


def _show_standings(title: str, records: "Sequence[Record]", by: str, *, seconds: bool = True) -> None:
    """The best learning rate of each optimizer by one criterion; the best optimizer comes first."""
    from ggt_lab.runs.standings import standings

    rows = []
    for standing in standings(records, by=by):
        notes = " (edge)" if standing.at_edge else ""
        notes += f" ({standing.diverged} diverged)" if standing.diverged else ""
        notes += f" ({standing.skipped} step{'s' * (standing.skipped > 1)} left out)" if standing.skipped else ""
        numbers = [f"{n:.4g}" for n in (standing.final, standing.spread, standing.per_step, standing.per_second)]
        if len({record["seed"] for record in records}) == 1:
            numbers[1] = "one seed"
        rows.append([standing.optimizer, f"{standing.lr:g}{notes}", *numbers][: None if seconds else -1])
    show_table(title, _COLUMNS if seconds else _COLUMNS[:-1], rows)
