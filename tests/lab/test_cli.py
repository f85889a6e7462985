"""The command, as a person uses it."""

import json
import os
import subprocess
import sys

import pytest

WIDE = {**os.environ, "COLUMNS": "140"}


def ggt(*arguments, cwd):
    command = [sys.executable, "-m", "ggt_lab.cli", *map(str, arguments)]
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
    assert all(record["environment"]["command"].startswith("cli.py race own.py") for record in records)
    for suffix in ("png", "pdf"):
        assert (tmp_path / f"out/race/own/curves.{suffix}").stat().st_size > 5_000
    again = ggt(*race, "--steps", 40, cwd=tmp_path)
    assert "12 of 12 runs are finished already" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("race", "logistik"), "did you mean logistic"),
        (("race", "logistic", "--optimizers", "Adamm"), "did you mean Adam"),
    ],
)
def test_unknown_names(arguments, message, tmp_path):
    done = ggt(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


def test_list(tmp_path):
    text = ggt("list", cwd=tmp_path).stdout
    assert "logistic" in text
    assert "GGT" in text
