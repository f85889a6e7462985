"""The table of all claims: none is left out, the newest counts, what was not run never hides what was."""

import argparse
import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ggt_lab.experiments.catalogue import chosen_experiment
from ggt_lab.experiments.speed_claims import speed_verdicts
from ggt_lab.experiments.verdicts import Verdict, read_verdicts, verdict_on_claim, write_verdicts
from ggt_lab.league.play import Field
from ggt_lab.league.protocol import PROTOCOL
from ggt_lab.league.summary import summarize
from ggt_lab.report.claims_page import PAPER, collect, page, write_claims
from ggt_lab.report.plain_words import in_plain_words, plain
from ggt_lab.runs.results import Results

ROOT = Path(__file__).parents[2]
VERDICT = Verdict("R1", "GGT is best", "best", "2.4 against 2.5", "± 0.1", 3, True, "ggt reproduce R1")


def record(folder, *verdicts, smoke=False):
    folder.mkdir(parents=True, exist_ok=True)
    write_verdicts(folder, experiment="X", title="t", verdicts=verdicts, figures=[], smoke=smoke)


def of(rows, claim):
    return [row for row in rows if row.claim == claim]


def test_no_claim_of_the_paper_is_left_out(tmp_path):
    record(tmp_path / "2026-01-01-a" / "R1", VERDICT)
    rows = collect(tmp_path)
    wanted = ["S1", "S2", "C1", "C2", "C3", "R1", "R2", "R3", "R4", "O1", "O2", "E1", "A1", "A2", "P1", "P2"]
    wanted += ["T1", "T2", "T3"]
    assert list(dict.fromkeys(row.claim for row in rows)) == wanted
    assert {row.claim for row in rows if row.status == "not run"} == set(wanted) - {"R1"}
    (row,) = of(rows, "R1")
    assert (row.status, row.record, row.command) == ("holds", "2026-01-01-a/R1", "ggt reproduce R1")


def test_where_results_were_made_is_not_where_they_were_judged(tmp_path):
    gpu = {"torch": "2.11.0", "gpu": "a GPU", "command": "one"}
    records = [{"environment": gpu}, {"environment": {**gpu, "command": "another"}}, {}]
    file = write_verdicts(tmp_path, experiment="X", title="t", verdicts=[VERDICT], figures=[], records=records)
    content = json.loads(file.read_text())
    assert content["made_in"] == [{"torch": "2.11.0", "gpu": "a GPU"}]
    assert content["judged_in"]["torch"] == torch.__version__


def test_the_newest_counts(tmp_path):
    record(tmp_path / "2026-01-01-b", VERDICT, replace(VERDICT, statement="another", holds=None))
    record(tmp_path / "2026-02-01-a", replace(VERDICT, holds=False))
    record(tmp_path / "2026-03-01-c", replace(VERDICT, n=0, holds=None, ours="not run: Adam"))
    record(tmp_path / "2026-04-01-c", replace(VERDICT, holds=True), smoke=True)
    rows = {row.statement: row for row in of(collect(tmp_path), "R1")}
    assert (rows["GGT is best"].status, rows["GGT is best"].record) == ("does not hold", "2026-02-01-a")
    assert rows["another"].status == "undecided"


def test_what_nothing_was_run_for_is_not_run(tmp_path):
    record(tmp_path / "2026-03-01-c", replace(VERDICT, n=0, holds=None, ours="not run: Adam"))
    (row,) = of(collect(tmp_path), "R1")
    assert (row.status, row.ours) == ("not run", "not run: Adam")


def test_files_and_page(tmp_path):
    record(tmp_path / "records" / "2026-01-01-a" / "R1", replace(VERDICT, ours="a | b"))
    (tmp_path / "docs").mkdir()
    rows = write_claims(tmp_path / "records", tmp_path / "docs" / "claims.md")
    written = json.loads((tmp_path / "records" / "claims.json").read_text())["claims"]
    assert len(written) == len(rows) == len(PAPER)
    assert {"claim", "paper", "ours", "spread", "n", "holds", "command", "record"} <= set(written[0])
    text = (tmp_path / "docs" / "claims.md").read_text()
    assert "| GGT is best | holds | best | a \\| b; ± 0.1 | 3 | [2026-01-01-a/R1](../records/2026-01-01-a/R1)" in text
    assert re.findall(r"^## (\w+)", text, re.MULTILINE) == list(PAPER)
    assert "| [R1](#r1) |" in text
    assert "| **holds** | 1 | 0 | 0 | 0 |" in text
    assert text.count("| **not run** |") == len(PAPER) - 1


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not what `ggt reproduce` writes"), ('{"verdicts": [{"claim": "R1"}]}', "not what `ggt reproduce` writes")],
)
def test_damaged_records_are_named(text, words, tmp_path):
    (tmp_path / "2026-01-01-a").mkdir()
    (tmp_path / "2026-01-01-a" / "verdicts.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        collect(tmp_path)


def test_unknown_claims_and_folders(tmp_path):
    record(tmp_path / "2026-01-01-a", replace(VERDICT, claim="X9"))
    with pytest.raises(ValueError, match="no claim 'X9'"):
        collect(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        write_claims(tmp_path / "none", None)


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([True, True], "holds"),
        ([False, False], "does not hold"),
        ([None, None], "undecided"),
        ([True, None], "holds in part"),
        ([True, False, None], "holds in part"),
        ([False, None], "does not hold"),
    ],
)
def test_one_verdict_on_a_claim(answers, verdict):
    """Checks of our own runs, what the paper does not say, and what was not run do not count."""
    others = [
        replace(VERDICT, statement="every best learning rate lies inside of its grid, from the origin", holds=False),
        replace(VERDICT, paper="not compared: not the paper's GGT", holds=True),
        replace(VERDICT, n=0, holds=None),
    ]
    assert [each.kind for each in others] == ["check", "beyond the paper", "paper"]
    assert verdict_on_claim([*others, *(replace(VERDICT, holds=answer) for answer in answers)]) == verdict
    assert verdict_on_claim(others) == "not run"


