"""The table of all claims: none is left out, the newest counts, what was not run never hides what was."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ggt_lab.experiments.speed_claims import speed_verdicts
from ggt_lab.experiments.verdicts import Verdict, write_verdicts
from ggt_lab.report.claims_page import PAPER, collect, page, write_claims

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
    assert "18 not run" in text


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


def test_ours_are_up_to_date():
    """If this fails: ggt claims."""
    rows = collect(ROOT / "records")
    written = json.loads((ROOT / "records" / "claims.json").read_text())["claims"]
    assert written == [row.__dict__ for row in rows]
    assert (ROOT / "docs" / "claims.md").read_text() == page(rows, "../records")


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
    assert f"{ratio:.3f} times ({10 * ratio:.2f} against 10.00 ms" in found[0].ours


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
    assert "d = 100, r = 20" in verdict.statement
