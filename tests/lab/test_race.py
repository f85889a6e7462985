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
from scipy import stats

import torch_ggt
from ggt_lab.figures.race_curves import draw_curves
from ggt_lab.optimizers.colors import COLORS, line_styles
from ggt_lab.optimizers.specs import optimizer_factory, optimizer_names, window_of
from ggt_lab.runs.race import Run, execute, grid, race
from ggt_lab.runs.race_seconds import read_step_seconds, step_seconds, with_seconds, write_step_seconds
from ggt_lab.runs.recommendation import recommendation, recommendation_of_race
from ggt_lab.runs.results import Results
from ggt_lab.runs.schedules import rate_function
from ggt_lab.runs.standings import Standing, around_the_best, beyond_the_edge, measure, one_more_rate, standings
from ggt_lab.runs.student import half_interval, paired_lead
from ggt_lab.runs.turns import seconds_in_turns
from ggt_lab.runs.users_code import ProblemError
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
        ("adamw", r"did you mean AdamW\?"),
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


EVALUATE, LOSS, PARAMETERS = (
    '{"loss": self.loss().item()}',
    "(self.model(torch.ones(3)) - self.shift).square().sum()",
    "self.model.parameters()",
)
SHIFT = "self.shift = random.random() + np.random.rand()"


@pytest.mark.parametrize(
    ("line", "changed", "place", "message"),
    [
        (EVALUATE, '{"accuracy": 1.0}', "in evaluate", "'loss' (the metric) among them"),
        (EVALUATE, "[1.0]", "in evaluate", "must return a dict of numbers"),
        (EVALUATE, '{"loss": 1.0, "step": 2}', "in evaluate", "step, which the curve uses itself"),
        (EVALUATE, '{"loss": float("nan")}', "in evaluate", "loss = nan before any step"),
        (EVALUATE, '{"loss": None}', "in evaluate", "evaluate() returns loss = None; it should be a number"),
        (EVALUATE, '{"loss": torch.ones(3)}', "in evaluate", "loss = tensor([1., 1., 1.]); it should be a number"),
        (LOSS, "torch.tensor(0.5)", "in loss", "loss() returns a tensor without a gradient"),
        (LOSS, "type('Half', (), {'item': lambda self: 0.5})()", "in loss", "a tensor with one number, got <"),
        ("def loss(self)", "def loss(self, x=1, *, y)", "in loss", "the lab calls loss(), and that does not fit"),
        ("(self, seed, device)", "(self)", "in __init__", "the lab calls Problem(seed, device)"),
        (PARAMETERS, "None", "in parameters", "parameters() should give parameters"),
        (PARAMETERS, "self.model.named_parameters()", "in parameters", "got a tuple among them"),
        (PARAMETERS, "[torch.nn.Parameter(torch.ones(2))]", "in loss", "gives no gradient to any of parameters()"),
        ('3, "loss"', '3, ["loss"]', ", line 7: steps, metric =", "metric should be the name of a number"),
        ("3, ", "3e2, ", ", line 7: steps, metric =", "a whole number of at least 1, got 300.0"),
        (SHIFT, SHIFT + "\n    def schedule(self): ...", "in schedule", "the lab calls schedule(progress)"),
    ],
)
def test_what_a_problem_gives_is_checked_and_its_line_is_named(tmp_path, line, changed, place, message):
    own = tmp_path / "own.py"
    text = OWN.replace("self.loss().item()", "1.0") if "loss(" in changed or line == LOSS else OWN
    own.write_text(text.replace(line, changed, 1))
    assert own.read_text() != text
    with pytest.raises(ProblemError) as caught:
        execute(Run(str(own), "SGD", 0.1, 0, schedule="own" if "schedule" in changed else "constant"))
    assert message in caught.value.what
    assert caught.value.place.startswith(f"{own}, line ")
    assert place in caught.value.place
    assert caught.value.trace == ""  # nothing of the user's file is in it


SPARSE = OWN.replace("torch.nn.Linear(3, 3)", "torch.nn.Embedding(5, 3, sparse=True)").replace(
    "torch.ones(3)", "torch.tensor([1, 3])"
)


