"""``ggt bench``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from ggt_lab.bench.cases import Case
from ggt_lab.bench.run import run_cases, unfinished, wanted_cases
from ggt_lab.bench.summary import Line, Promise, write_summary
from ggt_lab.commands.console import console, progress_bar
from ggt_lab.figures.speed import draw_speed
from ggt_lab.results import Record, read_cases

__all__ = ["BenchCommand"]


@dataclass(frozen=True)
class BenchCommand:
    """Measure what a step costs here: time, memory, launches, against the floor and other optimizers. Resumable."""

    what: tuple[str, ...] = ()
    """Of steps, paper, training, scopes, baselines, root, kernels, cpu; by default all that this machine can."""
    device: str | None = None
    """cuda or cpu; cuda where there is one."""
    quick: bool = False
    """Only the cases with a promised figure."""
    seconds: float | None = None
    """Stop after so long; the same command goes on."""
    out: Path = Path("out/bench")
    """Folder of the results: one JSON per case, speed.json and the figures."""
    records: tuple[Path, ...] = ()
    """Measure nothing: sum up what is in these folders, and draw it, into the folder of the results."""

    def run(self) -> None:
        """Measure what is not finished, sum up, draw."""
        if self.records:
            missing = [str(folder) for folder in self.records if not folder.is_dir()]
            if missing:
                raise ValueError(f"no such folder of records: {', '.join(missing)}")
            self._sum_up(read_cases(self.records))
            return
        wanted, device = wanted_cases(self.what, self.device, quick=self.quick)
        records = self._measure(wanted, device)
        self._sum_up(read_cases([self.out]))
        for record in records:
            if record["status"] != "done":
                console.print(f"{record['status']}: {record['case']}: {record['error']}", style="red", markup=False)
        left = unfinished(wanted, records)
        if left:
            console.print(f"{len(left)} cases are left: the same command goes on with them")

    def _measure(self, wanted: Sequence[Case], device: str) -> list[Record]:
        with progress_bar(self.out) as report:
            report(0, len(wanted), "")
            done = 0

            def count(record: Record) -> None:
                nonlocal done
                done += 1
                report(done, len(wanted), record["case"])

            return run_cases(wanted, self.out, device=device, seconds=self.seconds, on_done=count)

    def _sum_up(self, records: Sequence[Record]) -> None:
        lines, promised = write_summary(records, self.out / "speed.json")
        console.print(_figures(lines))
        measured = [promise for promise in promised if promise.figure is not None]
        if measured:
            console.print(_promises(measured))
        files = draw_speed(records, self.out)
        console.print(f"Results: {self.out / 'speed.json'}")
        if files:
            console.print(f"Figures: {', '.join(str(file) for file in files if file.suffix == '.png')}")


def _figures(lines: Sequence[Line]) -> Table:
    table = Table(title="Measured", title_justify="left")
    for heading in ("what", "ms", "ratio", "to"):
        table.add_column(heading, justify="right" if heading in ("ms", "ratio") else "left")
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:.3f}"
        table.add_row(line.what, f"{line.figure_ms:.4g}", ratio, line.against)
    return table


def _promises(promised: Sequence[Promise]) -> Table:
    table = Table(title="Promised", title_justify="left")
    for heading in ("what", "figure", "target", ""):
        table.add_column(heading, justify="right" if heading in ("figure", "target") else "left")
    for promise in promised:
        sign = "≤" if promise.at_most else "≥"
        style = "" if promise.met else "bold red"
        table.add_row(promise.what, f"{promise.figure:.3g}", f"{sign} {promise.target:g}", promise.verdict, style=style)
    return table
