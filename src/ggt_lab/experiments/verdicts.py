"""Verdicts and their words: the one form in which every experiment answers, on the terminal, in files and in pages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.data.json_files import BOOL_OR_NONE, COUNT, OBJECTS, TEXT, flaw, optional, read_object
from ggt_lab.runs.environment import different_machines, environment
from ggt_lab.runs.results import Record

__all__ = [
    "HOLDS",
    "IN_PART",
    "KINDS",
    "NOT_RUN",
    "Experimented",
    "Figure",
    "Verdict",
    "count",
    "markdown_row",
    "markdown_table",
    "read_verdicts",
    "sentence_about",
    "verdict_on_claim",
    "write_verdicts",
]

HOLDS = {True: "holds", False: "does not hold", None: "undecided"}
"""The verdict in words; None means that the results do not decide."""
NOT_RUN = "not run"
"""The verdict on a claim for which there are no results."""
IN_PART = "holds in part"
"""The verdict on a claim of which some statements hold, and others do not or are undecided."""
KINDS = ("paper", "softer", "beyond the paper", "check")
"""What a statement is: one of the paper; one of the paper with a concession of ours; one that the paper does not make;
or a check of our own runs."""
_SOFTER = ("from epoch 2 on", "of 2.45 within", "at least 0.07 lower than Adam")
_CHECKS = ("every best learning rate lies inside of its grid", "every entrant was run, and no seed diverged")
_BEYOND = ("not compared", "not stated")


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
    """Our figure: by how much the statement holds, or does not."""
    spread: str | None
    """How much our figure varies over seeds."""
    n: int
    """The number of seeds, or of whatever was repeated."""
    holds: bool | None
    """None: the results do not decide."""
    command: str
    """The command that makes these results again."""

    @property
    def word(self) -> str:
        """The verdict as a person says it."""
        return HOLDS[self.holds]

    @property
    def word_or_not_run(self) -> str:
        """The verdict as a person says it; "not run" where there are no results."""
        return self.word if self.n > 0 else NOT_RUN

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if any(check in self.statement for check in _CHECKS):
            return "check"
        if any(concession in self.statement for concession in _SOFTER):
            return "softer"
        return "beyond the paper" if self.paper.startswith(_BEYOND) else "paper"

    @property
    def ours_and_spread(self) -> str:
        """Our figure, and how much it varies."""
        return self.ours + (f"; {self.spread}" if self.spread else "")


@dataclass(frozen=True)
class Figure:
    """A picture of the results."""

    path: Path
    alt: str
    """What it shows, for those who do not see it."""


@dataclass(frozen=True)
class Experimented:
    """What ``verdicts.json`` says about an experiment."""

    title: str
    verdicts: tuple[Verdict, ...]
    figures: tuple[Figure, ...]
    smoke: bool
    """Whether it was a smoke test, which decides nothing."""
    replaces: tuple[tuple[str, str], ...] = ()
    """Claims and statements of older records that these verdicts replace, though their words differ."""


def count(amount: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> count(1, "run"), count(2, "run")
        ('1 run', '2 runs')
    """
    return f"{amount} {noun if amount == 1 else plural or noun + 's'}"


