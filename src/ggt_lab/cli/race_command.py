"""``ggt race``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ggt_lab.cli.options import Positional, all_cores
from ggt_lab.cli.terminal import Column, progress_bar, say, show_table

if TYPE_CHECKING:
    from ggt_lab.runs.race import Run
    from ggt_lab.runs.results import Record, Results

__all__ = ["RaceCommand"]

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
    """How often an optimizer gets one more learning rate because its best one is at the edge of its grid."""
    seeds: int = 3
    """How many seeds."""
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
        from ggt_lab.runs.race import grid
        from ggt_lab.runs.race_seconds import recommendation, step_seconds, with_seconds
        from ggt_lab.runs.results import Results
        from ggt_lab.runs.standings import CRITERIA, beyond_the_edge, standings

        if self.seeds < 1 or self.workers < 1 or self.widen < 0:
            raise ValueError(
                f"need seeds ≥ 1, workers ≥ 1, widen ≥ 0; got seeds={self.seeds}, workers={self.workers}, "
                f"widen={self.widen}"
            )
        folder = self.out or Path("out/race") / Path(self.problem).stem
        results = Results(folder / "results.jsonl")
        rates = dict.fromkeys(self.optimizers, self.lrs)
        runs = grid(self.problem, rates, range(self.seeds), steps=self.steps, device=self.device)
        left = len(waiting(runs, results))
        if left < len(runs):
            say(f"{len(runs) - left} of {len(runs)} runs are finished already")
        self._race(runs, results)
        for _ in range(self.widen):
            wider = beyond_the_edge(runs, results.of(runs))
            if not wider:
                break
            runs += wider
            self._race(runs, results)
        records = results.of(runs)
        # Runs share the machine, so that their own clocks say little.
        seconds = step_seconds(self.problem, standings(records), device=self.device)
        records = with_seconds(records, seconds)
        for by, words in CRITERIA.items():
            _show_standings(f"{self.problem}: {words.format(metric=records[0]['metric'])}", records, by)

        if any(standing.at_edge for by in CRITERIA for standing in standings(records, by=by)):
            say("(edge): the best learning rate is at the edge of its grid; --widen 3 tries rates beyond it.")

        say("Seconds are steps times the time of a step, which all optimizers took in turns.")
        say(recommendation(standings(records), str(records[0]["metric"]), self.seeds), style="bold")

        def draw() -> list[Path]:
            from ggt_lab.figures.race_curves import draw_curves

            title = f"{self.problem}: best learning rate of each; mean and range over {self.seeds} seeds"
            return draw_curves(records, folder / "curves", title=title)

        files = drawn(draw)
        say(f"Results: {results.path}\nCurves: {', '.join(map(str, files))}")
        say(f"A page with all of it: ggt report {folder}")

    def _race(self, runs: "Sequence[Run]", results: "Results") -> None:
        from ggt_lab.runs.progress import count_tasks
        from ggt_lab.runs.race import race

        with progress_bar(results.path) as progress:
            race(runs, results, workers=self.workers, on_done=count_tasks(runs, results, progress))


def _show_standings(title: str, records: "Sequence[Record]", by: str) -> None:
    """The best learning rate of each optimizer by one criterion; the best optimizer comes first."""
    from ggt_lab.runs.standings import standings

    rows = []
    for standing in standings(records, by=by):
        notes = " (edge)" if standing.at_edge else ""
        notes += f" ({standing.diverged} diverged)" if standing.diverged else ""
        numbers = [f"{n:.4g}" for n in (standing.final, standing.spread, standing.per_step, standing.per_second)]
        if len({record["seed"] for record in records}) == 1:
            numbers[1] = "one seed"
        rows.append([standing.optimizer, f"{standing.lr:g}{notes}", *numbers])
    show_table(title, _COLUMNS, rows)
