"""The league: its search against made-up results, its statistics against numbers by hand, a whole small league."""

import inspect
import json
import math
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ggt_lab.cli.commands import run_command
from ggt_lab.cli.league_command import LeagueCommand
from ggt_lab.data.python_sources import load_python_sources, make_python_sources
from ggt_lab.league.cells import Cell, cell_of, shortness
from ggt_lab.league.comparisons import against_all, by_task, pairs, profile, ranks, reached, rivalry
from ggt_lab.league.entrants import BASELINES, ENTRANTS, OURS, RECOMMENDED
from ggt_lab.league.execution import execute
from ggt_lab.league.play import Field, check_folder, missing_packages, play, unfinished
from ggt_lab.league.protocol import PROTOCOL, SMOKE, best_trial, fresh_runs, next_runs, trials_of
from ggt_lab.league.steppers import make_stepper
from ggt_lab.league.summary import summarize
from ggt_lab.league.tables import cell_words, parts, rival_wins
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class, registry
from ggt_lab.report.league_section import read_league
from ggt_lab.report.page import write_report
from ggt_lab.runs.results import Results

CPU = torch.device("cpu")
TASK, ADAMW = PROTOCOL.task("poisson"), PROTOCOL.entrant("adamw")
SGD = PROTOCOL.entrant("sgd")


def search(score, entrant=SGD, task=TASK):
    """All runs of a cell, made up: ``score`` maps (power, settings) to the number tuned by; None is a divergence."""
    done = {}
    while runs := next_runs(PROTOCOL, task, entrant, done):
        for run in runs:
            value = score(run.power, dict(run.settings))
            points = [] if value is None else [{"step": run.steps, task.tuned_by: value, task.metric: value + run.seed}]
            status = "diverged" if value is None else "done"
            done[run.key] = {"task": task.name, "seed": run.seed, "status": status, "points": points, "skipped": 0}
    return done


@pytest.mark.parametrize("best", range(-8, 4))
def test_every_search_has_eight_trials_and_five_fresh_seeds(best):
    done = search(lambda power, settings: 1 + abs(power - best) + (settings["momentum"] != 0.95) / 4)
    trials = trials_of(PROTOCOL, TASK, SGD, done)
    assert len(trials) == len({trial.key for trial in trials}) == PROTOCOL.trials
    assert {trial.seed for trial in trials} == {200}
    assert {run["seed"] for run in done.values()} == {200, 10, 11, 12, 13, 14}
    assert len(done) == 13
    cell = cell_of(Field(PROTOCOL, (TASK,), (SGD,)), TASK, SGD, done)
    assert (cell.trials, cell.edge) == (8, not -4 <= best <= 0)  # -2 ± 1, and two rates beyond that are no edge yet
    # Without luck: the best rate within reach is found, and the better momentum with it.
    assert cell.lr == pytest.approx(10 ** (min(max(best, -5), 1) / 2))
    assert dict(cell.settings)["momentum"] == 0.95


def test_rates_are_on_one_grid_for_everybody():
    for entrant in ENTRANTS:
        powers = [trial.power for trial in trials_of(PROTOCOL, TASK, entrant, {})]
        assert powers == [entrant.power - 1, entrant.power, entrant.power + 1]
        assert len(entrant.changes) == PROTOCOL.trials - 3


def test_a_search_in_which_everything_diverges_goes_down_and_says_so():
    done = search(lambda power, settings: None)
    assert len(done) == PROTOCOL.trials
    cell = cell_of(Field(PROTOCOL, (TASK,), (SGD,)), TASK, SGD, done)
    assert (cell.status, cell.why) == ("diverged", "all 8 trials diverged")
    assert min(trial.power for trial in trials_of(PROTOCOL, TASK, SGD, done)) == SGD.power - 3
    assert cell.log_mean == math.inf


