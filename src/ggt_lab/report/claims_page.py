"""Every claim of the paper in one table: what the newest records say, or that nothing was run.

``ggt claims`` reads every ``verdicts.json`` and every record of speed below a folder. It writes ``claims.json`` into
that folder, and a page for people. The names of the folders below it begin with dates. Of two verdicts on one statement
the verdict in the later folder counts; of two folders with one date the later in the alphabet counts. A verdict without
runs never hides a verdict with runs. A record may also name statements in other words that it replaces: the league does
so for claims that it ran again. Smoke tests do not count. Verdicts of old records are said in the words of today
(`ggt_lab.report.plain_words`) before statements are compared.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ggt_lab.bench.case_files import read_cases
from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.experiments.speed_claims import speed_verdicts
from ggt_lab.experiments.verdicts import (
    HOLDS,
    KINDS,
    NOT_RUN,
    Verdict,
    count,
    markdown_row,
    read_verdicts,
    verdict_on_claim,
)
from ggt_lab.report.plain_words import in_plain_words

__all__ = ["PAPER", "Row", "collect", "page", "write_claims"]

PAPER: Mapping[str, str] = {
    "S1": "Logistic regression: SGD is slowest, diagonal AdaGrad is faster, full-matrix AdaGrad is fastest. "
    "A window helps a little",
    "S2": "Analytic centre of a polytope: the order is the order of S1. Forgetting helps clearly",
    "C1": "CNN on CIFAR-10: at every epoch, GGT has a lower training loss than SGD, Adam and AdaGrad",
    "C2": "CNN on CIFAR-10: SGD has the lowest test error, less than 0.2 % below GGT. "
    "Fixed and low learning rates are worse",
    "C3": "CNN on CIFAR-10: in seconds, GGT does not always win",
    "R1": "Character LSTM on PTB: GGT has the best training and validation perplexity for the first 50 epochs",
    "R2": "Character LSTM on PTB: GGT reaches a validation perplexity of 2.42 after 500 epochs "
    "(Adam 2.51, AdaGrad 2.65, SGD 2.76)",
    "R3": "Character LSTM on PTB: in seconds, GGT is ahead throughout",
    "R4": "Word LSTM on PTB: GGT is level with Adam, and ahead only in the first 20 epochs or so",
    "O1": "A step with GGT (200 rows) takes 1.3 times (CNN) and 2 times (RNN) the time of a step with SGD",
    "O2": "On a GPU, eigh of GᵀG is more than 10 times as fast as the SVD of G",
    "E1": "The condition number of GᵀG is about 10³. CNN gradients become more anisotropic at the end. "
    "On the RNN it reaches 10⁶ early",
    "A1": "VGG-19 without batch norm: diagonal methods fail to train. GGT keeps up with SGD, and ends about 1 % behind",
    "A2": "Transformer on PTB characters: GGT leads at first, and then Adam wins",
    "P1": "Options of GGT (momentum in the window, β₂ = 1, r ≈ 1/(1 − β₂), jitter, decoupled ε) have small effects",
    "P2": "The method of GGT also gives full-matrix RMSprop, Adadelta and Nadam",
    "T1": "Algorithm 3 reaches E‖∇f‖ ≤ ε within its bound",
    "T2": "The adaptive ratio μ has a bound that does not depend on T",
    "T3": "On ‖x‖² with sparse noise, μ ≲ ‖x₁‖₁/(‖x₁‖₂√d)",
}
"""The claims of the paper, in the order of our list of them."""

_NAMES = (
    "- **GGT by parameter** has a matrix for each parameter. **GGT** has one matrix for the model.",
    "- **SGD fixed** and **GGT fixed** keep their learning rate. **SGD low** and **GGT low** have a tenth of the "
    "tuned learning rate.",
    "- **mean steps**: a seed that does not reach the level counts with all steps of its run.",
    "- **n** is the number of seeds, or of whatever else was repeated.",
)
"""Words of the tables that need an explanation."""


@dataclass(frozen=True)
class Row(Verdict):
    """A verdict on one statement of a claim, and the folder that it comes from."""

    status: str
    """ "holds", "does not hold", "undecided" or "not run"."""
    record: str
    """The folder, relative to the folder of all records."""
    about: str
    """One of `ggt_lab.experiments.verdicts.KINDS`."""


def collect(records: Path) -> list[Row]:
    """A row for each statement, and at least one row for each claim, in the order of `PAPER`.

    Args:
        records: the folder of dated folders.

    Raises:
        ValueError: a verdict of a claim that the paper does not make, or a file that cannot be read.
    """
    newest: dict[tuple[str, str], Row] = {}
    for folder in sorted(path for path in records.iterdir() if path.is_dir()):
        found, replaced = _verdicts(folder, records)
        for key in replaced:
            newest.pop(key, None)
        for verdict, where in found:
            if verdict.claim not in PAPER:
                raise ValueError(f"{where}: there is no claim {verdict.claim!r}; there are {', '.join(PAPER)}")
            row, key = _row(verdict, where), (verdict.claim, verdict.statement)
            if row.n > 0 or key not in newest:
                newest[key] = row
    rows = list(newest.values())
    for claim, words in PAPER.items():
        mine = [row for row in rows if row.claim == claim]
        if not mine:
            rows.append(Row(claim, words, words, NOT_RUN, None, 0, None, "", NOT_RUN, "", KINDS[0]))
    order = list(PAPER)
    return sorted(rows, key=lambda row: order.index(row.claim))


def _verdicts(folder: Path, records: Path) -> tuple[list[tuple[Verdict, str]], list[tuple[str, str]]]:
    """All verdicts of one dated folder, each with the folder that it comes from; claims and statements it replaces."""
    found, replaced = [], list[tuple[str, str]]()
    for file in sorted(folder.rglob("verdicts.json")):
        try:
            read = read_verdicts(file)
        except ValueError as error:
            raise ValueError(f"{file} is not what `ggt reproduce` writes ({error}); run it again") from error
        if not read.smoke:
            found += [(in_plain_words(verdict), str(file.parent.relative_to(records))) for verdict in read.verdicts]
            replaced += read.replaces
    return found + [(verdict, folder.name) for verdict in speed_verdicts(read_cases([folder]))], replaced


def _row(verdict: Verdict, where: str) -> Row:
    return Row(**asdict(verdict), status=verdict.word_or_not_run, record=where, about=verdict.kind)


def page(rows: Sequence[Row], records: str) -> str:
    """The table as Markdown.

    Args:
        rows: what `collect` returned.
        records: the path from the page to the folder of the records.
    """
    lines = [
        "# Every claim of the paper, and what we measured",
        "",
        "`ggt claims` wrote this page from the records. No figure is typed in by hand. "
        f"[claims.json]({records}/claims.json) holds the rows as JSON. [experiments.md](experiments.md) explains them.",
        "",
        *_one_verdict_each(rows),
        "",
        *_NAMES,
    ]
    for claim, words in PAPER.items():
        lines += ["", f"## {claim}", "", f"{words}.", "", "| statement | verdict | paper | ours | n | record |"]
        lines.append("|---|---|---|---|---|---|")
        # The paper's statements first; checks of our runs are the last.
        for row in sorted((row for row in rows if row.claim == claim), key=lambda row: KINDS.index(row.about)):
            link = f"[{row.record}]({records}/{row.record}): `{row.command}`" if row.record else ""
            verdict = f"**{row.status}**" if row.status == HOLDS[False] else row.status
            lines.append(markdown_row((row.statement, verdict, row.paper, row.ours_and_spread, str(row.n), link)))
    return "\n".join(lines) + "\n"


def _one_verdict_each(rows: Sequence[Row]) -> list[str]:
    """One line and one verdict for each claim, and the number of its statements with each verdict."""
    statuses = (HOLDS[True], HOLDS[False], HOLDS[None], NOT_RUN)
    of_the_paper = [row for row in rows if row.about == KINDS[0]]
    lines = [
        "One verdict for each claim. A claim *holds* if all its statements hold, and *holds in part* if some do. It "
        "*does not hold* if none holds and at least one fails, and is *undecided* if all are. Statements that were not "
        'run do not count. Neither do statements that are softer than those of the paper ("from epoch 2 on"), '
        'statements that the paper does not make, and checks of our own runs ("every best learning rate lies inside of '
        'its grid").',
        "",
        "| | claim | verdict | statements that hold | do not hold | undecided | not run |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim, words in PAPER.items():
        mine = [row for row in of_the_paper if row.claim == claim]
        counts = [str(sum(row.status == status for row in mine)) for status in statuses]
        link = f"[{claim}](#{claim.lower()})"
        lines.append(markdown_row((link, f"{words}.", f"**{verdict_on_claim(mine)}**", *counts)))
    others = len(rows) - len(of_the_paper)
    return [*lines, "", f"{count(len(of_the_paper), 'statement')} of the paper, and {others} others, in tables below."]


def write_claims(records: Path, to: Path | None) -> list[Row]:
    """Write ``records/claims.json``, and the page if ``to`` names one."""
    if not records.is_dir():
        raise ValueError(f"there is no folder {records} of records")
    rows = collect(records)
    content: dict[str, Any] = {"claims": [asdict(row) for row in rows]}
    write_atomically(records / "claims.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if to is not None:
        write_atomically(to, page(rows, Path(os.path.relpath(records, to.parent)).as_posix()))
    return rows
