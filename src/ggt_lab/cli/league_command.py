"""``ggt league``."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ggt_lab.cli.terminal import Column, say, show_table

if TYPE_CHECKING:
    from ggt_lab.league.entrants import Entrant
    from ggt_lab.league.play import Field
    from ggt_lab.league.tasks import LeagueTask
    from ggt_lab.runs.results import Record

__all__ = ["LeagueCommand"]

_T = TypeVar("_T", "LeagueTask", "Entrant")
_ROUNDS = 7


@dataclass(frozen=True)
class LeagueCommand:
    """Play the league: tasks × optimizers, equal trials for all, then fresh seeds. Run again to go on."""

    task: tuple[str, ...] = ()
    """Tasks, by name; by default all small tasks: factorization, poisson, digits, burgers, adding, curves, allen-cahn
    and convection. "deep" stands for all deep tasks: gpt-ptb, gpt-bytes, lstm-ptb, shake-shake and resnet. "paper"
    stands for the claims of the paper that were to be run again: r4, r4-full and a1. Both need a GPU."""
    entrant: tuple[str, ...] = ()
    """Entrants, by name or title; by default all: sgd, adamw, muon, normuon, soap, shampoo, lbfgs, adam-lbfgs,
    ssbroyden, ssbfgs, ggt-paper, ggt-parameter, ggt-momentum-polar, ggt-momentum-rows, ggt, ggt-polar, whiten-adamw,
    whiten-muon, whiten-normuon and whiten-soap. For the claims of the paper there are ggt-200, adam and adagrad."""
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
    """cpu or cuda; cuda:1 is the second GPU."""
    data: Path | None = None
    """A folder with the data of the tasks on a GPU."""
    out: Path | None = None
    """Folder of the results; out/league by default, out/league-smoke with --smoke."""
    page: Path | None = None
    """Write the page with all tables to this file, too, with links to the figures of the folder."""

    def run(self) -> None:
        """Make the runs that are missing, then write and show the summary."""
        from ggt_lab.league.play import check_folder, missing_data, own_runs

        self._check_options()
        if self.data is not None:
            os.environ["GGT_DATA"] = str(self.data.resolve())  # the processes that train inherit it
        field = self._field()
        folder = self.out or Path("out/league-smoke" if self.smoke else "out/league")
        check_folder(folder, field, write=not self.summary)
        if self.summary and not own_runs(field, folder):
            raise ValueError(
                f"there are no runs of this protocol in {folder / 'results.jsonl'}; without --summary they are made"
            )
        if self.page is not None:
            self.page.parent.mkdir(parents=True, exist_ok=True)
        if not self.summary:
            self._play(field, folder)
        self._show(field, folder, missing_data(field))

    def _check_options(self) -> None:
        """Refuse what would fail later, before anything is made."""
        if self.jobs < 1:
            raise ValueError(f"need jobs ≥ 1, got jobs={self.jobs}")
        if self.minutes is not None and not self.minutes >= 0:
            raise ValueError(f"need minutes ≥ 0, got minutes={self.minutes:g}")
        if self.page is not None and self.page.is_dir():
            raise ValueError(f"--page is the name of a file, and {self.page} is a folder")
        _check_device(self.device, needed=not self.summary)

    def _field(self) -> "Field":
        """What the options ask for."""
        from ggt_lab.league.play import Field
        from ggt_lab.league.protocol import PROTOCOL, SMOKE

        protocol = SMOKE if self.smoke else PROTOCOL
        kinds = {kind: [t.name for t in protocol.tasks if t.kind == kind] for kind in ("small", "deep", "paper")}
        wanted = [name for word in self.task for name in kinds.get(word.lower(), [word])]
        wanted = wanted or ([task.name for task in protocol.tasks] if self.smoke else kinds["small"])
        names = self.entrant or [entrant.name for entrant in protocol.entrants]
        tasks = {task.name: task for task in (_find("task", protocol.tasks, name) for name in wanted)}
        entrants = {each.name: each for each in (_find("entrant", protocol.entrants, name) for name in names)}
        field = Field(protocol, tuple(tasks.values()), tuple(entrants.values()), self.device)
        if not field.cells():
            who = ", ".join(each.title for each in field.entrants) + (" does" if len(entrants) == 1 else " do")
            raise ValueError(f"{who} not enter {', '.join(tasks)}{' in the smoke league' if self.smoke else ''}")
        return field

    def _play(self, field: "Field", folder: Path) -> None:
        from ggt_lab.cli.terminal import progress_bar
        from ggt_lab.experiments.verdicts import count
        from ggt_lab.league.play import play, unfinished
        from ggt_lab.league.step_times import measure

        total = len(field.cells()) * (field.protocol.trials + len(field.protocol.seeds))
        with progress_bar(folder) as progress:
            made = 0

            def note(run: object, _: object) -> None:
                nonlocal made
                made += 1
                progress(made, max(total, made), str(run))

            complete = play(field, folder, jobs=self.jobs, minutes=self.minutes, on_done=note)
        if not complete:
            cells = count(unfinished(field, folder), "cell needs", "cells need")
            say(f"Time is up, and {cells} more runs. The same command goes on from here.")
        if self.times or self.smoke:
            measure(field, field.tasks[:1] if self.smoke else field.tasks, 1 if self.smoke else _ROUNDS, folder)

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
        for name, why in [*_not_in_a_table(field, summary, without=missing_data), *missing_data.items()]:
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


def _find(kind: str, known: Sequence[_T], word: str) -> _T:
    """The task or the entrant with this name or title; capital letters do not matter."""
    from ggt_lab.problems.unknown_name import unknown

    by_word = {each.title.lower(): each for each in known} | {each.name: each for each in known}
    if word.lower() not in by_word:
        raise unknown(kind, word, [each.name for each in known], f"`ggt league --help` names every {kind}.")
    return by_word[word.lower()]


def _check_device(device: str, *, needed: bool) -> None:
    """Refuse a word that names no device of the league, and a GPU that is needed and not there."""
    import torch

    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if found is None:
        raise ValueError(f"device must be cpu, cuda or a GPU by its number like cuda:0; got {device!r}")
    if device != "cpu" and needed and int(found[1] or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device} was asked for, and torch sees no such CUDA device here; use cpu")


def _not_in_a_table(field: "Field", summary: "Record", without: Mapping[str, str]) -> list[tuple[str, str]]:
    """Why a task of the field is in no table, by task; those whose data is missing are left out."""
    names = {entrant.name for entrant in field.entrants}
    found = []
    for task in field.tasks:
        cells = [cell for cell in summary["cells"] if cell["task"] == task.name]
        if task.name not in without and all(cell["status"] == "not run" for cell in cells):
            reasons = dict.fromkeys(cell["why"] for cell in cells if cell["entrant"] in names and cell["why"])
            found.append((task.name, f"no cell has a result ({'; '.join(reasons) or 'no run was made'})"))
    return found
