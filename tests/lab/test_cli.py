"""The command, as a person uses it."""

import json
import os
import subprocess
import sys

import pytest

WIDE = {**os.environ, "COLUMNS": "140"}


def ggt(*arguments, cwd):
    command = [sys.executable, "-m", "ggt_lab", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=WIDE)


def test_race_on_a_file_made_from_the_template(tmp_path):
    assert "Wrote own.py" in ggt("new-problem", "own.py", cwd=tmp_path).stdout
    assert ggt("new-problem", "own.py", cwd=tmp_path).returncode == 2  # an existing file is left alone
    race = ("race", "own.py", "--optimizers", "Adam", "GGT(window=5)", "--lrs", 0.001, 0.01, 0.1, "--seeds", 2)
    first = ggt(*race, "--steps", 40, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "GGT(window=5)" in first.stdout
    records = [json.loads(line) for line in (tmp_path / "out/race/own/results.jsonl").read_text().splitlines()]
    assert len(records) == 12
    assert all(record["environment"]["command"].startswith("ggt race own.py") for record in records)
    for suffix in ("png", "pdf"):
        assert (tmp_path / f"out/race/own/curves.{suffix}").stat().st_size > 5_000
    again = ggt(*race, "--steps", 40, cwd=tmp_path)
    assert "12 of 12 runs are finished already" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("race", "logistik"), "did you mean logistic"),
        (("race", "logistic", "--optimizers", "Adamm"), "did you mean Adam"),
        (("reproduce", "S3"), "did you mean T3 or S2 or S1"),
        (("spectrum", "digit"), "did you mean digits"),
        (("race", "[/x]"), "unknown problem '[/x]'"),
        (("race", "logistic", "--seeds", 0), "seeds ≥ 1"),
        (("race", "logistic", "--workers", 0), "workers ≥ 1"),
        (("race", "logistic", "--steps", -3), "steps must be at least 1"),
        (("race", "logistic", "--lrs", "nan"), "learning rates must be positive"),
        (("race", "logistic", "--lrs", 0, 0.1), "learning rates must be positive"),
        (("race", "logistic", "--optimizers", "SGD(momentun=0.9)"), "momentun"),
        (("race", "logistic", "--optimizers", "GGT(window_dtype='bflot16')"), "'bflot16' is not a dtype"),
        (("race", "logistic", "--optimizers", "LBFGS"), "evaluates one batch several times"),
        (("race", "logistic", "--out", "afile/x", "--steps", 1, "--lrs", 1), "afile"),
    ],
)
def test_unknown_names(arguments, message, tmp_path):
    (tmp_path / "afile").touch()
    done = ggt(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("where", ["import", "loss"])
def test_a_users_file_that_raises_shows_its_own_traceback(where, tmp_path):
    ggt("new-problem", "own.py", cwd=tmp_path)
    text = (tmp_path / "own.py").read_text()
    broken = "raise ValueError('my own mistake')\n"
    marker = "    def loss(self)"
    line = next(line for line in text.splitlines() if line.startswith(marker))
    text = broken + text if where == "import" else text.replace(line, f"{line}\n        {broken}", 1)
    (tmp_path / "own.py").write_text(text)
    done = ggt("race", "own.py", "--optimizers", "SGD", "--lrs", 0.1, "--seeds", 1, "--steps", 2, cwd=tmp_path)
    assert done.returncode == 1
    assert "ValueError: my own mistake" in done.stderr
    assert 'own.py", line' in done.stderr
    assert "problem own.py" in done.stderr.splitlines()[-1]


def test_race_spectrum_report(tmp_path):
    race = ("race", "logistic", "--optimizers", "SGD", "GGT(window=5)", "--lrs", 0.1, 1, "--widen", 2, "--seeds", 2)
    done = ggt(*race, "--steps", 30, "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for criterion in ("final suboptimality", "mean suboptimality per step", "mean suboptimality per second"):
        assert f"logistic: {criterion}" in done.stdout
    rates = {json.loads(line)["lr"] for line in (tmp_path / "r/results.jsonl").read_text().splitlines()}
    assert len(rates) > 2  # widened
    done = ggt("spectrum", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "window of its own: 20 × 10" in done.stdout
    assert "no window of its own" in done.stdout
    assert len(list((tmp_path / "r").glob("spectrum-logistic-*.json"))) == 2
    done = ggt("report", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "r/report.html").read_text()
    assert "GGT(window=5)" in page
    assert "effective rank" in page


def test_reproduce(tmp_path):
    done = ggt("reproduce", "T1", "--smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "undecided" in done.stdout
    assert "nothing about the claims is decided" in done.stdout
    verdicts = json.loads((tmp_path / "out/reproduce/T1-smoke/verdicts.json").read_text())["verdicts"]
    assert {verdict["command"] for verdict in verdicts} == {"ggt reproduce T1 --smoke"}
    assert {verdict["holds"] for verdict in verdicts} == {None}
    assert "| T1: E‖∇f‖" in (tmp_path / "out/reproduce/T1-smoke/verdicts.md").read_text()


def test_nothing_to_report(tmp_path):
    done = ggt("report", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr


def test_list(tmp_path):
    text = ggt("list", cwd=tmp_path).stdout
    assert "logistic" in text
    assert "GGT" in text
    assert "T3 (The adaptive ratio against its bound)" in " ".join(text.split())
