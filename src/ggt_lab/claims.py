"""Every claim of the paper in one table: what the newest records say, or that nothing was run.

    python -m ggt_lab.claims records [--page docs/claims.md]

reads every ``verdicts.json`` and every record of speed below the folder, and writes ``claims.json`` into it, and a
page. Folders are dated: of two verdicts on one statement that of the later folder counts (of one day, the later in the
alphabet), and one for which nothing was run never hides one for which something was. Smoke tests do not count.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ggt_lab.bench.claims import speed_verdicts
from ggt_lab.results import read_cases
from ggt_lab.verdict import Verdict
from ggt_lab.whole import write_whole

__all__ = ["PAPER", "Row", "collect", "page", "write_claims"]

PAPER: Mapping[str, str] = {
    "S1": "Logistic regression: SGD slowest, diagonal AdaGrad faster, full-matrix fastest; a window helps a little",
    "S2": "Analytic centre of a polytope: the same order, and forgetting helps clearly",
    "C1": "CIFAR-10 CNN: GGT has the lowest training loss of SGD, Adam, AdaGrad, GGT per epoch",
    "C2": "CIFAR-10 CNN: SGD generalizes slightly best, GGT's gap < 0.2 %; fixed and low learning rates are worse",
    "C3": "CIFAR-10 CNN: not an unconditional win in wall-clock",
    "R1": "PTB character LSTM: GGT best in training and validation perplexity for the first 50 epochs",
    "R2": "PTB character LSTM: validation perplexity 2.42 after 500 epochs (Adam 2.51, AdaGrad 2.65, SGD 2.76)",
    "R3": "PTB character LSTM: GGT ahead in wall-clock throughout",
    "R4": "PTB word-level LSTM: level with Adam, ahead only in the first ~20 epochs",
    "O1": "Overhead against SGD: 1.3 times (CNN), 2 times (RNN), r = 200",
    "O2": "eigh of GᵀG beats the SVD of G by more than 10 times on a GPU",
    "E1": "Spectrum of GᵀG over training: condition ~10³; CNN more anisotropic at the end; RNN early up to 10⁶",
    "A1": "VGG-19 without batch norm: diagonal methods fail to train, GGT keeps up with SGD, ~1 % behind at the end",
    "A2": "Transformer on PTB characters: an early lead, then Adam wins",
    "P1": "Momentum in the window, β₂ = 1, r ≈ 1/(1 − β₂), jitter, decoupled ε: small effects",
    "P2": "The same device gives full-matrix RMSprop, Adadelta, Nadam",
    "T1": "Algorithm 3 reaches E‖∇f‖ ≤ ε within its bound",
    "T2": "The adaptive ratio μ, bounded independently of T",
    "T3": "On ‖x‖² with sparse noise, μ ≲ ‖x₁‖₁/(‖x₁‖₂√d)",
}
"""The paper's claims, in its order of sections as our list has them."""


@dataclass(frozen=True)
class Row(Verdict):
    """A verdict on one statement of a claim, and where it comes from."""

    status: str
    """ "holds", "does not hold", "undecided" or "not run"."""
    record: str
    """The folder, below that of the records."""


def collect(records: Path) -> list[Row]:
    """A row per statement, claims in the order of `PAPER`; at least one for each claim.

    Args:
        records: the folder of dated folders.

    Raises:
        ValueError: a verdict of a claim that the paper does not make, or a file that cannot be read.
    """
    newest: dict[tuple[str, str], Row] = {}
    for folder in sorted(path for path in records.iterdir() if path.is_dir()):
        for verdict, where in _verdicts(folder, records):
            if verdict.claim not in PAPER:
                raise ValueError(f"{where}: there is no claim {verdict.claim!r}; there are {', '.join(PAPER)}")
            row, key = _row(verdict, where), (verdict.claim, verdict.statement)
            if row.n > 0 or key not in newest:
                newest[key] = row
    rows = list(newest.values())
    for claim, words in PAPER.items():
        mine = [row for row in rows if row.claim == claim]
        if not mine:
            rows.append(Row(claim, words, words, "not run", None, 0, None, "", "not run", ""))
    order = list(PAPER)
    return sorted(rows, key=lambda row: order.index(row.claim))


def _verdicts(folder: Path, records: Path) -> list[tuple[Verdict, str]]:
    """All of one dated folder, each with where it is from."""
    found = []
    for file in sorted(folder.rglob("verdicts.json")):
        try:
            content = json.loads(file.read_text())
            mine = [Verdict(**each) for each in content["verdicts"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is not what `ggt reproduce` writes ({error}); run it again") from error
        if not content.get("smoke"):
            found += [(verdict, str(file.parent.relative_to(records))) for verdict in mine]
    return found + [(verdict, folder.name) for verdict in speed_verdicts(read_cases([folder]))]


def _row(verdict: Verdict, where: str) -> Row:
    words = {True: "holds", False: "does not hold", None: "undecided"}
    status = words[verdict.holds] if verdict.n > 0 else "not run"
    return Row(**asdict(verdict), status=status, record=where)


def page(rows: Sequence[Row], records: str) -> str:
    """The table as Markdown.

    Args:
        rows: of `collect`.
        records: where the folder of the records is, seen from the page.
    """
    counts = {status: sum(row.status == status for row in rows) for status in dict.fromkeys(row.status for row in rows)}
    lines = [
        "# Every claim of the paper, and what we measured",
        "",
        "Made by `ggt claims` from the records; nothing in it is typed in. The same as JSON: "
        f"[claims.json]({records}/claims.json). What it means: [experiments.md](experiments.md).",
        "",
        f"{len(rows)} statements: " + ", ".join(f"{count} {status}" for status, count in counts.items()) + ".",
    ]
    for claim, words in PAPER.items():
        lines += ["", f"## {claim}", "", f"{words}.", "", "| statement | verdict | paper | ours | n | record |"]
        lines.append("|---|---|---|---|---|---|")
        for row in (row for row in rows if row.claim == claim):
            ours = row.ours + (f"; {row.spread}" if row.spread else "")
            link = f"[{row.record}]({records}/{row.record}): `{row.command}`" if row.record else ""
            verdict = f"**{row.status}**" if row.status == "does not hold" else row.status
            cells = (row.statement, verdict, row.paper, ours, str(row.n), link)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def write_claims(records: Path, to: Path | None) -> list[Row]:
    """Write ``records/claims.json`` and, if wanted, the page; whole or not at all."""
    if not records.is_dir():
        raise ValueError(f"there is no folder {records} of records")
    rows = collect(records)
    content: dict[str, Any] = {"claims": [asdict(row) for row in rows]}
    write_whole(records / "claims.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if to is not None:
        write_whole(to, page(rows, Path(os.path.relpath(records, to.parent)).as_posix()))
    return rows


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="?", default=Path("records"))
    parser.add_argument("--page", type=Path, help="where the table goes, for people")
    arguments = parser.parse_args()
    try:
        rows = write_claims(arguments.records, arguments.page)
    except ValueError as error:
        parser.error(str(error))
    for claim in PAPER:
        print(f"{claim}: " + ", ".join(row.status for row in rows if row.claim == claim))


if __name__ == "__main__":
    main()