def test_short_trials_are_checked_once_for_each_task():
    task = replace(TASK, tuning_steps=TASK.steps // 2)
    done = search(lambda power, settings: 1.0 + abs(power + 4), ADAMW, task)
    assert len(done) == 8 + 5 + 8
    field = Field(PROTOCOL, (task,), (ADAMW,))
    found = shortness(field, task, done)
    assert (found.same_choice, found.cost) == (True, 1.0)
    trials = trials_of(PROTOCOL, task, ADAMW, done)
    best = best_trial(trials, done)
    for trial in trials:  # at full length another trial wins by a factor of two
        run = done[replace(trial, steps=task.steps).key]
        run["points"][-1][task.tuned_by] = 4.0 if trial == best else 2.0
    found = shortness(field, task, done)
    assert (found.same_choice, found.cost) == (False, 2.0)


def test_a_cell_that_the_budget_was_too_small_for_says_so_and_holds_up_nobody():
    field, done = Field(PROTOCOL, (TASK,), (SGD, ADAMW)), search(lambda power, settings: 1.0 + abs(power + 4), ADAMW)
    some = {key: run for key, run in search(lambda power, settings: 1.0 + abs(power + 2)).items() if run["seed"] != 14}
    for over_budget in (False, True):
        cells = [cell_of(field, TASK, each, {**done, **some}, over_budget=over_budget) for each in (SGD, ADAMW)]
        words = f"4 of 5 seeds{f'; the {TASK.minutes} minutes of the task are used up' if over_budget else ''}"
        assert [(cell.status, cell.why) for cell in cells] == [("partly", words), ("done", "")]
        elsewhere = replace(cells[0], task="elsewhere", status="done")
        assert ("poisson" in by_task([*cells, elsewhere])) == over_budget


def test_deep_tasks_have_fewer_seeds_and_evaluations():
    task = PROTOCOL.task("gpt-ptb")
    done = search(lambda power, settings: 1.0 + abs(power + 4), SGD, task)
    fresh = [run for run in done.values() if run["seed"] != PROTOCOL.tuning_seed]
    assert {run["seed"] for run in fresh} == set(PROTOCOL.seeds_of(task)) == {10, 11, 12}
    best = best_trial(trials_of(PROTOCOL, task, SGD, done), done)
    assert {run.evaluations for run in fresh_runs(PROTOCOL, task, SGD, best)} == {task.evaluations}


def test_which_tasks_an_entrant_enters_decides_no_run():
    assert PROTOCOL.digest(TASK, ADAMW) == PROTOCOL.digest(TASK, replace(ADAMW, deep=False))
    assert PROTOCOL.digest(TASK, ADAMW) != PROTOCOL.digest(replace(TASK, warm_up=0.1), ADAMW)


def test_the_rate_rises_and_falls():
    problem = problem_class("factorization")(0, CPU)
    stepper = make_stepper(problem, SGD, dict(SGD.start), 0.1, 100, warm_up=0.05)
    rates = []
    for done in range(100):
        stepper.move(done)
        rates.append(stepper.optimizer.param_groups[0]["lr"])
    expected = [0.1 * min(1.0, (t + 1) / 5) * (1 + math.cos(math.pi * t / 100)) / 2 for t in range(100)]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("name", ["muon", "ggt-polar", "adamw"])
def test_embeddings_and_heads_are_no_hidden_matrices(name):
    problem = problem_class("league-gpt-ptb-tiny")(0, CPU)
    entrant = PROTOCOL.entrant(name)
    groups = make_stepper(problem, entrant, dict(entrant.start, weight_decay=0.1), 0.1, 10).optimizer.param_groups
    of = {p: group for group in groups for p in group["params"]}
    roles = {n: of[p]["role"] for n, p in problem.model.named_parameters()}
    assert roles["tokens.weight"] == roles["out.weight"] == roles["layers.0.widen.bias"] == "rest"
    assert roles["layers.0.widen.weight"] == roles["layers.0.attention.out.weight"] == "matrix"
    decays = {n: of[p]["weight_decay"] for n, p in problem.model.named_parameters()}
    assert (decays["out.weight"], decays["layers.0.widen.weight"], decays["layers.0.widen.bias"]) == (0.1, 0.1, 0.0)
    if name == "ggt-polar":
        assert {group["finish"] for group in groups} == {"polar_rows", "adam"}


def test_an_edge_is_marked():
    done = search(lambda power, settings: 10.0 - power)
    assert cell_of(Field(PROTOCOL, (TASK,), (SGD,)), TASK, SGD, done).edge


def test_recommended_and_rivals_are_entrants():
    assert {RECOMMENDED, *BASELINES, *OURS} <= {entrant.name for entrant in ENTRANTS}


# ---- one run --------------------------------------------------------------------------------------------------------


def run_of(entrant, task="factorization", steps=40, seed=0, **settings):
    task = replace(PROTOCOL.task(task), steps=steps)
    run = trials_of(PROTOCOL, task, entrant, {})[1]
    return replace(run, seed=seed, steps=steps, evaluations=4, settings=tuple({**entrant.start, **settings}.items()))


def test_a_run_is_the_loop_that_one_would_write():
    record = execute(run_of(SGD))
    torch.manual_seed(0)
    problem = problem_class("factorization")(0, CPU)
    optimizer = torch.optim.SGD(problem.parameters(), lr=0.1, momentum=0.9)
    for step in range(40):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 40)) / 2
        optimizer.zero_grad()
        problem.loss().backward()
        optimizer.step()
    assert record["points"][-1] == {"step": 40, "loss": pytest.approx(problem.loss().item(), rel=1e-5)}
    assert [point["step"] for point in record["points"]] == [0, 10, 20, 30, 40]
    assert (record["status"], record["skipped"]) == ("done", 0)