@pytest.mark.parametrize(
    ("text", "optimizer", "words"),
    [
        (OWN, "Muon", "MuonAndAdamW is Muon for the matrices and AdamW for the rest"),
        (OWN, "whiten(Muon)", "MuonAndAdamW is Muon for the matrices and AdamW for the rest"),
        (SPARSE, "GGT", "does not support sparse gradients"),
    ],
)
def test_an_optimizer_that_does_not_fit_says_so_without_our_traceback(tmp_path, text, optimizer, words):
    own = tmp_path / "own.py"
    own.write_text(text)
    with pytest.raises(ProblemError) as caught:
        execute(Run(str(own), optimizer, 0.1, 0))
    assert words in caught.value.what
    assert (caught.value.place, caught.value.trace) == ("", "")
    assert execute(Run(str(own), "SGD", 0.1, 0))["status"] == "done"  # also with sparse gradients


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


def finals(optimizer, *values, lr=0.01, **more):
    """One record for each seed, which ends at the value; None is a seed that diverged."""
    return [
        record(optimizer, lr, seed, [4.0], "diverged")
        if value is None
        else record(optimizer, lr, seed, [4.0, value]) | more
        for seed, value in enumerate(values)
    ]


LEVEL = (1.0, 1.1, 1.2, 1.3, 1.4)
MEAN = "(loss 1.2 ± 0.16)"
RECOMMENDATIONS = {
    "clear lead": (
        [*finals("GGT(window=50)", 1.0, 1.1, 1.2), *finals("SGD", 2.0, 2.1, 2.3, lr=0.1)],
        {},
        "Recommended on this problem: GGT(window=50) with lr 0.01 and a window of 50 rows (loss 1.1 ± 0.1 over 3 fresh "
        "seeds). Next is SGD with lr 0.1, 1 behind (± 0.14, 95 %, paired over seeds): the lead is clear. "
        'No other window was raced: add "GGT(window=100)" to compare.',
    ),
    "not told apart": (
        [*finals("Adam", 1.0, 1.1, 1.2), *finals("SGD", 1.1, 1.0, 1.3), *finals("NAdam", 5.0, 5.1, 5.2)],
        {},
        "No optimizer is clearly first on this problem. Adam with lr 0.01 has the best mean (loss 1.1 ± 0.1). "
        "3 fresh seeds do not tell it apart (95 %, paired over seeds) from: SGD. "
        "More seeds decide: race again with --fresh 10. Clearly behind: NAdam.",
    ),
    "the cheapest has no window": (
        [*finals("GGT", *LEVEL), *finals("Adam", *LEVEL[::-1]), *finals("SGD", *LEVEL[::-1])],
        {"edges": ["GGT", "SGD"]},
        f"No optimizer is clearly first on this problem. GGT with lr 0.01 and a window of 20 rows has the best mean "
        f"{MEAN}. 5 fresh seeds do not tell it apart (95 %, paired over seeds) from: Adam; SGD. Of these Adam with lr "
        f"0.01 {MEAN}; SGD with lr 0.01 {MEAN} have no window. More seeds decide: race again with --fresh 10. "
        "Race again with --widen 3, because the rates are at the edges of their grids: GGT; SGD.",
    ),
    "the cheapest has the shortest step": (
        [*finals("GGT(window=5)", *LEVEL), *finals("whiten(SGD, window=7)", *LEVEL), *finals("GGT", *LEVEL)],
        {"step_seconds": {"GGT(window=5)": 3e-3, "whiten(SGD, window=7)": 2e-3, "GGT": 4e-3}, "problem": "p.py"},
        "No optimizer is clearly first on p.py. GGT(window=5) with lr 0.01 and a window of 5 rows has the best mean "
        f"{MEAN}. 5 fresh seeds do not tell it apart (95 %, paired over seeds) from: whiten(SGD, window=7); GGT. Of "
        f"these whiten(SGD, window=7) with lr 0.01 and a window of 7 rows {MEAN} has the shortest step, 2 ms (the "
        f"others: 3 ms to 4 ms). Of these GGT(window=5) with lr 0.01 and a window of 5 rows {MEAN} has the smallest "
        "window. More seeds decide: race again with --fresh 10.",
    ),
    "one seed": (
        [*finals("Adam", 1.0), *finals("SGD", 1.5)],
        {"fresh": False},
        "No optimizer is clearly first on this problem. Adam with lr 0.01 has the best mean (loss 1). 1 seed decides "
        "nothing about: SGD. More seeds decide: race again with --fresh 10. "
        "The learning rates were chosen by the seeds that are shown, which flatters everybody.",
    ),
    "a seed diverged": (
        [*finals("Adam", 1.0, 1.1), *finals("SGD", 0.1, None)],
        {},
        "Recommended on this problem: Adam with lr 0.01 (loss 1.05 ± 0.071 over 2 fresh seeds). "
        "SGD diverged with a seed.",
    ),
    "all diverged": (
        [*finals("Adam", 1.0, None), *finals("SGD", None, None)],
        {},
        "No recommendation on this problem: every optimizer diverged with at least one seed. Try lower learning rates.",
    ),
    "steps left out": (
        finals("Adam", 1.0, 1.1, skipped=2),
        {},
        "Recommended on this problem: Adam with lr 0.01 (loss 1.05 ± 0.071 over 2 fresh seeds). 4 of the 20 steps of "
        "Adam were left out, because the loss or its gradient was not finite.",
    ),
    "no step": (
        finals("Adam", 4.0, 4.0, skipped=10),
        {},
        "No recommendation on this problem: Adam took no step, because the loss or its gradient was not finite.",
    ),
    "edge": (
        finals("Adam", 1.0, 1.0),
        {"edges": ["SGD", "Adam"]},
        "Recommended on this problem: Adam with lr 0.01 (loss 1 ± 0 over 2 fresh seeds). "
        "Race again with --widen 3, because the rate is at the edge of its grid: Adam.",
    ),
    "larger is better": (
        [
            *finals("whiten(AdamW(weight_decay=0.1), window=20)", 0.9, 0.92, larger_is_better=True),
            *finals("SGD", 0.5, 0.53, larger_is_better=True),
        ],
        {},
        "Recommended on this problem: whiten(AdamW(weight_decay=0.1), window=20) with lr 0.01 and a window of 20 rows "
        "(loss 0.91 ± 0.014 over 2 fresh seeds, larger is better). Next is SGD with lr 0.01, 0.4 behind "
        "(± 0.064, 95 %, paired over seeds): the lead is clear. "
        'No other window was raced: add "whiten(AdamW(weight_decay=0.1), window=50)" to compare.',
    ),
    "windows": (
        [*finals("GGT(window=5)", 1.0, 1.0), *finals("GGT(window=50)", 2.0, 2.0)],
        {},
        "Recommended on this problem: GGT(window=5) with lr 0.01 and a window of 5 rows (loss 1 ± 0 over 2 fresh "
        "seeds). Next is GGT(window=50) with lr 0.01 and a window of 50 rows, 1 behind "
        "(± 0, 95 %, paired over seeds): the lead is clear. Windows raced: 5, 50.",
    ),
}


