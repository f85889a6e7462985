"""Races: equal conditions, interruption, divergence, standings."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import torch_ggt
from ggt_lab.figures.race_curves import draw_curves
from ggt_lab.optimizers.specs import optimizer_factory, optimizer_names
from ggt_lab.runs.race import Run, execute, grid, race
from ggt_lab.runs.race_seconds import recommendation, step_seconds, with_seconds
from ggt_lab.runs.results import Results
from ggt_lab.runs.standings import Standing, around_the_best, beyond_the_edge, measure, standings
from ggt_lab.runs.turns import seconds_in_turns
from torch_ggt import GGT


def without_seconds(record):
    curve = [{k: v for k, v in point.items() if k != "seconds"} for point in record["curve"]]
    return {**{k: v for k, v in record.items() if k != "environment"}, "curve": curve}


def test_race_runs_everything_once(tmp_path):
    results = Results(tmp_path / "r.jsonl")
    runs = grid("logistic", {"SGD": [1.0, 10.0], "GGT(window=5)": [0.1]}, seeds=[0, 1], steps=20)
    assert len(runs) == 6
    done = []
    race(runs, results, workers=2, on_done=lambda run, _: done.append(run))
    assert sorted(done, key=str) == sorted(runs, key=str)
    race(runs, results, on_done=lambda *_: pytest.fail("a finished run was run again"))
    by_key = {record["key"]: record for record in results}
    assert len(by_key) == 6
    assert without_seconds(by_key[runs[0].key]) == without_seconds({"key": runs[0].key, **execute(runs[0])})
    assert len({record["curve"][0]["loss"] for record in by_key.values() if record["seed"] == 0}) == 1  # same start


SCRIPT = """
    import sys
    from pathlib import Path
    from ggt_lab.runs.race import grid, race
    from ggt_lab.runs.results import Results
    if __name__ == "__main__":
        runs = grid("logistic", {"SGD": [1.0, 3.0, 10.0], "Adam": [0.1, 0.3]}, seeds=[0, 1], steps=400)
        race(runs, Results(Path(sys.argv[1])), workers=1)