class TwoLooks(torch.optim.SGD):
    """A method that asks for the gradient where it stands, and then where it goes: scimba's SSBroyden in small."""

    def __init__(self, params, lr, scale=0.1):
        super().__init__(params, lr=lr * scale)

    def step(self, closure):
        closure()
        super().step()
        return closure()


@pytest.mark.parametrize("name", ["lbfgs", "adam-lbfgs", "ssbroyden", "two looks"])
def test_the_gradients_of_a_line_search_count(name):
    if name == "two looks":
        entrant = replace(PROTOCOL.entrant("ssbroyden"), then=f"{__name__}.TwoLooks(scale=0.1)")
    else:
        entrant = PROTOCOL.entrant(name)
    if missing_packages(Field(PROTOCOL, (TASK,), (entrant,))):
        pytest.skip("scimba is not installed")
    run = run_of(entrant, steps=60)
    problem = problem_class("factorization")(0, CPU)
    calls = []
    loss, problem.loss = problem.loss, lambda: calls.append(1) or loss()
    stepper = make_stepper(problem, entrant, dict(run.settings), run.lr, 60)
    done = 0
    while done < 60:
        before = [p.detach().clone() for p in problem.parameters()]
        done += stepper.move(done).gradients
        if done > 60:  # what took too many gradients is undone
            assert all(torch.equal(p, old) for p, old in zip(problem.parameters(), before, strict=True))
    assert done == len(calls)
    record = execute(run)
    steps = [point["step"] for point in record["points"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == 60
    assert record["points"][-1]["loss"] < 0.1 * record["points"][0]["loss"]


@pytest.mark.parametrize("name", ["sgd", "adamw", "ggt", "ggt-polar", "whiten-adamw"])
def test_gradients_that_are_not_finite_are_left_out_for_everybody(name):
    problem = problem_class("factorization")(0, CPU)
    entrant = PROTOCOL.entrant(name)
    loss, count = problem.loss, 0

    def sometimes():
        nonlocal count
        count += 1
        return loss() * (math.nan if count == 2 else 1.0)

    problem.loss = sometimes
    stepper = make_stepper(problem, entrant, entrant.start, 0.01, 10)
    assert stepper.move(0).finite
    before = problem.left.detach().clone()
    assert not stepper.move(1).finite
    assert torch.equal(problem.left, before)
    assert stepper.move(2).finite
    assert not torch.equal(problem.left, before)


def test_a_run_that_is_never_finite_diverges():
    record = execute(replace(run_of(SGD), power=40))
    assert record["status"] == "diverged"
    assert record["skipped"] > 0


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_a_folder_of_another_protocol_is_refused(tmp_path):
    field = Field(PROTOCOL, (TASK,), (ADAMW,))
    check_folder(tmp_path, field)
    check_folder(tmp_path, Field(PROTOCOL, (PROTOCOL.task("adding"),), (SGD,)))  # more of the protocol is welcome
    check_folder(tmp_path, field._replace(tasks=(replace(TASK, title="other words"),)))
    with pytest.raises(ValueError, match="another protocol: it differs in poisson"):
        check_folder(tmp_path, field._replace(tasks=(replace(TASK, steps=7),)))
    with pytest.raises(ValueError, match="it differs in sgd"):
        check_folder(tmp_path, field._replace(entrants=(replace(SGD, power=3),)))
    with pytest.raises(ValueError, match="the rules for all"):
        check_folder(tmp_path, field._replace(protocol=replace(PROTOCOL, trials=9)))


def test_runs_of_another_protocol_are_neither_counted_nor_charged(tmp_path):
    field = Field(PROTOCOL, (TASK,), (SGD,))
    run = trials_of(PROTOCOL, TASK, SGD, {})[0]
    points = [{"step": run.steps, TASK.metric: 1.0, TASK.tuned_by: 1.0}]
    fields = {"task": TASK.name, "entrant": "sgd", "device": "cpu", "status": "done", "skipped": 0}
    fields |= {"steps": run.steps, "points": points}
    results = Results(tmp_path / "results.jsonl")
    results.append({"key": run.key, **fields, "cost_s": 1.0})
    check_folder(tmp_path, field)
    foreign = replace(run, digest=PROTOCOL.digest(TASK, replace(SGD, power=7)))
    results.append({"key": foreign.key, **fields, "cost_s": 60.0 * TASK.minutes})
    results.append({"key": run.key.replace("seed", "other"), **fields, "points": [{"step": run.steps}], "cost_s": 1.0})
    flaw = rf"results\.jsonl:3 is left out: not every point of it has {TASK.metric}, {TASK.tuned_by}"
    with pytest.warns(UserWarning, match=flaw), pytest.warns(UserWarning, match="1 runs of another protocol are left"):
        summary = summarize(field, tmp_path)
    with pytest.warns(UserWarning, match="left out"):
        assert unfinished(field, tmp_path) == 1  # the budget is not used up
    assert summary["runs"] == 1
    whys = {(each["task"], each["entrant"]): each["why"] for each in summary["cells"]}
    assert whys[TASK.name, "sgd"] == "1 of 8 trials made"
    assert whys[TASK.name, "adamw"] == whys["digits", "sgd"] == "not asked for"
    assert parts(summary)[-1].rows[0][:3] == [TASK.name, SGD.title, "–"]
    (tmp_path / "protocol.json").unlink()
    with pytest.warns(UserWarning, match=flaw), pytest.raises(ValueError, match=r"1 runs, and no protocol\.json"):
        check_folder(tmp_path, field)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_a_missing_package_is_named(tmp_path):
    entrant = replace(SGD, name="rare", title="Rare", spec="no_such_package.Rare(momentum={momentum})")
    field = Field(replace(SMOKE, entrants=(entrant,)), SMOKE.tasks[:1], (entrant,))
    assert missing_packages(field) == {"rare": "no_such_package"}
    assert play(field, tmp_path)
    cell = cell_of(field, field.tasks[0], entrant, {}, "no_such_package is not installed")
    assert cell_words({"status": cell.status, "why": cell.why}) == "not run: no_such_package is not installed"


def test_a_budget_ends_a_task(tmp_path):
    field = Field(SMOKE, (replace(SMOKE.tasks[0], minutes=0),), (ADAMW,))
    assert play(field, tmp_path)
    assert not (tmp_path / "results.jsonl").exists()


# ---- statistics -----------------------------------------------------------------------------------------------------


def cell(task, entrant, *values, curve=()):
    return Cell(task, entrant, "done", values=values, curve=curve)


def test_means_and_intervals_are_geometric():
    one = cell("t", "a", 1.0, 10.0, 100.0)
    assert one.mean == pytest.approx(10)
    error = math.log(10) / math.sqrt(3)
    assert one.interval == pytest.approx((10 * math.exp(-error), 10 * math.exp(error)))
    other = cell("t", "b", 100.0, 1000.0, 10000.0)
    assert other.apart(one) == pytest.approx(math.log(100) / 3 / error * 3 / math.sqrt(2))
    assert cell("t", "c", 1.0, math.inf).mean == math.inf
    assert cell("t", "c", 0.0, 0.0).mean == pytest.approx(1e-12)


def test_ranks():
    cells = [
        cell(t, e, v, v) for t, row in {"x": (1, 2, 3), "y": (2, 1, 3)}.items() for e, v in zip("abc", row, strict=True)
    ]
    cells += [cell("x", "d", 0.1, 0.1)]  # it is not on every task
    cells += [Cell("y", "d", "not run"), cell("z", "c", 0.1, 0.1), Cell("z", "a", "partly")]  # z is not complete
    assert {rank.tasks for rank in ranks(cells)} == {1}  # nor is y, as long as d is somewhere else
    cells = [each for each in cells if (each.task, each.entrant) != ("y", "d")]
    found = {rank.entrant: rank for rank in ranks(cells)}
    assert {name: rank.mean for name, rank in found.items()} == {"a": 1.5, "b": 1.5, "c": 3.0}
    assert (found["a"].low, found["a"].high, found["c"].low) == (1.0, 2.0, 3.0)
    assert (found["a"].behind, found["c"].behind) == (0.0, 1.5)
    assert (found["c"].behind_low, found["c"].behind_high) == (1.0, 2.0)  # c is last wherever a is first or second
    few = ranks(cells, ("a", "c"))  # without b and d, and only where both have ended
    assert [(rank.entrant, rank.mean, rank.tasks) for rank in few] == [("a", 1.0, 2), ("c", 2.0, 2)]


def test_profiles_and_levels():
    slow = cell("t", "adamw", 1.0, 1.0, curve=((0, 100.0), (50, 10.0), (100, 1.0)))
    fast = cell("t", "fast", 0.1, 0.1, curve=((0, 100.0), (50, 0.1), (100, 0.1)))
    never = cell("t", "never", 9.0, 9.0, curve=((0, 100.0), (100, 9.0)))
    assert reached(slow, 10.0) == 50
    assert reached(fast, 1.0) == pytest.approx(100 / 3)  # two of three decades
    assert reached(never, 1.0) == math.inf
    shares = profile([slow, fast, never], "adamw")
    assert shares["fast"][0] == 1.0
    assert (shares["adamw"][0], shares["adamw"][-1]) == (0.0, 1.0)
    assert set(shares["never"]) == {0.0}
    seconds = {("t", "adamw"): 1.0, ("t", "fast"): 30.0, ("t", "never"): 1.0}
    assert profile([slow, fast, never], "adamw", seconds)["adamw"][0] == 1.0
    assert profile([slow, fast, never], "adamw", {("t", "adamw"): 1.0}) == {}


def test_rivals_and_pairs():
    curve = ((0, 8.0), (4, 1.0))
    cells = [cell("t", "mine", 4.0, 4.1, curve=((0, 8.0), (4, 4.05))), cell("t", "a", 1.0, 1.0, curve=curve)]
    cells += [cell("t", "b", 2.0, 2.0, curve=((0, 8.0), (4, 2.0))), cell("t", "whiten-a", 0.5, 0.5)]
    (found,) = rivalry(cells, "mine", ["a", "b"])
    assert (found.place, found.best_rival, found.level) == (3, "a", False)
    assert found.steps == {"mine": math.inf, "a": pytest.approx(4), "b": math.inf}
    assert against_all(cells, "mine", ("mine", "whiten-a"), ["t"]) == [found]
    assert against_all(cells, "mine", ("mine",), ["t"])[0].best_rival == "whiten-a"
    (pair,) = pairs(cells)
    assert (pair.alone, pair.factor) == ("a", pytest.approx(2))


def test_where_a_rival_wins():
    done = {"status": "done", "n": 2, "task": "t"}
    summary = {
        "ours": ["x", "y"],
        "complete": ["t"],
        "cells": [{**done, "entrant": name, "mean": mean} for name, mean in (("x", 3.0), ("y", 2.0), ("r", 1.0))],
    }
    assert rival_wins(summary) == [("t", "r", "y", 2.0)]
    summary["cells"][0]["mean"] = 0.5
    assert rival_wins(summary) == []


# ---- the whole ------------------------------------------------------------------------------------------------------


def test_the_smoke_league(tmp_path, capsys, monkeypatch):
    """Every task and every entrant once; the summary, the page and the report; and nothing is run twice."""
    monkeypatch.setenv("COLUMNS", "300")
    words = ["league", "--smoke", "--out", str(tmp_path)]
    run_command(words)
    summary = json.loads((tmp_path / "league.json").read_text())
    states = {(c["task"], c["entrant"]): (c["status"], c["why"]) for c in summary["cells"]}
    assert {task for task, _ in states} == {task.name for task in PROTOCOL.tasks}
    assert {entrant for _, entrant in states} == {entrant.name for entrant in ENTRANTS}
    for state in states.values():
        assert state == ("done", "") or "is not installed" in state[1]
    assert sum(state == ("done", "") for state in states.values()) >= 30
    assert "adamw" in summary["profile_per_second"]
    page = (tmp_path / "league.md").read_text()
    assert all(part.title in page for part in parts(summary))
    assert "The league" in write_report(tmp_path).read_text()
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert verdicts["smoke"] is True
    assert {each["claim"] for each in verdicts["verdicts"]} == {"A2", "R2", "R3", "R4", "A1"}
    assert {each["holds"] for each in verdicts["verdicts"]} == {None}  # tiny sizes decide nothing
    before = (tmp_path / "results.jsonl").read_bytes()
    run_command([*words, "--task", "poisson", "--entrant", "adamw"])
    assert (tmp_path / "results.jsonl").read_bytes() == before
    capsys.readouterr()
    run_command([*words, "--task", "gpt-ptb", "--entrant", "adamw", "--summary"])  # there is no table of small tasks
    assert "gpt-ptb" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run_command(["league", "--out", str(tmp_path)])
    assert "holds results of another protocol" in " ".join(capsys.readouterr().out.split())


LANES = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "league_lanes.py"))


