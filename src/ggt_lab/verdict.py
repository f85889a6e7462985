"""Claims of the paper, judged by results: the one form in which every experiment answers."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ggt_lab.results import Record, environment
from ggt_lab.whole import write_whole

__all__ = ["Figure", "Verdict", "markdown", "write_verdicts"]


@dataclass(frozen=True)
class Verdict:
    """One claim, and what the results say about it. Nothing here is typed in: each field is computed or cited."""

    claim: str
    """Its row in the list of claims, e.g. "S1"."""
    statement: str
    """What is claimed, in one sentence that can be true or false."""
    paper: str
    """The paper's figure, or its words."""
    ours: str
    """Our figure: by how much it holds, or does not."""
    spread: str | None
    """How much it varies over seeds."""
    n: int
    """Seeds, or whatever was repeated."""
    holds: bool | None
    """None: the results do not decide."""
    command: str
    """What makes these results again."""


@dataclass(frozen=True)
class Figure:
    """A picture of the results."""

    path: Path
    alt: str
    """What it shows, for those who do not see it."""


def write_verdicts(
    folder: Path,
    *,
    experiment: str,
    title: str,
    verdicts: Sequence[Verdict],
    figures: Sequence[Figure],
    records: Sequence[Record] = (),
    smoke: bool = False,
) -> Path:
    """Write ``folder/verdicts.json``, which the report reads, and ``verdicts.md``, for people; whole or not at all."""
    content = {
        "experiment": experiment,
        "title": title,
        "smoke": smoke,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "made_in": _machines(records),
        "judged_in": environment(),
        "figures": [{"file": figure.path.name, "alt": figure.alt} for figure in figures],
    }
    text = f"# {experiment}: {title}\n\n{markdown(verdicts)}\n"
    text += "".join(f"\n![{figure.alt}]({figure.path.name})\n" for figure in figures)
    write_whole(folder / "verdicts.md", text)
    return write_whole(folder / "verdicts.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _machines(records: Sequence[Record]) -> list[Record]:
    """Where the results were made, each machine once; with which commands, the records say."""
    found: list[Record] = []
    for record in records:
        machine = {key: value for key, value in record.get("environment", {}).items() if key != "command"}
        if machine and machine not in found:
            found.append(machine)
    return found


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a table."""
    words = {True: "holds", False: "**does not hold**", None: "undecided"}
    lines = ["| claim | verdict | paper | ours | n | command |", "|---|---|---|---|---|---|"]
    for verdict in verdicts:
        ours = verdict.ours + (f"; {verdict.spread}" if verdict.spread else "")
        cells = (f"{verdict.claim}: {verdict.statement}", words[verdict.holds], verdict.paper, ours, str(verdict.n))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} | `{verdict.command}` |")
    return "\n".join(lines)
