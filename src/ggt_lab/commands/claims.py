"""``ggt claims``."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table

from ggt_lab.claims import PAPER, write_claims
from ggt_lab.commands.console import console

__all__ = ["ClaimsCommand"]


@dataclass(frozen=True)
class ClaimsCommand:
    """Collect every verdict of a folder of records into claims.json and a page; what was not run is listed, too."""

    records: tyro.conf.Positional[Path] = Path("records")
    """The folder of dated folders."""
    page: Path | None = Path("docs/claims.md")
    """Where the table goes, for people."""

    def run(self) -> None:
        """Read, write, count."""
        rows = write_claims(self.records, self.page)
        statuses = list(dict.fromkeys(row.status for row in rows))
        table = Table(title=f"{self.records / 'claims.json'}", title_justify="left")
        table.add_column("claim")
        for status in statuses:
            table.add_column(status, justify="right")
        for claim in PAPER:
            found = [row.status for row in rows if row.claim == claim]
            table.add_row(claim, *(str(found.count(status) or "") for status in statuses))
        console.print(table)