"""


def test_kill_in_mid_race_then_the_same_command(tmp_path):
    script, killed, whole = tmp_path / "go.py", tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    script.write_text(textwrap.dedent(SCRIPT))
    victim = subprocess.Popen([sys.executable, str(script), str(killed)], start_new_session=True)
    deadline = time.monotonic() + 120
    while (not killed.exists() or killed.read_bytes().count(b"\n") < 3) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    survived = killed.read_bytes().count(b"\n")
    assert 3 <= survived < 10
    subprocess.run([sys.executable, str(script), str(killed)], check=True)
    subprocess.run([sys.executable, str(script), str(whole)], check=True)
    resumed, uninterrupted = (
        sorted((without_seconds(record) for record in Results(path)), key=lambda record: record["key"])
        for path in (killed, whole)
    )
    assert resumed == uninterrupted
    assert len(resumed) == 10


def test_a_failing_problem_shows_its_own_traceback(tmp_path):
    own = tmp_path / "broken.py"
    own.write_text(
        "class Problem:\n"
        "    steps, metric = 1, 'loss'\n"
        "    def __init__(self, seed, device): raise OSError('no such disk')\n"
        "    def parameters(self): ...\n    def loss(self): ...\n    def evaluate(self): ...\n"
    )
    with pytest.raises(RuntimeError, match=r"broken\.py, SGD, lr 1, seed 0: OSError: no such disk") as caught:
        race(grid(str(own), {"SGD": [1.0]}, [0]), Results(tmp_path / "r.jsonl"))
    assert "line 3, in __init__" in str(caught.value.__cause__)


def record(optimizer, lr, seed, values, status="done", seconds=1.0):
    curve = [{"step": 10 * i, "seconds": seconds * i, "loss": v} for i, v in enumerate(values)]
    return {"optimizer": optimizer, "lr": lr, "seed": seed, "metric": "loss", "status": status, "curve": curve}


def test_standings():
    records = [
        *(record("A", lr, seed, [4.0, 2.0, final + seed]) for lr, final in ((0.1, 2.0), (1.0, 0.5)) for seed in (0, 1)),
        record("A", 10.0, 0, [4.0], status="diverged"),
        record("A", 10.0, 1, [4.0, 1.0, 0.1]),
        *(record("B", 0.1, seed, [4.0, 1.0, 1.1], seconds=2.0) for seed in (0, 1)),
    ]
    first, second = standings(records)
    assert (first.optimizer, first.lr, first.at_edge, first.diverged) == ("A", 1.0, False, 0)
    assert first.final == 1.0
    assert first.spread == pytest.approx(math.sqrt(0.5))
    assert (second.optimizer, second.final, second.at_edge) == ("B", 1.1, False)
    by_area = standings(records, by="per_step")
    assert by_area[0].optimizer == "B"
    assert by_area[0].per_step == pytest.approx((2.5 + 1.05) / 2)
    assert by_area[0].per_second == pytest.approx(2.5)  # two seconds: its first half
    assert standings([]) == []
    with pytest.raises(ValueError, match="by must be"):
        standings(records, by="luck")


def test_optimizer_specs():
    p = [torch.nn.Parameter(torch.ones(2))]
    made = optimizer_factory("GGT(window=5, betas=(0.5, 0.9), window_dtype='bfloat16')")(p, 0.1)
    assert isinstance(made, GGT)
    assert (made.defaults["lr"], made.defaults["betas"], made.defaults["window_dtype"]) == (
        0.1,
        (0.5, 0.9),
        torch.bfloat16,
    )
    assert isinstance(optimizer_factory("AdamW")(p, 0.1), torch.optim.AdamW)
    assert isinstance(optimizer_factory("torch.optim.SGD(momentum=0.9)")(p, 0.1), torch.optim.SGD)
    assert {"GGT", "Muon", "Adam", "SGD", "FullMatrixAdaptive"} <= set(optimizer_names())
    for name in ("RMSprop", "NAdam", "Adadelta"):
        assert type(optimizer_factory(name)(p, 0.1)) is getattr(torch.optim, name)
        assert type(optimizer_factory(f"FullMatrix{name}(window=5)")(p, 0.1)) is getattr(torch_ggt, name)
    assert optimizer_factory("FullMatrixAdaGrad")(p, 0.1).defaults["lr"] == 0.1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("AdamV", "did you mean Adam"),
        ("Zzzzzz", "there are"),
        ("no.such.Thing", "cannot import"),
        ("GGT(5)", "options are given by name"),
        ("GGT(window=", "cannot read"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError, match=message):
        optimizer_factory(spec)


def test_keys_do_not_depend_on_the_session():
    assert Run("logistic", "GGT", 0.1, 0).key == (
        '{"device": "cpu", "lr": 0.1, "optimizer": "GGT", "problem": "logistic", "seed": 0, "steps": null}'
    )


def test_a_grid_is_widened_until_its_best_point_is_inside():
    runs = [Run("p", name, lr, seed) for name in ("A", "B") for lr in (0.1, 1.0) for seed in (0, 1)]
    finals = {("A", 0.1): 3.0, ("A", 1.0): 2.0, ("B", 0.1): 1.0, ("B", 1.0): 2.0}
    records = [record(run.optimizer, run.lr, run.seed, [4.0, finals[run.optimizer, run.lr]]) for run in runs]
    wider = beyond_the_edge(runs, records)
    assert sorted((run.optimizer, run.lr, run.seed) for run in wider) == [
        ("A", 10.0, 0),
        ("A", 10.0, 1),
        ("B", 0.01, 0),
        ("B", 0.01, 1),
    ]
    records += [record(run.optimizer, run.lr, run.seed, [4.0, 5.0]) for run in wider]
    assert beyond_the_edge([*runs, *wider], records) == []


def test_logarithmic_measures():
    run = record("A", 0.1, 0, [100.0, 1.0, 0.0])
    assert measure(run, "log_final") == -16
    assert measure(run, "log_per_step") == pytest.approx((1.0 - 8.0) / 2)
    assert measure(record("A", 0.1, 0, [1.0], status="diverged"), "log_final") == math.inf
    long = record("A", 0.1, 0, [1.0] * 9 + [100.0, 1.0])
    assert measure(long, "log_last_tenth") == pytest.approx(1.0)


def test_a_grid_is_made_finer_around_its_best_point():
    runs = [Run("p", "A", lr, seed) for lr in (0.01, 0.1, 1.0) for seed in (0, 1)]
    records = [record("A", run.lr, run.seed, [4.0, abs(math.log10(run.lr) + 1) + 1]) for run in runs]
    finer = around_the_best(runs, records)
    assert sorted({run.lr for run in finer}) == pytest.approx([0.0316228, 0.316228], rel=1e-5)
    assert {run.seed for run in finer} == {0, 1}
    even = [Run("p", "A", lr, 0) for lr in (0.05, 0.1, 0.2)]
    assert around_the_best(even, [record("A", run.lr, 0, [4.0, abs(math.log2(run.lr * 10))]) for run in even]) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks up child processes in /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "go.py"
    script.write_text(textwrap.dedent(SCRIPT))
    victim = subprocess.Popen([sys.executable, str(script), str(tmp_path / "r.jsonl")], start_new_session=True)
    children = Path(f"/proc/{victim.pid}/task/{victim.pid}/children")
    deadline = time.monotonic() + 60
    while not (tmp_path / "r.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [Path(f"/proc/{pid}") for pid in children.read_text().split()]
    victim.kill()
    victim.wait()
    deadline = time.monotonic() + 30
    while any(worker.exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(workers) >= 2  # one worker, and the tracker of resources
    assert not any(worker.exists() for worker in workers)


OWN = """
import random
import numpy as np
import torch

