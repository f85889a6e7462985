"""E1: what the verdicts say of made-up spectra, both ways."""

import math

import numpy as np
import pytest

from ggt_lab.experiments.catalogue import experiment
from ggt_lab.experiments.experiment import Settings
from ggt_lab.experiments.spectra_over_training import condition_between


def with_conditions(run, conditions, status="done"):
    steps = list(range(1, len(conditions) + 1))
    spectrum = {
        "file": "f",
        "steps": steps,
        "conditions": [float(c) for c in conditions],
        "isotropic": 361.0,
        "rounding": 1e-13,
    }
    curve = [{"epoch": run.epochs, "step": 1, "seconds": 1.0, "loss": 1.0 if run.lr in (0.3, 3.0) else 2.0}]
    record = {**run.__dict__, "key": run.key, "status": status, "metric": "loss", "curve": curve}
    return {**record, "spectrum": spectrum} if run.spectrum_every else record


def verdicts(cnn, rnn, status="done"):
    chosen = experiment("E1").with_entrants(["CNN", "RNN"])
    settings = Settings(2, device="cpu")
    tasks = chosen.first(settings)
    records = [with_conditions(task, []) for task in tasks]
    full = chosen.more(settings, tasks, records)
    assert {(run.problem, run.epochs, run.schedule, run.spectrum_every) for run in full} == {
        ("cifar10", 30, "cosine", 12),
        ("ptb-chars", 5, "constant", 2),
    }
    records += [with_conditions(run, cnn if run.problem == "cifar10" else rnn, status) for run in full]
    return {verdict.statement.split(" (")[0]: verdict for verdict in chosen.verdicts(records, "c")}


LEVEL = np.full(1000, 1000.0)
SURGING = np.concatenate([LEVEL[:900], np.full(100, 5000.0)])
CALMING = np.concatenate([np.full(200, 1e6), np.full(200, 1e4), np.full(600, 1500.0)])


def test_as_in_the_paper():
    found = verdicts(SURGING, CALMING)
    decided = {words: v for words, v in found.items() if v.n > 0}
    assert all(v.holds for v in decided.values()), [words for words, v in decided.items() if not v.holds]
    assert {v.ours for v in found.values() if v.n == 0} == {"not run: VGG", "not run: Transformer"}
    rises = found["CNN: gradients are more anisotropic at the end"]
    assert "in mid-training 1e+03, at the end 5e+03 (gradients without structure: 361)" in rises.ours
    assert rises.n == 2


@pytest.mark.parametrize(
    ("cnn", "rnn", "words"),
    [
        (SURGING[::-1] / [*[1.0] * 500, *[2.0] * 500], CALMING, "CNN: gradients are more anisotropic at the end"),
        (10 * SURGING, CALMING, "CNN: the condition number in mid-training is of the order of 10³"),
        (SURGING, CALMING / 10, "RNN: the condition number in mid-training is of the order of 10³"),
        (SURGING, LEVEL, "RNN: gradients become more isotropic within the first epochs, and then stay so"),
        (SURGING, np.geomspace(1e7, 1e2, 1000), "RNN: gradients become more isotropic"),
        (SURGING, np.minimum(CALMING, 1e5), "RNN: the condition number of the first epoch reaches the order of 10⁶"),
    ],
)
def test_otherwise(cnn, rnn, words):
    (verdict,) = [v for statement, v in verdicts(cnn, rnn).items() if statement.startswith(words)]
    assert verdict.holds is False


def test_a_rise_of_some_percent_decides_nothing():
    found = verdicts(np.linspace(1000, 1050, 1000), CALMING)
    assert found["CNN: gradients are more anisotropic at the end"].holds is None


def test_a_diverged_run_decides_nothing():
    decided = [v for v in verdicts(SURGING, CALMING, status="diverged").values() if "condition" in v.statement]
    assert {v.holds for v in decided} == {None}
    assert all("2 seeds diverged" in v.ours for v in decided)


def test_parts_of_a_run():
    record = {"spectrum": {"steps": [1, 2, 3, 4], "conditions": [1.0, 1.0, 5.0, 5.0]}}
    assert condition_between(record, 0.5, 1.0) == 5.0
    assert condition_between(record, 0.0, 0.25, largest=True) == 1.0
    assert math.isnan(condition_between(record, 0.9, 0.95))
    # A single outlier is not what the lines of the figure show.
    record["spectrum"]["conditions"] = [1.0, 1.0, 9e9, 1.0]
    assert condition_between(record, 0.0, 0.75, largest=True) == 1.0