def sentence_about(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, in one sentence."""
    held, failed = (sum(verdict.holds is answer for verdict in verdicts) for answer in (True, False))
    undecided = len(verdicts) - held - failed
    words = f"Of {count(len(verdicts), 'claim')}, {held} {'holds' if held == 1 else 'hold'}"
    words += f", {failed} {'does' if failed == 1 else 'do'} not hold"
    return words + f" and {undecided} {'is' if undecided == 1 else 'are'} undecided."


def verdict_on_claim(verdicts: Sequence[Verdict]) -> str:
    """One verdict on a claim: that of all statements of the paper that were run. Checks and others do not count.

    Example:
        >>> statement = Verdict("S1", "SGD is slower", "SGD is the slowest", "1 against 2", None, 3, True, "")
        >>> verdict_on_claim([statement]), verdict_on_claim([])
        ('holds', 'not run')
    """
    answers = {each.holds for each in verdicts if each.kind == "paper" and each.n > 0}
    if not answers:
        return NOT_RUN
    return HOLDS[answers.pop()] if len(answers) == 1 else IN_PART if True in answers else HOLDS[False]


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def markdown_table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a Markdown table."""
    lines = ["| claim | verdict | paper | ours | n | command |", "|---|---|---|---|---|---|"]
    for verdict in verdicts:
        word = f"**{verdict.word}**" if verdict.holds is False else verdict.word
        cells = (f"{verdict.claim}: {verdict.statement}", word, verdict.paper, verdict.ours_and_spread, str(verdict.n))
        lines.append(f"{markdown_row(cells)} `{verdict.command}` |")
    return "\n".join(lines)


def write_verdicts(
    folder: Path,
    *,
    experiment: str,
    title: str,
    verdicts: Sequence[Verdict],
    figures: Sequence[Figure],
    records: Sequence[Record] = (),
    smoke: bool = False,
    replaces: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write ``folder/verdicts.json``, which the report reads, and ``verdicts.md``, for people.

    ``replaces`` names claims and statements of older records that these verdicts replace in the table of all claims.
    """
    content = {
        "experiment": experiment,
        "title": title,
        "smoke": smoke,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "made_in": different_machines(records),
        "judged_in": environment(),
        "figures": [{"file": figure.path.name, "alt": figure.alt} for figure in figures],
    }
    if replaces:
        content["replaces"] = [{"claim": claim, "statement": statement} for claim, statement in replaces]
    text = f"# {experiment}: {title}\n\n{markdown_table(verdicts)}\n"
    text += "".join(f"\n![{figure.alt}]({figure.path.name})\n" for figure in figures)
    write_atomically(folder / "verdicts.md", text)
    return write_atomically(folder / "verdicts.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_verdicts(path: Path) -> Experimented:
    """What `write_verdicts` wrote.

    Raises:
        ValueError: the file holds something else.
    """
    content = read_object(path)
    found = flaw(content, _FILE)
    if found is not None:
        raise ValueError(found)
    rows, pictures = content["verdicts"], content.get("figures") or []
    for picture in pictures:
        if (found := flaw(picture, {"file": TEXT, "alt": optional(TEXT)})) is not None:
            raise ValueError(f"of one of its figures: {found}")
    replaces = content.get("replaces") or []
    for each in replaces:
        if (found := flaw(each, {"claim": TEXT, "statement": TEXT})) is not None:
            raise ValueError(f"of a statement that it replaces: {found}")
    title = ": ".join(str(content[key]) for key in ("experiment", "title") if content.get(key))
    return Experimented(
        title=title or path.parent.resolve().name,
        verdicts=tuple(map(_read_verdict, rows)),
        figures=tuple(Figure(path.parent / each["file"], each.get("alt") or each["file"]) for each in pictures),
        smoke=bool(content.get("smoke")),
        replaces=tuple((each["claim"], each["statement"]) for each in replaces),
    )


_FILE = {
    "verdicts": OBJECTS,
    **dict.fromkeys(("figures", "replaces"), optional(OBJECTS)),
    "smoke": BOOL_OR_NONE,
}
_SHAPE = {
    **dict.fromkeys(("claim", "statement", "paper", "ours", "command"), TEXT),
    "spread": optional(TEXT),
    "n": COUNT,
    "holds": BOOL_OR_NONE,
}


def _read_verdict(row: Mapping[str, Any]) -> Verdict:
    found = flaw(row, _SHAPE) or (None if "holds" in row else "it has no holds")
    if found is not None:
        raise ValueError(f"of its verdict on claim {row.get('claim')!r}: {found}")
    values: dict[str, Any] = {field.name: row.get(field.name) for field in fields(Verdict)}
    return Verdict(**values)
