"""The whole command on a machine that has torch and numpy, and none of the lab's other packages."""

import json
import subprocess
import sys

import pytest
from test_bench import made_up

from ggt_lab.experiments.catalogue import experiment
from ggt_lab.experiments.experiment import Settings, reproduce
from ggt_lab.experiments.verdicts import Verdict, write_verdicts
from ggt_lab.runs.results import Results

MISSING = ["rich", "tyro", "matplotlib", "sklearn", "scipy", "plotly", "jinja2", "markupsafe"]
MISSING += ["pytorch_optimizer", "torchzero"]


def ggt(*words, missing=MISSING):
    arguments = ["src/ggt_lab/__main__.py", *map(str, words)]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); sys.argv = {arguments!r}"
    code += "; from ggt_lab.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_reproduce(tmp_path):
    """Without matplotlib there are no figures; with it, the same command draws them."""
    done = ggt("reproduce", "R1", "--smoke", "--workers", 1, "--entrants", "GGT", "SGD", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "R1: PTB characters, 3-layer LSTM" in done.stdout
    assert "`ggt reproduce R1 --smoke --entrants GGT SGD`" in (tmp_path / "verdicts.md").read_text()
    assert "matplotlib is not installed: no figures" in done.stderr
    assert not list(tmp_path.glob("*.png"))
    again = reproduce(experiment("R1").with_entrants(["GGT", "SGD"]), tmp_path, Settings(1, smoke=True), command="ggt")
    assert [figure.path.name for figure in again.figures] == ["epochs.png"]


def test_bench(tmp_path):
    listed = ggt("bench", "--list", "--what", "training", "baselines")
    assert "training_lstm_eager" in listed.stdout, listed.stderr
    for number, record in enumerate(made_up(good=False)):
        (tmp_path / f"{number}.json").write_text(json.dumps(record))
    done = ggt("bench", "--out", tmp_path, "--records", tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = (
        line for line in done.stdout.splitlines() if line.startswith("step over the floor, d = 5.3 M, r = 200, b")
    )
    assert line.split()[-4:] == ["1.501", "≤", "1.5", "MISSED"]


def test_train(tmp_path):
    """Runs of one's own choice, in a file."""
    run = {"problem": "cifar10-tiny", "optimizer": "GGT(window=3)", "lr": 0.01, "seed": 0, "epochs": 1, "device": "cpu"}
    (tmp_path / "runs.json").write_text(json.dumps([run]))
    done = ggt("train", tmp_path / "runs.json", "--kept", tmp_path / "kept", "--results", tmp_path / "r.jsonl")
    assert "all runs are finished" in done.stdout, done.stderr
    assert len(list(Results(tmp_path / "r.jsonl"))) == 1


def test_claims(tmp_path):
    folder = tmp_path / "2026-01-01-a"
    folder.mkdir()
    verdict = Verdict("R1", "GGT is best", "best", "2.4 against 2.5", None, 3, True, "ggt reproduce R1")
    write_verdicts(folder, experiment="X", title="t", verdicts=[verdict], figures=[])
    done = ggt("claims", tmp_path, "--page", "None")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1] == ["claim", "not", "run", "holds"], done.stderr
    assert ["R1", "1"] in rows
    assert ["P2", "1"] in rows


@pytest.mark.parametrize("words", [["race", "logistik"], ["bench", "--records", "nowhere"]])
def test_errors_are_words(words):
    done = ggt(*words)
    assert done.returncode == 2
    assert done.stdout.startswith("error: ")
    assert "Traceback" not in done.stderr