@pytest.mark.parametrize("case", RECOMMENDATIONS)
def test_recommendations_say_how_sure_they_are(case):
    records, options, words = RECOMMENDATIONS[case]
    assert recommendation(records, **options) == words


def test_a_race_recommends_by_the_fresh_seeds_that_everybody_has_run():
    tuning = [*finals("Adam", 1.0, 1.1), *finals("Adam", 2.0, 2.1, lr=0.1), *finals("SGD", 0.5, 0.6)]
    fresh = [*2 * finals("Adam", 1.0, 1.1, 9.0), *finals("SGD", 2.0, 2.1), *finals("Adam", 0.0, 0.0, 0.0, lr=0.1)]
    words = recommendation_of_race(tuning, fresh, step_seconds={})
    assert words.startswith(
        "Recommended on this problem: Adam with lr 0.01 (loss 1.05 ± 0.071 over 2 fresh seeds). Next"
    )
    assert words.endswith("because the rate is at the edge of its grid: Adam.")
    words = recommendation_of_race(tuning, [], step_seconds={})
    assert words.startswith("Recommended on this problem: SGD with lr 0.01 (loss 0.55 ± 0.071 over 2 seeds). Next")
    words = recommendation_of_race(tuning, finals("Adam", 1.0), step_seconds={}, problem="p")
    assert words == "No recommendation on p yet: SGD waits for its fresh seeds. The same `ggt race` goes on."
    apart = [*finals("Adam", 1.0), {**finals("SGD", 1.0)[0], "seed": 7}]
    words = recommendation_of_race(tuning, apart, step_seconds={})
    assert words == "No recommendation on this problem: there is no seed that every optimizer has run."


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        ("GGT", 20),
        ("PaperGGT(window=7)", 7),
        ("torch_ggt.RMSprop", 20),
        ("whiten(no_such_package.SOAP(a=1))", 20),
        ("whiten(pytorch_optimizer.SOAP, window=50)", 50),
        ("no_such_package.GGT(window=5)", None),
        ("AdamW", None),
        ("no spec", None),
    ],
)
def test_the_window_of_a_spec_is_read_without_importing_its_package(spec, rows):
    assert window_of(spec) == rows


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 31, 100])
def test_students_quantile_against_scipy(freedom):
    n = freedom + 1
    assert half_interval(2.0, n) == pytest.approx(stats.t.ppf(0.975, freedom) * 2.0 / math.sqrt(n), rel=1e-9)


