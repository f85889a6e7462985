"""Spectra of runs: the run itself is the race's, and the folder of a race is enough to name it."""

import json

import pytest

from ggt_lab.runs.race import Run, execute, grid, race
from ggt_lab.runs.results import Results
from ggt_lab.spectra.recorded_runs import record_spectrum, tuned_runs, write_spectrum

OWN = """
import torch
class Problem:
    steps, metric = 20, "loss"
    def __init__(self, seed, device): self.p = torch.nn.Parameter(torch.ones(3))
    def parameters(self): return [self.p]
    def loss(self): return self.p.square().sum() * float('nan')
    def evaluate(self): return {"loss": self.p.square().sum()}
"""


def test_spectrum_of_a_run(tmp_path):
    run = Run("logistic", "GGT(window=5)", 0.1, seed=0, steps=40)
    spectrum = record_spectrum(run, every=4)
    assert spectrum["steps"] == list(range(4, 41, 4))
    assert [len(values) for values in spectrum["singular_values"]] == [4] + [5] * 9
    assert spectrum["label"] == "GGT(window=5) on logistic, lr 0.1, seed 0"
    path = write_spectrum(spectrum, tmp_path, "x")
    assert json.loads(path.read_text()) == spectrum
    assert path.name == "spectrum-x.json"
    assert list(tmp_path.iterdir()) == [path]


def test_other_optimizers_get_a_window_beside_them():
    spectrum = record_spectrum(Run("logistic", "Adam", 0.1, seed=0, steps=20), window=3)
    assert (spectrum["window"], spectrum["history"]) == (3, "gradient")
    assert "window of its own" in spectrum["cost"]


@pytest.mark.parametrize(
    ("every", "words"), [(30, "no step of 20 is a multiple of 30"), (1, "10 steps were left out, because the loss")]
)
def test_a_spectrum_of_nothing_says_why(tmp_path, every, words):
    own = tmp_path / "own.py"
    own.write_text(OWN if every == 1 else OWN.replace("* float('nan')", ""))
    spectrum = record_spectrum(Run(str(own), "Adam", 0.1, seed=0), every=every)
    assert spectrum["steps"] == []
    assert spectrum["diagnosis"]["verdict"].startswith(f"Nothing was recorded: {words}")


def test_tuned_runs_of_a_race(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    race(grid("logistic", {"SGD": [1e-3, 10.0], "GGT(window=5)": [0.1]}, seeds=[1, 2], steps=20), results)
    runs = tuned_runs(tmp_path)
    assert {(run.optimizer, run.lr, run.seed) for run in runs} == {("SGD", 10.0, 1), ("GGT(window=5)", 0.1, 1)}
    assert {run.steps for run in runs} == {20}
    finals = {record["key"]: record["curve"][-1] for record in results}
    assert execute(runs[0])["curve"][-1]["loss"] == finals[runs[0].key]["loss"]
    with pytest.raises(ValueError, match="no results of a race"):
        tuned_runs(tmp_path / "nowhere")
