"""``ggt bench``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggt_lab.cli.terminal import Column, progress_bar, say, show_table

if TYPE_CHECKING:
    from ggt_lab.bench.cases import Case
    from ggt_lab.bench.speed_summary import Line, Promise
    from ggt_lab.runs.results import Record

__all__ = ["BenchCommand"]


@dataclass(frozen=True)
class BenchCommand:
    """Measure what a step costs here: time, memory, launches, against the floor and other optimizers. Resumable."""

    what: tuple[str, ...] = ()
    """Of steps, paper, training, members, scopes, baselines, root, kernels, host, cpu; by default all it can here."""
    only: tuple[str, ...] = ()
    """Names of cases, in the order of measuring; "lean" stands for rows of few bytes and what was promised of them."""
    device: str | None = None
    """cuda or cpu; cuda where there is one."""
    quick: bool = False
    """Only the cases with a promised figure."""
    seconds: float = math.inf
    """Stop after so many seconds; the same command goes on."""
    longest: float = 240.0
    """Give up a single case after so many seconds; it is recorded as failed."""
    together: Path | None = None
    """Write all cases into this one file, too, after each of them; --records reads it from its folder."""
    out: Path = Path("out/bench")
    """Folder of the results: one JSON per case, speed.json and the figures."""
    records: tuple[Path, ...] = ()
    """Measure nothing: sum up and draw what is in these folders, into the folder of the results."""
    list: bool = False
    """Name the cases and do nothing."""

    def run(self) -> None:
        """Measure what is not finished, sum up, draw."""
        from ggt_lab.bench.case_files import existing_folders, read_cases
        from ggt_lab.bench.cases import KINDS, cases, named

        if self.records:
            self._sum_up(read_cases(existing_folders(self.records)))
            return
        if self.list:
            listed = named(self.only) if self.only else cases(self.what or KINDS, quick=self.quick)
            say("\n".join(case.name for case in listed))
            return
        from ggt_lab.bench.case_runner import unfinished, wanted_cases

        wanted, device = wanted_cases(self.what, self.device, quick=self.quick, only=self.only)
        records = self._measure(wanted, device)
        self._sum_up(read_cases([self.out]))
        for record in records:
            if record["status"] != "done":
                say(f"{record['status']}: {record['case']}: {record['error']}", style="red")
        left = unfinished(wanted, records)
        if left:
            say(f"{len(left)} cases are left: the same command goes on with them")

    def _measure(self, wanted: "Sequence[Case]", device: str) -> "Sequence[Record]":
        from ggt_lab.bench.case_files import write_together
        from ggt_lab.bench.case_runner import run_cases

        with progress_bar(self.out) as progress:
            progress(0, len(wanted), "")
            finished: list[Record] = []

            def count(record: "Record") -> None:
                finished.append(record)
                progress(len(finished), len(wanted), record["case"])
                if self.together is not None:
                    write_together(finished, self.together)

            return run_cases(wanted, self.out, device=device, seconds=self.seconds, longest=self.longest, on_done=count)

    def _sum_up(self, records: "Sequence[Record]") -> None:
        from ggt_lab.bench.speed_summary import write_summary
        from ggt_lab.figures import drawn

        lines, promised = write_summary(records, self.out / "speed.json")
        _show_lines(lines)
        measured = [promise for promise in promised if promise.figure is not None]
        if measured:
            _show_promises(measured)

        def draw() -> Sequence[Path]:
            from ggt_lab.figures.speed_figures import draw_speed

            return draw_speed(records, self.out)

        files = drawn(draw)
        say(f"Results: {self.out / 'speed.json'}")
        if files:
            say(f"Figures: {', '.join(str(file) for file in files if file.suffix == '.png')}")


def _show_lines(lines: "Sequence[Line]") -> None:
    columns = [Column("what"), Column("ms", right=True), Column("ratio", right=True), Column("to")]
    rows = [
        [line.what, f"{line.figure_ms:.4g}", "" if line.ratio is None else f"{line.ratio:.3f}", line.against]
        for line in lines
    ]
    show_table("Measured", columns, rows)


def _show_promises(promised: "Sequence[Promise]") -> None:
    columns = [Column("what"), Column("figure", right=True), Column("target", right=True), Column("")]
    rows = [
        [promise.what, f"{promise.figure:.4g}", f"{'≤' if promise.at_most else '≥'} {promise.target:g}", promise.word]
        for promise in promised
    ]
    show_table("Promised", columns, rows, styles=["" if promise.met else "bold red" for promise in promised])
