"""``ggt calibrate``."""

from dataclasses import dataclass
from pathlib import Path

from ggt_lab.cli.options import Positional
from ggt_lab.cli.terminal import say

__all__ = ["CalibrateCommand"]


@dataclass(frozen=True)
class CalibrateCommand:
    """Take the constants that `ggt plan` and `ggt scale` predict with from measured steps."""

    folders: Positional[tuple[Path, ...]]
    """Folders that `ggt bench` wrote, all on one kind of GPU."""
    to: Path | None = None
    """The file to write; the file that comes with the lab by default."""

    def run(self) -> None:
        """Read the records, write the constants, and say how well they predict."""
        from ggt_lab.bench.case_files import read_cases
        from ggt_lab.planning.calibration import SHIPPED, write_calibration
        from ggt_lab.planning.calibration_check import calibration_of, worst_and_typical

        found, errors = calibration_of(read_cases(self.folders))
        write_calibration(found, errors, self.to or SHIPPED)
        worst, typical = worst_and_typical(list(errors.values()))
        say(f"{found.hardware}: {len(errors)} cases, error {typical:.1%} typical, {worst:.1%} at worst")