def test_a_paired_lead_against_scipy():
    ahead, behind = [1.0, 2.0, 2.5, 4.0], [1.5, 2.1, 3.5, 4.2]
    mean, half = paired_lead(ahead, behind)
    interval = stats.ttest_rel(ahead, behind).confidence_interval()
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))
    assert paired_lead([1.0], [2.0]) == (-1.0, math.inf)


OWN_SCHEDULE = (
    OWN
    + """
    def schedule(self, progress):
        return FACTOR
"""
)


@pytest.mark.parametrize(("name", "rates"), [("cosine", [1, 0.75, 0.25]), ("linear", [1, 2 / 3, 1 / 3])])
def test_schedules_set_the_rate_of_each_step(name, rates):
    rate = rate_function(None, name, 0.2, 3)
    assert [rate(step) for step in range(3)] == pytest.approx([0.2 * each for each in rates])


def test_runs_of_another_schedule_are_other_runs(tmp_path):
    constant, cosine = (grid("logistic", {"SGD": [1.0]}, [0], steps=20, schedule=name)[0] for name in (None, "cosine"))
    assert constant.schedule == "constant"
    assert constant.key != cosine.key
    assert "schedule" not in constant.key  # results of older races are found again
    ends = [execute(run)["curve"][-1]["loss"] for run in (constant, cosine)]
    assert ends[0] != ends[1]


def test_the_schedule_of_a_problem_is_its_default(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN_SCHEDULE.replace("FACTOR", "0.0"))
    (run,) = grid(str(own), {"SGD": [0.1]}, [0])
    assert run.schedule == "own"
    still = execute(run)["curve"]
    assert still[0]["loss"] == still[-1]["loss"]  # the factor is zero
    (moving,) = grid(str(own), {"SGD": [0.1]}, [0], schedule="constant")
    assert execute(moving)["curve"][-1]["loss"] < still[0]["loss"]


def test_wrong_schedules_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must be one of constant, cosine, linear, halving; got 'cosinus'"):
        grid("logistic", {"SGD": [1.0]}, [0], schedule="cosinus")
    with pytest.raises(ValueError, match=r"got 'own'; logistic has no method schedule\(progress\)"):
        grid("logistic", {"SGD": [1.0]}, [0], schedule="own")
    own = tmp_path / "own.py"
    own.write_text(OWN_SCHEDULE.replace("FACTOR", "-1.0"))
    with pytest.raises(RuntimeError, match=r"schedule\(0\) of the problem returns -1.0; it should return the factor"):
        execute(Run(str(own), "SGD", 0.1, 0, schedule="own"))