class Problem:
    steps, metric = 3, "loss"
    def __init__(self, seed, device):
        self.model = torch.nn.Linear(3, 3)
        self.shift = random.random() + np.random.rand()
    def parameters(self):
        return self.model.parameters()
    def loss(self):
        return (self.model(torch.ones(3)) - self.shift).square().sum()
    def evaluate(self):
        return {"loss": self.loss().item()}
"""


def test_a_problem_that_does_not_seed_starts_the_same_for_all(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    torch.rand(7)
    starts = {execute(Run(str(own), spec, 0.1, seed=3))["curve"][0]["loss"] for spec in ("SGD", "Adam", "GGT")}
    assert len(starts) == 1


def test_an_edited_file_is_another_problem(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    before = Run(str(own), "SGD", 0.1, 0).key
    own.write_text(OWN.replace("Linear(3, 3)", "Linear(3, 3, bias=False)"))
    assert Run(str(own), "SGD", 0.1, 0).key != before


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ('{"accuracy": 1.0}', "'loss' .the metric. among them"),
        ("[1.0]", "must return a dict"),
        ('{"loss": 1.0, "step": 2}', "step, which the curve uses itself"),
        ('{"loss": float("nan")}', "loss = nan before any step"),
    ],
)
def test_what_evaluate_returns_is_checked(tmp_path, returned, message):
    own = tmp_path / "own.py"
    own.write_text(OWN.replace('{"loss": self.loss().item()}', returned))
    with pytest.raises(RuntimeError, match=message):
        execute(Run(str(own), "SGD", 0.1, 0))


def test_tensors_and_spare_nans_are_taken(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN.replace("self.loss().item()", "self.loss(), 'other': np.float32('nan')"))
    record = execute(Run(str(own), "SGD", 0.01, 0))
    assert record["status"] == "done"
    assert all(type(point["loss"]) is float and "other" not in point for point in record["curve"])


def test_a_negative_metric_is_drawn_on_a_linear_axis(tmp_path):
    records = [record("A", 0.1, 0, [1.0, -1.0, -2.0])]
    figure = draw_curves(records, tmp_path / "c")
    assert figure[0].exists()
    records[0]["curve"][2]["loss"] = -3.0
    assert draw_curves(records, tmp_path / "d")[0].read_bytes() != figure[0].read_bytes()


def test_every_key_counts_once(tmp_path):
    results = Results(tmp_path / "r.jsonl")
    for extra in (1, 2):
        results.append({"key": "a", "extra": extra})
    results.append({"key": ["foreign"]})
    assert [r["extra"] for r in results if r["key"] == "a"] == [1]
    assert results.finished() == {"a"}


# ---- seconds and words ----------------------------------------------------------------------------------------------


def test_seconds_are_steps_times_the_time_of_a_step_taken_in_turns():
    order = []

    def mover(name, pause):
        def move():
            order.append(name)
            time.sleep(pause)
            return 2

        return move

    found = seconds_in_turns({"fast": mover("fast", 0.001), "slow": mover("slow", 0.02)}, rounds=3)
    assert order == ["fast", "slow"] * 4  # the first round warms up
    assert found["slow"] >= 0.01
    assert 0.0005 <= found["fast"] < found["slow"]
    records = [{"optimizer": "slow", "curve": [{"step": 0, "seconds": 9.0}, {"step": 10, "seconds": 99.0}]}]
    assert [p["seconds"] for p in with_seconds(records, {"slow": 0.5})[0]["curve"]] == [0.0, 5.0]
    assert records[0]["curve"][1]["seconds"] == 99.0


def test_the_time_of_a_step_of_a_problem():
    best = [Standing(spec, 0.01, False, *[1.0] * 7, 0) for spec in ("SGD", "GGT(window=50)")]
    found = step_seconds("digits", best)
    assert found.keys() == {"SGD", "GGT(window=50)"}
    assert all(value > 0 for value in found.values())


def test_recommendations_say_how_sure_they_are():
    def standing(name, final, spread, edge=False):
        return Standing(name, 0.01, edge, final, spread, *[1.0] * 5, 0)

    clear = [standing("GGT(window=50)", 1.0, 0.1), standing("SGD", 2.0, 0.1)]
    words = recommendation(clear, "loss", 3)
    assert words.startswith("Recommended on this problem: GGT(window=50) with lr 0.01 (loss 1).")
    assert "within the spread" not in words
    assert "one seed decides nothing" in recommendation(clear, "loss", 1)
    assert "within the spread" in recommendation([clear[0], standing("SGD", 1.05, 0.1)], "loss", 3)
    assert "--widen" in recommendation([standing("SGD", 1.0, 0.0, edge=True)], "loss", 3)
    assert "every optimizer diverged" in recommendation([standing("SGD", math.inf, 0.0)], "loss", 3)
