"""``ggt report``."""

from dataclasses import dataclass
from pathlib import Path

from ggt_lab.cli.options import Positional
from ggt_lab.cli.terminal import say

__all__ = ["ReportCommand"]


@dataclass(frozen=True)
class ReportCommand:
    """Write one self-contained page about everything in a folder: curves, tables, spectra, verdicts."""

    folder: Positional[Path]
    """A folder that a race, a reproduction or a spectrum wrote; folders inside it are included."""

    def run(self) -> None:
        """Write the page."""
        from ggt_lab.report.page import write_report

        page = write_report(self.folder)
        say(f"Report: {page}\nOpen it in a browser; it needs no network.")