def test_lanes_fill_one_folder(tmp_path, capsys):
    lanes = ["factorization: sgd muon", "factorization: adamw; jobs 2; later"]
    assert [LANES["lane"](words)[1:] for words in lanes] == [(("sgd", "muon"), 1, False), (("adamw",), 2, True)]
    words = [str(tmp_path), "--smoke", "--device", "cpu"]
    assert LANES["main"]([*words, *lanes]) == 0
    entrants = [run["entrant"] for run in Results(tmp_path / "results.jsonl")]
    assert {name: entrants.count(name) for name in entrants} == {"sgd": 6, "muon": 6, "adamw": 10}  # checked at length
    assert "factorization sgd+muon 12" in capsys.readouterr().out
    for wrong, why in (("factorization", "is no lane"), ("factorization: sgd", "two lanes play sgd on factorization")):
        with pytest.raises(SystemExit):
            LANES["main"]([*words, "factorization: sgd", wrong])
        assert why in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--task poison", "did you mean poisson or factorization? `ggt league --help` names every task."),
        ("--device cuda:99", "device cuda:99 was asked for, and torch sees no such CUDA device here; use cpu"),
        ("--device tpu --summary", "device must be cpu, cuda or a GPU by its number like cuda:0; got 'tpu'"),
        ("--minutes nan", "need minutes ≥ 0, got minutes=nan"),
        ("--smoke --task DIGITS --entrant l-bfgs", "L-BFGS does not enter digits in the smoke league"),
        ("--summary", "there are no runs of this protocol in o/results.jsonl"),
        ("--page .", "--page is the name of a file, and . is a folder"),
    ],
)
def test_wrong_options_are_said_before_anything_is_made(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run_command(["league", *words.split(), "--out", "o"])
    assert said in " ".join(capsys.readouterr().out.split())
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_every_task_and_entrant():
    source = inspect.getsource(LeagueCommand)
    for each in (*PROTOCOL.tasks, *ENTRANTS):
        assert re.search(rf"[ \n]{each.name}\b(?!-)", source), each.name


def test_a_league_whose_time_is_up_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ggt_lab.figures.drawn", lambda draw: [])
    monkeypatch.setattr("ggt_lab.league.step_times.measure", lambda *_: None)
    words = ["league", "--smoke", "--out", str(tmp_path / "o"), "--page", str(tmp_path / "new" / "page.md")]
    run_command([*words, "--task", "Factorization", "--entrant", "AdamW", "adamw", "GGT", "--minutes", "0"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Time is up, and 2 cells need more runs. The same command goes on from here." in out
    assert "factorization: no cell has a result (no run was made)" in out
    assert (tmp_path / "new" / "page.md").exists()


def test_summaries_of_older_versions(tmp_path):
    """What has no key of later days is read; where that is not possible the words say what to do."""
    field = Field(PROTOCOL, (TASK,), (SGD,))
    summary = summarize(field, tmp_path)
    path = tmp_path / "league.json"
    for cell in summary["cells"]:
        del cell["over_budget"], cell["momentum_edge"]
    del summary["speedups"], summary["speedups_deep"]
    path.write_text(json.dumps(summary))
    assert len(read_league(path).parts) == len(parts(summary))
    del summary["recommended_deep"]
    for season, words in ((2, r"it has no recommended_deep; .* `ggt league --summary"), (1, "of another season")):
        path.write_text(json.dumps({**summary, "protocol": {"season": season}}))
        with pytest.raises(ValueError, match=words):
            read_league(path)
    path.write_text('{"cells": []}')
    with pytest.raises(ValueError, match=r"league\.json is left out: it is not the summary of a league"):
        write_report(tmp_path)


# ---- data -----------------------------------------------------------------------------------------------------------


def test_python_sources(tmp_path):
    import zipfile

    for number in range(2):
        with zipfile.ZipFile(tmp_path / f"{number}.whl", "w") as wheel:
            for k in range(40):
                wheel.writestr(f"p{number}/f{k}.py", f"x = {number}{k}\n" * 5)
            wheel.writestr(f"p{number}/data.bin", "not a source")
    with pytest.raises(ValueError, match=r"python tools/python_sources\.py"):
        load_python_sources(tmp_path)
    make_python_sources(sorted(tmp_path.glob("*.whl")), tmp_path / "python-sources.npz")
    text = load_python_sources(tmp_path)
    whole = b"".join(part.tobytes() for part in (text.train, text.valid, text.test))
    assert whole.count(b"x = ") == 400
    assert b"not a source" not in whole
    assert len(text.valid) == len(text.test) == len(whole) // 20
    assert len(text.vocabulary) == 256


def test_a_package_cannot_change_the_defaults_of_torch(tmp_path, monkeypatch):
    (tmp_path / "rude.py").write_text("import torch\ntorch.set_default_dtype(torch.double)\nSGD = torch.optim.SGD\n")
    monkeypatch.syspath_prepend(tmp_path)
    optimizer_factory("rude.SGD(momentum=0.9)")
    assert torch.get_default_dtype() == torch.float32


def test_equations_in_float64_begin_where_those_in_float32_do(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", {**registry._REGISTRY})  # it registers problems of its own
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/equations_in_float64.py"))
    found = script["runs"](Path(__file__).parents[2] / "records/2026-11-18-league-second", ["poisson"])
    assert len(found) == len(script["ENTRANTS"]) * len(script["SEEDS"])
    single, double = (problem_class(name)(0, CPU) for name in ("pinn-poisson", found[0].task.problem))
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    assert double.loss().item() == pytest.approx(single.loss().item(), rel=1e-4)
    (run,) = [each for each in found if (each.entrant.name, each.seed) == ("lbfgs", 10)]
    record = execute(replace(run, steps=6, evaluations=2))
    assert (record["status"], record["points"][-1]["step"]) == ("done", 6)


def test_a_lower_momentum_is_reported_only_where_its_trial_is_lower():
    again = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/lower_momentum.py"))["again"]
    record = Path(__file__).parents[2] / "records/2026-11-18-league-second/results.jsonl"
    league = {each["key"]: each for each in Results(record)}

    def ends(tuned, reported):
        return lambda run: {"status": "done", "points": [{"validation_loss": tuned, "test_loss": reported}]}

    curves = PROTOCOL.task("curves")
    assert again(curves, "muon", league, ends(99.0, 1.0)) == "| curves | Muon | 0.8 | 2.4 | – | – |"
    assert again(curves, "muon", league, ends(0.5, 1.0)).startswith("| curves | Muon | 0.7 | 2.4 | 1 | -")
    assert again(PROTOCOL.task("poisson"), "muon", league, ends(0.5, 1.0)) is None  # its trials chose another momentum


def test_soap_refreshes_at_every_step():
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/soap_refresh.py"))
    assert script["OFTEN"].spec == script["SOAP"].spec[:-1] + ", precondition_frequency=1)"
    assert {
        run.entrant.name for run in next_runs(script["FIELD"].protocol, script["SMALL"][0], script["OFTEN"], {})
    } == {"soap-often"}
