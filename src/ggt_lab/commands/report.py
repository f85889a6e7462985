"""``ggt report``."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ggt_lab.commands.console import console
from ggt_lab.report import write_report

__all__ = ["ReportCommand"]


@dataclass(frozen=True)
class ReportCommand:
    """Write one self-contained page about everything in a folder: curves, tables, spectra, verdicts."""

    folder: tyro.conf.Positional[Path]
    """What a race, a reproduction or a spectrum wrote to; folders inside of it are included."""

    def run(self) -> None:
        """Write it."""
        page = write_report(self.folder)
        console.print(f"Report: {page}\nOpen it in a browser; it needs no network.")
