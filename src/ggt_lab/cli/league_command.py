"""``ggt league``."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ggt_lab.cli.terminal import Column, say, show_table

if TYPE_CHECKING:
    from ggt_lab.league.play import Field
    from ggt_lab.runs.results import Record

__all__ = ["LeagueCommand"]

_T = TypeVar("_T")
_ROUNDS = 7


@dataclass(frozen=True)
class LeagueCommand:
    """Play the league: tasks × optimizers, equal trials for all, then fresh seeds. Run again to go on."""

    task: tuple[str, ...] = ()
    """Tasks, by name; by default all small tasks. "deep" stands for all deep tasks and "paper" for the claims of the
    paper that were to be run again. Both need a GPU."""
    entrant: tuple[str, ...] = ()
    """Entrants, by name; by default all."""
    smoke: bool = False
    """Tiny runs, under a minute: does it run here? All entrants on one task, and two entrants on every task."""
    jobs: int = 1
    """How many runs train at a time."""
    minutes: float | None = None
    """Begin no run after this time; the same command goes on later."""
    times: bool = False
    """Measure the time of a step of every entrant, in turns, after the runs; best where nothing else runs."""
    summary: bool = False
    """Make no run: write the summary of the runs that are there."""
    device: str = "cpu"
    """cpu or cuda."""
    data: Path | None = None
    """A folder with the data of the tasks on a GPU."""
    out: Path | None = None
    """Folder of the results; out/league by default, out/league-smoke with --smoke."""
    page: Path | None = None
    """Write the page with all tables to this file, too, with links to the figures of the folder."""

    def run(self) -> None:
        """Make the runs that are missing, then write and show the summary."""
        from ggt_lab.league.play import Field, check_folder, missing_data
        from ggt_lab.league.protocol import PROTOCOL, SMOKE

        if self.jobs < 1:
            raise ValueError(f"need jobs ≥ 1, got jobs={self.jobs}")
        if self.data is not None:
            os.environ["GGT_DATA"] = str(self.data.resolve())  # the processes that train inherit it
        protocol = SMOKE if self.smoke else PROTOCOL
        names = [task.name for task in protocol.tasks]
        kinds = {kind: [t.name for t in protocol.tasks if t.kind == kind] for kind in ("small", "deep", "paper")}
        wanted = [name for word in self.task for name in kinds.get(word, [word])]
        wanted = wanted or (names if self.smoke else kinds["small"])
        tasks = tuple(_find("task", protocol.task, name, names) for name in dict.fromkeys(wanted))
        known = [entrant.name for entrant in protocol.entrants]
        entrants = tuple(_find("entrant", protocol.entrant, name, known) for name in self.entrant or known)
        folder = self.out or Path("out/league-smoke" if self.smoke else "out/league")
        field = Field(protocol, tasks, entrants, self.device)
        check_folder(folder, field)
        if not self.summary:
            self._play(field, folder)
        self._show(field, folder, missing_data(field))

    def _play(self, field: "Field", folder: Path) -> None:
        from ggt_lab.cli.terminal import progress_bar
        from ggt_lab.league.play import play
        from ggt_lab.league.step_times import TimedTask, timed
        from ggt_lab.runs.process_pool import processes, run_all
        from ggt_lab.runs.results import Results

        total = len(field.cells()) * (field.protocol.trials + len(field.protocol.seeds))
        with progress_bar(folder) as progress:
            count = 0

            def note(run: object, _: object) -> None:
                nonlocal count
                count += 1
                progress(count, max(total, count), str(run))

            play(field, folder, jobs=self.jobs, minutes=self.minutes, on_done=note)
        if self.times or self.smoke:
            rounds, tasks = (1, field.tasks[:1]) if self.smoke else (_ROUNDS, field.tasks)
            timings = [TimedTask(field, task, rounds) for task in tasks]
            with processes(1) as pool:  # one process: nothing of ours runs beside it
                run_all(timings, timed, Results(folder / "times.jsonl"), pool)

    def _show(self, field: "Field", folder: Path, missing_data: dict[str, str]) -> None:
        from ggt_lab.data.atomic_files import write_atomically
        from ggt_lab.figures import drawn
        from ggt_lab.league.summary import summarize
        from ggt_lab.league.tables import CELLS, VERDICTS, page, parts

        summary: Record = summarize(field, folder, missing_data)
        self._write_verdicts(summary, folder)
        write_atomically(folder / "league.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
        write_atomically(folder / "league.md", page(summary))
        if self.page is not None:
            figures = os.path.relpath(folder, self.page.parent) + "/"
            write_atomically(self.page, page(summary, figures))
        for table in parts(summary):
            if table.title in (*CELLS, VERDICTS) and table.rows:  # a league of deep tasks has no table of small ones
                show_table(table.words, list(map(Column, table.columns)), table.rows)

        def draw() -> list[Path]:
            from ggt_lab.figures.league_figures import draw_cells, draw_profiles

            return [*draw_cells(summary, folder / "cells"), *draw_profiles(summary, folder / "profiles")]

        drawn(draw)
        for name, why in missing_data.items():
            say(f"{name}: {why}")
        say(f"All tables: {folder / 'league.md'}\nA page with all of it: ggt report {folder}")

    def _write_verdicts(self, summary: "Record", folder: Path) -> None:
        """Write the verdicts on claims of the paper, if a task of the paper was played."""
        from ggt_lab.experiments.verdicts import Verdict, write_verdicts
        from ggt_lab.league.paper_claims import replaced_by

        if self.smoke:  # tiny sizes decide nothing
            summary["claims"] = [{**each, "holds": None} for each in summary["claims"]]
        verdicts = [Verdict(**each) for each in summary["claims"]]
        if verdicts:
            write_verdicts(
                folder,
                experiment="league",
                title="claims of the paper, tuned alike",
                verdicts=verdicts,
                figures=[],
                records=[{"environment": each} for each in summary["machines"]],
                smoke=self.smoke,
                replaces=replaced_by(verdicts),
            )


def _find(kind: str, get: Callable[[str], _T], name: str, known: list[str]) -> _T:
    from ggt_lab.problems.unknown_name import unknown

    if name not in known:
        raise unknown(kind, name, known, "`ggt league --help` has more.")
    return get(name)
