"""Claims about long runs: verdicts that can go either way, and runs in pieces."""

import math
import subprocess
import sys
import time

import pytest

from ggt_lab.reproduce import Settings, experiment, reproduce
from ggt_lab.reproduce.claims import AtMost, GapAtEnd, LowestAlong, mean_curve


def runs_of(*seeds, status="done", key="loss"):
    return [
        {"status": status, "lr": 0.1, "curve": [{"epoch": e, key: value} for e, value in enumerate(values)]}
        for values in seeds
    ]


RUNS = {
    "GGT": runs_of([9.0, 3.0, 2.0, 1.0], [9.0, 3.2, 2.2, 1.2]),
    "Adam": runs_of([9.0, 2.9, 2.5, 1.5], [9.0, 2.9, 2.5, 1.5]),
    "SGD": runs_of([9.0, 4.0, 3.0, 1.05], [9.0, 4.0, 3.0, 1.05]),
}


def test_lowest_along():
    verdict = LowestAlong("X", "GGT", ("Adam",), "loss", "paper", first=2).verdict(RUNS, "c")
    assert verdict.holds is True
    assert "Adam: 2 of 2 epochs" in verdict.ours
    verdict = LowestAlong("X", "GGT", ("Adam", "SGD"), "loss", "paper", first=1).verdict(RUNS, "c")
    assert verdict.holds is False
    assert "Adam: 2 of 3 epochs, not at 1" in verdict.ours
    assert "SGD: 2 of 3 epochs, not at 3" in verdict.ours


def test_gap_at_end():
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.3, "p").verdict(RUNS, "c").holds is True
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.5, "p").verdict(RUNS, "c").holds is False
    assert GapAtEnd("X", "GGT", "SGD", "loss", -0.1, "p").verdict(RUNS, "c").holds is True
    assert GapAtEnd("X", "GGT", "SGD", "loss", 0.0, "p").verdict(RUNS, "c").holds is False


def test_at_most():
    assert AtMost("X", "GGT", "loss", 1.1, "p").verdict(RUNS, "c").holds is True
    assert AtMost("X", "GGT", "loss", 1.0, "p").verdict(RUNS, "c").holds is False


def test_a_diverged_seed_is_never_left_out():
    diverged = {**RUNS, "GGT": [*RUNS["GGT"], *runs_of([9.0, 1.0], status="diverged")]}
    assert mean_curve(diverged["GGT"], "loss")[3] == math.inf
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.0, "p").verdict(diverged, "c").holds is False
    assert LowestAlong("X", "GGT", ("Adam",), "loss", "p", first=2).verdict(diverged, "c").holds is False
    # Nor does the other's divergence raise.
    other = {**RUNS, "Adam": runs_of([9.0], status="diverged")}
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.0, "p").verdict(other, "c").holds is True


def test_numbers_that_begin_later():
    late = [{"status": "done", "curve": [{"epoch": 0}, {"epoch": 1, "loss": 2.0}]}]
    assert mean_curve(late, "loss") == {1: 2.0}


def test_time_is_up_and_the_same_call_goes_on(tmp_path):
    chosen = experiment("R1")
    none = reproduce(chosen, tmp_path, Settings(1, smoke=True, deadline=time.monotonic()), command="ggt")
    assert none.left > 0
    assert not none.verdicts
    assert not (tmp_path / "verdicts.json").exists()
    rest = reproduce(chosen, tmp_path, Settings(1, smoke=True), command="ggt")
    assert rest.left == 0
    assert {verdict.claim for verdict in rest.verdicts} == {"R1", "R2"}
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("blocked", [["rich", "tyro", "sklearn", "plotly"]])
def test_reproduces_without_rich_and_tyro(tmp_path, blocked):
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); sys.argv[0] = 'x'"
    code += "; from ggt_lab.reproduce.__main__ import main; main()"
    arguments = ["R1", "--smoke", "--workers", "1", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert "| R2: GGT reaches" in done.stdout
