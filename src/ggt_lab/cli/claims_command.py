"""``ggt claims``."""

from dataclasses import dataclass
from pathlib import Path

from ggt_lab.cli.options import Positional
from ggt_lab.cli.terminal import Column, show_table

__all__ = ["ClaimsCommand"]


@dataclass(frozen=True)
class ClaimsCommand:
    """Collect every verdict of a folder of records into claims.json and a page, and list what was not run."""

    records: Positional[Path] = Path("records")
    """The folder of dated folders."""
    page: Path | None = Path("docs/claims.md")
    """The page with the table, for people; None writes no page."""

    def run(self) -> None:
        """Read the verdicts, write both files, and count the verdicts of each claim."""
        from ggt_lab.report.claims_page import PAPER, write_claims

        rows = write_claims(self.records, self.page)
        statuses = list(dict.fromkeys(row.status for row in rows))
        table = []
        for claim in PAPER:
            found = [row.status for row in rows if row.claim == claim]
            table.append([claim, *(str(found.count(status) or "") for status in statuses)])
        columns = [Column("claim"), *(Column(status, right=True) for status in statuses)]
        show_table(str(self.records / "claims.json"), columns, table)
