"""``ggt race``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.markup import escape
from rich.table import Table

from ggt_lab.commands.console import all_cores, console, progress_bar
from ggt_lab.figures.curves import draw_curves
from ggt_lab.pool import waiting
from ggt_lab.race import Run, beyond_the_edge, grid, race, standings
from ggt_lab.results import Record, Results

__all__ = ["RaceCommand"]

_CRITERIA = {"final": "final {metric}", "per_step": "mean {metric} per step", "per_second": "mean {metric} per second"}


@dataclass(frozen=True)
class RaceCommand:
    """Race optimizers on a problem: the same starts, the same data, tuned learning rates. Run again to go on."""

    problem: tyro.conf.Positional[str]
    """A built-in problem (see `ggt list`), or a Python file of your own (see `ggt new-problem`)."""
    optimizers: tuple[str, ...] = ("SGD(momentum=0.9)", "Adam", "GGT")
    """Names, with or without options: GGT "GGT(window=50)" "torch.optim.AdamW(weight_decay=0.1)"."""
    lrs: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    """The grid of learning rates, for every optimizer."""
    widen: int = 0
    """How often an optimizer whose best learning rate is at the edge of its grid gets one more beyond it."""
    seeds: int = 3
    """How many seeds."""
    steps: int | None = None
    """How long a run is; the problem knows by itself."""
    device: str = "cpu"
    """cpu or cuda."""
    workers: int = field(default_factory=all_cores)
    """Runs at a time."""
    out: Path | None = None
    """Folder of the results; out/race/PROBLEM by default."""

    def run(self) -> None:
        """Race, then show where everyone stands."""
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
            console.print(f"{len(runs) - left} of {len(runs)} runs are finished already")
        self._race(runs, results)
        for _ in range(self.widen):
            wider = beyond_the_edge(runs, _records(runs, results))
            if not wider:
                break
            runs += wider
            self._race(runs, results)
        records = _records(runs, results)
        for by, words in _CRITERIA.items():
            console.print(_table(f"{self.problem}: {words.format(metric=records[0]['metric'])}", records, by))
        title = f"{self.problem}: best learning rate of each; mean and range over {self.seeds} seeds"
        files = draw_curves(records, folder / "curves", title=title)
        console.print(f"Results: {results.path}\nCurves: {', '.join(map(str, files))}")
        console.print(f"A page with all of it: ggt report {folder}")

    def _race(self, runs: Sequence[Run], results: Results) -> None:
        with progress_bar(results.path) as report:
            total = len(runs)
            done = total - len(waiting(runs, results))
            report(done, total, "")

            def count(run: Run, _: Record) -> None:
                nonlocal done
                done += 1
                report(done, total, str(run))

            race(runs, results, workers=self.workers, on_done=count)


def _records(runs: Sequence[Run], results: Results) -> list[Record]:
    keys = {run.key for run in runs}
    return [record for record in results if record.get("key") in keys]


def _table(title: str, records: Sequence[Record], by: str) -> Table:
    """The best learning rate of each optimizer by one criterion; best optimizer first."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("optimizer", overflow="fold", min_width=12)  # a name cut short is no name
    table.add_column("tuned lr", justify="right", overflow="fold")
    for heading in ("final", "± seeds", "mean per step", "mean per second"):
        table.add_column(heading, justify="right", min_width=9, overflow="fold")
    for standing in standings(records, by=by):
        notes = " (edge of the grid)" if standing.at_edge else ""
        notes += f" ({standing.diverged} diverged)" if standing.diverged else ""
        numbers = [f"{n:.4g}" for n in (standing.final, standing.spread, standing.per_step, standing.per_second)]
        if len({record["seed"] for record in records}) == 1:
            numbers[1] = "one seed"
        table.add_row(escape(standing.optimizer), f"{standing.lr:g}{notes}", *numbers)
    return table