def test_the_page_about_the_experiments_has_these_verdicts():
    """Its first table is for people: 19 rows, and the one verdict of the records in each."""
    text = (ROOT / "docs" / "experiments.md").read_text()
    shown = re.findall(r"^\| (\w\d) \| [^|]+ \| \*\*([\w ]+)\*\* \|", text, re.MULTILINE)
    rows = collect(ROOT / "records")
    assert shown == [(claim, verdict_on_claim(of(rows, claim))) for claim in PAPER]
    assert "not run" not in dict(shown).values()


def test_ours_are_up_to_date():
    """If this fails: ggt claims."""
    rows = collect(ROOT / "records")
    written = json.loads((ROOT / "records" / "claims.json").read_text())["claims"]
    assert written == [row.__dict__ for row in rows]
    assert (ROOT / "docs" / "claims.md").read_text() == page(rows, "../records")


# ---- the words of old records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train loss at the end: GGT low at least 0 below GGT", "GGT low ends with a lower training loss than GGT"),
        (
            "with 200 epochs, weight_drop 0.4: validation perplexity at the end: GGT at least 0.07 below Adam",
            "with 200 epochs, weight_drop 0.4: GGT ends with a validation perplexity at least 0.07 lower than Adam",
        ),
        (
            "test error at the end: GGT at most 0.002 above SGD",
            "GGT ends with a test error at most 0.002 higher than SGD",
        ),
        ("0.0961 against 0.08647: -0.0096 below", "0.0961 against 0.08647: 0.0096 higher"),
        ("0.08647 against 0.0961: +0.0096 below", "0.08647 against 0.0961: 0.0096 lower"),
        ("ahead at 2 of 20 epochs; at the end 3 against 2", "ahead at epoch 2 (of 20); at the end 3 against 2"),
        (
            "ahead at 1–2, 5 of 20 epochs; at the end 3 against 2",
            "ahead at epochs 1–2, 5 (of 20); at the end 3 against 2",
        ),
        (
            "GGT has a lower train loss than Adam, AdaGrad, SGD at every epoch from 1 on",
            "GGT has a lower training loss than Adam, AdaGrad and SGD from epoch 1 on",
        ),
        (
            "below Adam: 28 of 30 epochs, not at 1–2; SGD: 29 of 30 epochs, not at 1; Muon: not run",
            "lower than Adam at 28 of 30 epochs (not at 1–2); than SGD at 29 of 30 epochs (not at 1); Muon: not run",
        ),
        ("-1.6 (FullMatrixAdaptive(beta2=0.95), lr 5)", "-1.6 (full-matrix AdaGrad with β₂ = 0.95, lr 5)"),
        ("-1.3 (DiagonalAdaptive, lr 17)", "-1.3 (diagonal AdaGrad, lr 17)"),
        ("a low one generalizes more than 3 % worse", "a low learning rate generalizes more than 3 % worse"),
        (
            "in batches of 512: in seconds GGT is first to reach every train loss that others reach at the end of an "
            "epoch",
            "with batches of 512: in seconds, GGT is the first to reach every training loss that a baseline reaches at "
            "the end of an epoch",
        ),
    ],
)
def test_old_words_and_new_words(old, new):
    assert plain(old) == new
    assert plain(new) == new


def stored():
    """The records with verdicts, as they were written."""
    return [(file.parent, read_verdicts(file).verdicts) for file in sorted((ROOT / "records").rglob("verdicts.json"))]


def figures_of(verdict):
    """The figures of a verdict, without their signs: "-0.1 below" is "0.1 higher"."""
    words = " ".join([verdict.statement, verdict.paper, verdict.ours, verdict.spread or ""])
    return sorted(
        re.findall(r"\d+(?:\.\d+)?(?:e[+-]\d+)?", words.replace("beta2=", "").replace("at least 0 below", ""))
    )


def test_other_words_are_no_other_figures():
    for _, verdicts in stored():
        for verdict in verdicts:
            told = in_plain_words(verdict)
            assert figures_of(told) == figures_of(verdict)
            assert in_plain_words(told) == told
            assert (told.claim, told.n, told.holds, told.command) == (
                verdict.claim,
                verdict.n,
                verdict.holds,
                verdict.command,
            )


