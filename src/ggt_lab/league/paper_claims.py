"""The claims of the paper that the league judges, by the kinds of claims that judge the paper's experiments.

An entrant counts when its cell is complete. Where all of its trials diverged, it counts as diverged. A claim whose
entrants are not there yet is not run. The points of a curve are the evaluations of a run, and all numbers are of data
that nobody was tuned on: the perplexity of the test text stands where the old records have that of the validation text.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ggt_lab.experiments.claim import Claim, Runs
from ggt_lab.experiments.curve_claims import EarlyLead, FastestAfterDecays
from ggt_lab.experiments.end_claims import Compared, GapAtEnd, LevelAtEnd
from ggt_lab.experiments.verdicts import Verdict
from ggt_lab.experiments.wall_clock_claims import FirstInSeconds, StepTimes
from ggt_lab.league.cells import Cell, cell_of, fresh_records
from ggt_lab.league.play import Field
from ggt_lab.league.tasks import LeagueTask
from ggt_lab.runs.results import Record

__all__ = ["BETTER", "CLAIMS", "DOUBTS", "NAMES", "Doubt", "judged", "replaced_by"]

NAMES = {
    **{"ggt-200": "GGT", "adam": "Adam", "adagrad": "AdaGrad", "sgd": "SGD"},
    **{"adamw": "AdamW", "muon": "Muon", "normuon": "NorMuon", "soap": "SOAP"},
}
"""The entrants as the claims name them."""
_BASELINES, _NEWER = ("Adam", "AdaGrad", "SGD"), ("AdamW", "Muon", "NorMuon", "SOAP")
_TEST, _TRAINING = "test_perplexity", "train_perplexity"
_ALIKE = ", tuned alike: "
"""The words between the length of the runs and what is claimed."""
_AFTER_500 = "after 500 epochs 2.42, Adam 2.51, AdaGrad 2.65, SGD 2.76"


def _in_seconds(where: str, others: tuple[str, ...], paper: str) -> FirstInSeconds:
    missing = "`ggt league --task lstm-ptb --times` measures them"
    return FirstInSeconds(
        "R3", "GGT", others, _TEST, "lstm-ptb", paper, where=where, at="at one of ten looks", measure=missing
    )


_WORD_LSTM: Sequence[Claim] = (
    LevelAtEnd("R4", "GGT", "Adam", _TEST, 1.0, "level with Adam"),
    EarlyLead("R4", "GGT", "Adam", _TEST, "ahead only in the first ~20 epochs", until=(10, 30)),
)

CLAIMS: Mapping[str, Sequence[Claim]] = {
    "gpt-ptb": [
        claim
        for key in (_TRAINING, _TEST)
        for claim in (
            EarlyLead("A2", "GGT", "Adam", key, "an initial lead of GGT, then Adam wins", unit="look"),
            GapAtEnd("A2", "Adam", "GGT", key, 0.0, "Adam wins in the end"),
            Compared("A2", "GGT", _NEWER, key),
        )
    ],
    "lstm-ptb": [
        *(GapAtEnd("R2", "GGT", name, _TEST, 0.0, _AFTER_500) for name in _BASELINES),
        Compared("R2", "GGT", _NEWER, _TEST),
        _in_seconds("with batches of 128", _BASELINES, "ahead in wall-clock throughout"),
        _in_seconds("against AdamW, Muon, NorMuon and SOAP", _NEWER, "not compared"),
    ],
    "r4": _WORD_LSTM,
    "r4-full": _WORD_LSTM,
    "a1": [
        GapAtEnd("A1", "GGT", "SGD", "test_error", -0.015, "about 1 % behind SGD at the end"),
        GapAtEnd("A1", "GGT", "Adam", "train_loss", 0.1, "diagonal methods fail to train"),
        GapAtEnd("A1", "GGT", "AdaGrad", "train_loss", 0.1, "diagonal methods fail to train"),
        FastestAfterDecays("A1", "GGT", _BASELINES, "train_loss", "GGT trains the most rapidly just after each decay"),
        *(Compared("A1", "GGT", _NEWER, key) for key in ("train_loss", "test_error")),
    ],
}
"""The claims that each task judges."""


class Doubt(NamedTuple):
    """Why runs do not decide a claim: what the trials of an entrant chose is badly tuned, as other runs show."""

    task: str
    what: str
    """The claim, or one of its statements."""
    entrant: str
    lr: float
    momentum: float
    """What the trials chose. Runs with another choice are not doubted."""
    reason: str


DOUBTS = (
    Doubt(
        *("r4", "R4", "adam", 10**-3.5, 0.8),
        "undecided, because Adam is not well tuned: seven of its eight trials of 884 steps end near the frequencies of "
        "the words, and an earlier Adam (batches of 20, rate 5e-4, records/2026-11-17-ptb-words/batch-20.jsonl) has a "
        "validation perplexity of 204 at this step, the tuned one 269",
    ),
    Doubt(
        *("lstm-ptb", "GGT ends with a lower test perplexity than Adam", "adam", 1e-2, 0.9),
        "undecided, because Adam is not well tuned: its trials of 600 steps chose momentum 0.9, as those of AdamW did, "
        "whose trials of full length choose 0.8, with a test perplexity of 2.54 (one seed)",
    ),
)
"""What such runs would decide stays undecided."""
BETTER = {"r4": "r4-full"}
"""The task that judges the claims of another task once it was played."""


def judged(
    field: Field,
    done: Mapping[str, Record],
    step_seconds: Mapping[tuple[str, str], float],
    doubts: Sequence[Doubt] = DOUBTS,
) -> list[Verdict]:
    """The verdicts on the paper's claims by the tasks of a field on which the paper's GGT has a finished run.

    Args:
        field: the protocol, the tasks and the device on which they were played.
        done: the finished runs by key.
        step_seconds: the seconds of a step, by task and entrant.
        doubts: as `DOUBTS`.
    """
    played = {record["task"] for record in done.values() if record["entrant"] == "ggt-200"}
    verdicts = []
    for task in field.tasks:
        if task.name not in CLAIMS or task.name not in played or BETTER.get(task.name) in played:
            continue
        entrants = [each for one, each in field.cells() if one == task and each.name in NAMES]
        cells = {NAMES[each.name]: cell_of(field, task, each, done) for each in entrants}
        runs = {NAMES[each.name]: _runs(field, task, cells[NAMES[each.name]], done) for each in entrants}
        command = f"ggt league --task {task.name} --device {field.device}"
        times = _step_times(task, step_seconds)
        claims = [replace(c, times=times) if isinstance(c, FirstInSeconds) else c for c in CLAIMS[task.name]]
        found = [claim.verdict(runs, command) for claim in claims]
        for doubt in doubts:
            cell = cells.get(NAMES[doubt.entrant])
            if task.name == doubt.task and cell is not None and _chose(cell, doubt):
                found = [
                    replace(each, holds=None, ours=f"{each.ours}; {doubt.reason}")
                    if doubt.what in (each.claim, each.statement)
                    else each
                    for each in found
                ]
        found += _about_the_runs(found[0].claim, list(cells.items()), runs, command)
        verdicts += [
            replace(verdict, statement=f"in {task.steps} steps{_ALIKE}{verdict.statement}") for verdict in found
        ]
    return verdicts


def replaced_by(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """The claims and statements of older records that these verdicts replace: those of another length and split.

    The old runs of R2, R3 and A2 are many times as long as ours. Their verdicts stay beside the new ones.
    """
    return [
        (each.claim, each.statement.partition(_ALIKE)[2].replace("test perplexity", "validation perplexity"))
        for each in verdicts
        if each.n > 0 and each.claim in ("R4", "A1")
    ]


def _runs(field: Field, task: LeagueTask, cell: Cell, done: Mapping[str, Record]) -> list[Record]:
    """The fresh runs of a complete cell as the claims want them; diverged ones where all trials diverged."""
    if cell.status == "diverged":
        return [{"status": "diverged", "curve": [{"epoch": 0, "step": 0}]} for _ in field.protocol.seeds_of(task)]
    if cell.status != "done":
        return []
    records = fresh_records(field, task, field.protocol.entrant(cell.entrant), done)
    return [
        {"status": r["status"], "curve": [{"epoch": epoch, **_whole(point)} for epoch, point in enumerate(r["points"])]}
        for r in records
    ]


def _whole(point: Mapping[str, float]) -> dict[str, float]:
    """A point with its test perplexity; runs of the season's first days have the test loss alone."""
    return {"test_perplexity": math.exp(point["test_loss"]), **point}


