"""The demo's differential equation: its runs, its verdict and its figure reach the report."""

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ggt_lab.report.page import write_report

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("solve_convection")


def test_a_short_demo(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo", "--steps", "2", "--workers", "1", "--out", str(tmp_path)])
    monkeypatch.setattr(demo, "processes", ThreadPoolExecutor)  # a process takes seconds to start
    demo.main()
    assert "does not hold" in capsys.readouterr().out  # two steps solve nothing
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {record["optimizer"] for record in records} == set(demo.entrants_here())
    (figure,) = json.loads((tmp_path / "verdicts.json").read_text())["figures"]
    assert (tmp_path / figure["file"]).stat().st_size > 10_000
    page = write_report(tmp_path).read_text()
    assert figure["alt"] in page
    assert "whitened NorMuon" in page


def test_without_its_package_soap_is_left_out_and_named(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "missing_package", lambda spec: "pytorch_optimizer" if "SOAP" in spec else None)
    assert demo.entrants_here() == ["AdamW", "Muon", "NorMuon", "whitened NorMuon"]
    assert capsys.readouterr().out == "SOAP is left out: pip install pytorch_optimizer\n"


def test_its_settings_are_those_that_the_trials_chose(demo):
    lines = (ROOT / "records" / "2026-11-18-whitened-pairs" / "results.jsonl").read_text().splitlines()
    of_the_record = {name: (name, 0) for name in demo.ENTRANTS} | {"whitened NorMuon": ("NorMuon", 50)}
    fresh = [run for run in map(json.loads, lines) if run["problem"] == "pinn-convection" and run["seed"] == 0]
    for name, (optimizer, window) in of_the_record.items():
        runs = [run for run in fresh if (run["optimizer"], run["window"]) == (optimizer, window)]
        runs = [run for run in runs if run["keep_norm"] is (window == 0)]  # alone it is True, and says nothing
        rates = {round(run["lr"], 6) for run in runs}
        spec, lr = demo.ENTRANTS[name]
        assert window == 0 or "window=50, shrinkage=0.0, keep_norm=False" in spec
        assert round(lr, 6) in rates
        assert any(f"momentum={run['momentum']}" in spec or str(run["momentum"]) in spec for run in runs)


@pytest.mark.parametrize(
    ("errors", "holds"),
    [
        ({}, True),
        ({"Muon": 0.091, "whitened NorMuon": 0.045}, True),
        ({"Muon": 0.091, "whitened NorMuon": 0.046}, False),
        ({"NorMuon": 0.091, "whitened NorMuon": 0.046}, False),
        ({"AdamW": 0.019}, False),
        ({"SOAP": 0.001}, True),  # no share of SOAP's error is claimed
        ({"whitened NorMuon": 0.06}, False),
        ({"AdamW": float("inf")}, True),
        ({"whitened NorMuon": float("inf")}, False),
    ],
)
@pytest.mark.parametrize("soap", [True, False])
def test_the_verdict(demo, errors, holds, soap):
    found = {"AdamW": 0.9, "Muon": 0.3, "NorMuon": 0.4, "SOAP": 0.02, "whitened NorMuon": 0.01} | errors
    records = [
        {"optimizer": name, "status": "done", "curve": [{"error": error}]}
        for name, error in found.items()
        if soap or name != "SOAP"
    ]
    verdict = demo.judge(records, "command")
    assert verdict.holds is holds
    assert ("SOAP" in verdict.ours) is soap
