"""Claims of the paper, judged by results: the one form in which every experiment answers."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Figure", "Verdict", "write_verdicts"]


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
    folder: Path, *, experiment: str, title: str, verdicts: Sequence[Verdict], figures: Sequence[Figure]
) -> Path:
    """Write ``folder/verdicts.json``, which the report reads; whole or not at all."""
    content = {
        "experiment": experiment,
        "title": title,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "figures": [{"file": figure.path.name, "alt": figure.alt} for figure in figures],
    }
    path = folder / "verdicts.json"
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    draft.replace(path)
    return path