def judged_again(folder, command):
    """The verdicts of today on the results of a record."""
    if command.startswith("ggt league"):
        field = Field(PROTOCOL, PROTOCOL.tasks, PROTOCOL.entrants)
        return [Verdict(**each) for each in summarize(field, folder)["claims"]]
    if command.startswith("python benchmarks/gradient_spectra.py"):
        experiment = runpy.run_path(ROOT / "benchmarks" / "gradient_spectra.py")["experiment"]
        return experiment(folder.name, full=False).verdicts(list(Results(folder / "results.jsonl")), command)
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seeds")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--entrants", nargs="*", default=())
    parser.add_argument("--set", nargs="*", default=(), dest="changes")
    parser.add_argument("--step-times", type=lambda path: ROOT / path)
    choices = vars(parser.parse_args(command.removeprefix("ggt reproduce ").split()))
    del choices["seeds"]
    return chosen_experiment(**choices).verdicts(list(Results(folder / "results.jsonl")), command)


def test_old_records_speak_as_experiments_do_today():
    """An old verdict in plain words is the verdict of today on the results of its record."""
    compared = 0
    for folder, verdicts in stored():
        if not (folder / "results.jsonl").exists() or folder.name.endswith("batch-1024"):  # it has an entrant less
            continue
        assert [in_plain_words(verdict) for verdict in verdicts] == judged_again(folder, verdicts[0].command)
        compared += len(verdicts)
    assert compared >= 70


def test_old_and_new_verdicts_meet_in_one_row(tmp_path):
    old = replace(VERDICT, statement="validation perplexity at the end: GGT at least 0 below Adam")
    record(tmp_path / "2026-01-01-a", old)
    record(tmp_path / "2026-02-01-a", replace(old, statement=plain(old.statement), holds=False))
    (row,) = of(collect(tmp_path), "R1")
    assert (row.statement, row.holds) == ("GGT ends with a lower validation perplexity than Adam", False)


# ---- speed -----------------------------------------------------------------------------------------------------------


def timing(ms):
    return {"median_ms": ms, "low_ms": ms, "high_ms": ms, "mean_ms": ms, "calls": 15}


def case(kind, status="done", **result):
    return {"case": f"{kind}-{len(str(result))}", "kind": kind, "status": status, "result": result}


def training_case(model, ratio, mode="eager"):
    names = ("GGT r=20 float32", "GGT r=200 bfloat16")
    times = {"SGD": timing(10.0), **{name: timing(10.0 * ratio) for name in names}}
    return case("training", model=model, mode=mode, times=times, over_SGD=dict.fromkeys(names, ratio))


@pytest.mark.parametrize(("ratio", "cnn", "rnn"), [(1.1, True, True), (1.5, False, True), (2.1, False, False)])
def test_overhead(ratio, cnn, rnn):
    cases = [training_case("shake-shake", ratio), training_case("lstm", ratio), training_case("lstm", 9, "captured")]
    found = speed_verdicts(cases)
    assert [verdict.claim for verdict in found] == ["O1", "O1"]
    assert [verdict.holds for verdict in found] == [cnn, rnn]
    times = (
        f"are {10 * ratio:.2f} ms with GGT and 10.00 ms with SGD, {ratio:.3f} times. Other windows: 20 rows in float32 "
    )
    assert f"{times}{ratio:.3f}" in found[0].ours
    assert found[0].ours.startswith(f"{ratio:.3f} times")


def test_the_spread_of_an_overhead_is_that_of_the_ratios_where_they_were_kept():
    """The ratio is judged, and not the ratio of two medians of a host that is not equally fast all the time."""
    plain, paired = training_case("lstm", 1.1), training_case("lstm", 1.1)
    paired["result"]["over_SGD_range"] = {"GGT r=200 bfloat16": [0.871, 1.197]}
    paired["result"]["times"]["SGD"] = timing(11.2)
    old, new = speed_verdicts([plain, paired])
    assert old.spread == "80 % of the rounds took 11.00 to 11.00 ms"
    assert new.spread == "80 % of the ratios lie between 0.87 and 1.20"
    assert new.ours.startswith("1.100 times")
    assert "11.00 ms with GGT and 11.20 ms with SGD, 0.982 times" in new.ours


@pytest.mark.parametrize(("svd", "holds"), [(201.0, True), (199.0, False)])
def test_eigh_against_svd(svd, holds):
    eigh = {"full Gram + eigh, literal": timing(20.0), "full Gram + eigh, one product": timing(15.0)}
    cases = [
        case("paper", d=100, r=20, method="eigh", times={**eigh, "GGT float32": timing(1.0)}),
        case("paper", d=100, r=20, method="svd", times={"SVD, literal": timing(svd)}),
        case("paper", d=999, r=20, method="eigh", times=eigh),
        {"case": "x", "kind": "paper", "status": "failed", "error": "no"},
    ]
    (verdict,) = speed_verdicts(cases)
    assert verdict.holds is holds
    assert verdict.statement.startswith("d = 100, r = 20: a step with eigh of GᵀG is more than 10 times")