def test_a_metric_that_is_to_be_large(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN.replace("self.loss().item()", "self.loss().item(), 'score': -self.loss().item()"))
    text = own.read_text().replace('3, "loss"', '3, "score"\n    larger_is_better = ("score",)')
    own.write_text(text)
    records = [execute(run) for run in grid(str(own), {"SGD": [1e-4, 1e-2], "Adam": [1e-5]}, [0, 1])]
    assert all(record["larger_is_better"] for record in records)
    first, second = standings(records)
    assert (first.optimizer, first.lr, second.optimizer) == ("SGD", 1e-2, "Adam")
    assert first.final > second.final
    records[0] |= {"status": "diverged"}
    assert measure(records[0], "final") == -math.inf
    assert draw_curves(records, tmp_path / "c", seconds=True)[0].exists()
    own.write_text(text.replace('("score",)', '"score"'))
    with pytest.raises(ValueError, match="larger_is_better of class Problem is 'score'; it should be a tuple"):
        grid(str(own), {"SGD": [0.1]}, [0])
    own.write_text(text.replace('("score",)', '("accuracy",)'))
    with pytest.raises(RuntimeError, match=r"larger_is_better names accuracy, and evaluate\(\) returns loss, score"):
        execute(Run(str(own), "SGD", 0.1, 0))


def test_everybody_gets_one_more_rate_if_somebody_is_at_an_edge():
    runs = [Run("p", name, lr, 0) for name in ("A", "B") for lr in (0.1, 1.0, 10.0)]
    finals = {("A", 0.1): 3.0, ("A", 1.0): 2.0, ("A", 10.0): 1.0, ("B", 0.1): 2.0, ("B", 1.0): 1.0, ("B", 10.0): 2.0}
    records = [record(run.optimizer, run.lr, 0, [4.0, finals[run.optimizer, run.lr]]) for run in runs]
    more = one_more_rate(runs, records)
    assert [(run.optimizer, run.lr) for run in more] == [("A", 100.0), ("B", pytest.approx(0.316228, rel=1e-5))]
    records += [record(run.optimizer, run.lr, 0, [4.0, 5.0]) for run in more]
    assert one_more_rate([*runs, *more], records) == []


NOT_FINITE = (
    OWN.replace("def loss(self):", "def usual(self):").replace("self.loss().item()", "self.usual().item()")
    + """
    calls = 0
    def loss(self):
        self.calls += 1
        return self.usual() * (1.0 if SHARE else float("nan"))
"""
)


def test_steps_that_are_not_finite_are_left_out_and_counted(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    start = execute(Run(str(own), "SGD", 0.1, 0, steps=30))
    assert (start["status"], start["skipped"]) == ("done", 0)
    for share, status, skipped in (("self.calls % 2", "done", 15), ("False", "diverged", 10)):
        own.write_text(NOT_FINITE.replace("SHARE", share))
        found = execute(Run(str(own), "SGD", 0.1, 0, steps=30))
        assert (found["status"], found["skipped"]) == (status, skipped)


def test_step_seconds_are_kept_beside_the_results(tmp_path):
    path = write_step_seconds(tmp_path, {"SGD": 0.5, "GGT(window=5)": 1e-3})
    assert read_step_seconds(path) == {"SGD": 0.5, "GGT(window=5)": 1e-3}
    path.write_text('{"SGD": "fast"}')
    with pytest.raises(ValueError, match="SGD"):
        read_step_seconds(path)


def test_an_optimizer_has_one_colour_everywhere():
    specs = ["GGT", "GGT(window=50)", "Adam", "torch.optim.AdamW(weight_decay=0.1)", "SGD", "whiten(Muon, window=5)"]
    for names in (specs, specs[::-1], [*specs, "Lion"], ["a.package.Lion", *specs]):
        colors = {name: style[0] for name, style in line_styles(names).items()}
        assert [COLORS.index(colors[name]) for name in specs] == [0, 0, 1, 1, 6, 0]
        assert len(set(line_styles(names).values())) == len(names)  # no two lines look alike
    firsts = ["GGT by parameter", "SGD fixed", "AdamW behind whiten"]
    legend = line_styles([*firsts, "L-BFGS", "Adam, then L-BFGS", "whiten(AdamW)", "whitened NorMuon", "NorMuon"])
    assert [COLORS.index(color) for color, _ in legend.values()] == [0, 6, 1, 6, 1, 0, 0, 4]
    assert len(set(legend.values())) == len(legend)
    assert line_styles(["Lion"])["Lion"][0] == COLORS[0]  # nobody else has it