def _step_times(task: LeagueTask, step_seconds: Mapping[tuple[str, str], float]) -> StepTimes | None:
    """The step times of a task; None where they were not measured."""
    ms = {NAMES[name]: 1000 * each for (where, name), each in step_seconds.items() if where == task.name}
    if "SGD" not in ms:
        return None
    ratios = {name: each / ms["SGD"] for name, each in ms.items()}
    return StepTimes({task.name: {"times": {"SGD": {"median_ms": ms["SGD"]}}, "over_SGD": ratios}})


def _about_the_runs(claim: str, cells: Sequence[tuple[str, Cell]], runs: Runs, command: str) -> list[Verdict]:
    """Whether every best rate lies inside of its grid, and who took part."""
    n = max(map(len, runs.values()))
    tuned = [(name, cell) for name, cell in cells if cell.status == "done"]
    edges = [name for name, cell in tuned if cell.edge]
    rates = ", ".join(f"{name} {cell.lr:.2g}" for name, cell in tuned)
    took = [name for name, cell in cells if runs[name]]
    missing = [f"{name}: not run ({cell.why or 'no run'})" for name, cell in cells if not runs[name]]
    diverged = [f"{name} {cell.why or f'{cell.diverged} of {len(cell.values)}'}" for name, cell in cells if _lost(cell)]
    skipped = [f"{name} {cell.skipped}" for name, cell in tuned if cell.skipped]
    words = [f"took part: {', '.join(took) or 'nobody'}", *missing]
    words += [f"diverged seeds: {', '.join(diverged)}"] if diverged else []
    words += [f"skipped steps: {', '.join(skipped)}" if skipped else "no step was skipped"]
    return [
        Verdict(
            claim,
            "every best learning rate lies inside of its grid",
            "learning rates tuned per optimizer",
            f"at the edge: {', '.join(edges)}; of {rates}" if edges else f"all inside: {rates}",
            None,
            n,
            not edges if tuned else None,
            command,
        ),
        Verdict(
            claim,
            "every entrant was run, and no seed diverged",
            "not stated",
            "; ".join(words),
            None,
            n,
            not missing and not diverged if took else None,
            command,
        ),
    ]


def _chose(cell: Cell, doubt: Doubt) -> bool:
    momentum = dict(cell.settings).get("momentum")
    return cell.status == "done" and math.isclose(cell.lr, doubt.lr, rel_tol=1e-3) and momentum == doubt.momentum


def _lost(cell: Cell) -> bool:
    return cell.status == "diverged" or cell.diverged > 0
