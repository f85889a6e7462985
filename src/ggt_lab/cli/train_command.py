"""``ggt train``."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggt_lab.cli.options import Positional
from ggt_lab.cli.terminal import say

if TYPE_CHECKING:
    from ggt_lab.runs.long_run import LongRun
    from ggt_lab.runs.results import Record

__all__ = ["TrainCommand"]


@dataclass(frozen=True)
class TrainCommand:
    """Train long runs of your own choice, with checkpoints. Run again to go on from the same step."""

    runs: Positional[Path]
    """A JSON file with a list of runs: the fields of `ggt_lab.runs.long_run.LongRun`."""
    kept: Path
    """Folder of the checkpoints of runs that are not finished."""
    results: Path
    """The file to which finished runs are appended; their spectra go into the folder `spectra` beside it."""
    seconds: float = math.inf
    """Stop after so many seconds."""
    workers: int = 1
    """How many runs train at a time."""

    def run(self) -> None:
        """Train until all runs are finished or the time is up."""
        from ggt_lab.runs.long_run import read_runs, run_until
        from ggt_lab.runs.results import Results

        runs = read_runs(self.runs)
        left = run_until(
            runs, Results(self.results), self.kept, seconds=self.seconds, workers=self.workers, on_done=_report
        )
        say(f"{left} of {len(runs)} runs are left" if left else "all runs are finished")


def _report(run: "LongRun", record: "Record") -> None:
    final = record["curve"][-1].get(record["metric"]) if record["curve"] else None
    say(f"{run}: {record['status']}, {record['metric']} {final}")
