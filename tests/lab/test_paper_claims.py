"""The league's tasks of the paper: older cells stay as they were, splits are apart, verdicts follow from results."""

import json
import math
from pathlib import Path

import pytest
import torch

from ggt_lab.data.published_files import DataError
from ggt_lab.experiments.verdicts import Verdict, read_verdicts, write_verdicts
from ggt_lab.league.execution import execute
from ggt_lab.league.paper_claims import CLAIMS, DOUBTS, NAMES, Doubt, judged, replaced_by
from ggt_lab.league.play import Field, missing_data, missing_packages
from ggt_lab.league.play import play as play_league
from ggt_lab.league.protocol import PROTOCOL, SMOKE, at_edge, fresh_runs, next_runs, trials_of
from ggt_lab.league.steppers import make_stepper
from ggt_lab.league.summary import summarize
from ggt_lab.league.tasks import PAPER, TASKS
from ggt_lab.problems import problem_class
from ggt_lab.report.claims_page import collect

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
JUDGES = [task for task in TASKS if task.name in CLAIMS]


def field_of(name):
    return Field(PROTOCOL, (PROTOCOL.task(name),), PROTOCOL.entrants)


def play(name, curves):
    """All runs of a task, made up: ``curves`` maps an entrant to the losses of its epochs; None diverges everywhere."""
    done = {}
    field = field_of(name)
    for task, entrant in field.cells():
        if entrant.name not in curves:
            continue
        while runs := next_runs(PROTOCOL, task, entrant, done):
            for run in runs:
                losses = curves[entrant.name]
                points = []
                for epoch, loss in enumerate(losses or ()):
                    middle = task.powers.get(entrant.name, entrant.power)
                    value = loss + 0.001 * (run.seed % 10) + 0.1 * abs(run.power - middle)
                    text = {f"{part}_perplexity": math.exp(value) for part in ("train", "test")}
                    numbers = {"train_loss": value, "test_loss": value, "validation_loss": value, "test_error": value}
                    points.append({"step": epoch * task.steps // (len(losses) - 1), **numbers, **text})
                done[run.key] = {
                    **{
                        "task": name,
                        "entrant": entrant.name,
                        "seed": run.seed,
                        "steps": run.steps,
                        "skipped": 2,
                        "cost_s": 1.0,
                    },
                    **{"status": "done" if losses else "diverged", "points": points},
                }
    return field, done


def of(verdicts, words):
    (found,) = [verdict for verdict in verdicts if words in verdict.statement]
    return found


# ---- the protocol ---------------------------------------------------------------------------------------------------


def test_cells_of_the_season_keep_their_digests():
    lines = (ROOT / "records" / "2026-11-18-league-second" / "results.jsonl").read_text().splitlines()
    found = {(each["task"], each["entrant"], json.loads(each["key"])[-1]) for each in map(json.loads, lines)}
    assert len(found) > 150
    for task, entrant, digest in found:
        assert PROTOCOL.digest(PROTOCOL.task(task), PROTOCOL.entrant(entrant)) == digest, (task, entrant)


@pytest.mark.parametrize("task", JUDGES, ids=lambda task: task.name)
def test_everybody_has_equal_trials_on_one_grid_and_the_reported_split_is_another_one(task):
    cells = [(one, each) for one, each in field_of(task.name).cells() if each.name in NAMES]
    judged_ones = {name for claim in CLAIMS[task.name] for name in _named(claim)}
    assert judged_ones <= {NAMES[each.name] for _, each in cells}
    assert cells[0][1].name == "ggt-200"  # the claims are about it: its runs come first
    _, done = play(task.name, {name: [3.0, 2.0, 1.0] for name in NAMES})
    for _, entrant in cells:
        trials = trials_of(PROTOCOL, task, entrant, done)
        assert len(trials) == PROTOCOL.trials
        assert {trial.steps for trial in trials} == {task.tuning_steps}
        assert 3 * task.tuning_steps >= task.steps
        best = next(trial for trial in trials if trial.power == task.powers.get(entrant.name, entrant.power))
        assert not at_edge(best, trials)
        assert {"weight_decay"} <= {name for change in entrant.changes for name in change}
        assert len(fresh_runs(PROTOCOL, task, entrant, best)) == 3
        assert {run.evaluations for run in fresh_runs(PROTOCOL, task, entrant, best)} == {task.evaluations}
    assert (task.metric, task.tuned_by) == ("test_loss", "validation_loss")
    problem = problem_class(f"{task.problem}-tiny")(0, CPU)
    if task.name == "a1":
        before = problem.evaluate()["test_loss"]
        problem._aside[0].zero_()
        assert problem.evaluate()["test_loss"] == before
        assert len(problem.labels) + len(problem._aside[1]) == 64
    else:
        assert problem.validation.data_ptr() != problem.test.data_ptr()
        before = problem.evaluate()
        problem.validation.zero_()
        after = problem.evaluate()
        assert (after["test_loss"], after["test_loss"] == after["validation_loss"]) == (before["test_loss"], False)


def _named(claim):
    """The entrants that a claim is about."""
    given = vars(claim)
    return [given["who"], *given.get("others", ()), *([given["other"]] if "other" in given else [])]


def test_an_evaluation_is_an_epoch_or_half_of_one():
    for name, size, batch, looks in (("r4", 929_589, 20 * 70, 1), ("a1", 45_000, 128, 2)):
        task = PROTOCOL.task(name)
        problem = problem_class(task.problem)
        assert batch == problem.batch * getattr(problem, "length", 1)
        # A text is read from several places in parallel, which loses some tokens.
        per_epoch = size // problem.batch // problem.length if hasattr(problem, "length") else size // batch
        assert looks * task.steps == task.evaluations * per_epoch


def test_the_schedule_of_a1_halves_and_the_others_are_cosines():
    problem = problem_class("factorization")(0, CPU)
    sgd = PROTOCOL.entrant("sgd")
    stepper = make_stepper(problem, sgd, dict(sgd.start), 0.1, 16, schedule="halving")
    rates = []
    for done in range(16):
        stepper.move(done)
        rates.append(stepper.optimizer.param_groups[0]["lr"])
    assert rates == [0.1 * 0.5 ** (done // 2) for done in range(16)]
    assert {task.name for task in JUDGES if task.schedule} == {"a1"}


def test_clipping_is_for_everybody():
    problem = problem_class("league-r4-tiny")(0, CPU)
    problem.take_gradients()
    norm = torch.nn.utils.get_total_norm([p.grad for p in problem.parameters()])
    assert norm <= 0.2501
    assert problem_class("league-r4").batch == 20


@pytest.mark.parametrize("name", [task.name for task in PAPER])
def test_a_tiny_run(name):
    task, entrant = SMOKE.task(name), SMOKE.entrant("ggt-200")
    record = execute(fresh_runs(SMOKE, task, entrant, trials_of(SMOKE, task, entrant, {})[1])[0])
    assert record["status"] == "done"
    assert {"train_loss", "test_loss", "validation_loss"} <= record["points"][-1].keys()
    assert ("test_error" if name == "a1" else "test_perplexity") in record["points"][-1]


@pytest.mark.parametrize("name", [task.name for task in PAPER])
def test_every_entrant_moves_every_model(name):
    field = Field(SMOKE, (SMOKE.task(name),), PROTOCOL.entrants)
    for entrant in (PROTOCOL.entrant(each) for each in SMOKE.task(name).powers):
        if entrant.name in missing_packages(field):
            continue
        problem = problem_class(SMOKE.task(name).problem)(0, CPU)
        stepper = make_stepper(problem, entrant, {**entrant.start, "weight_decay": 1e-3}, 1e-3, 10)
        before = [p.detach().clone() for p in problem.parameters()]
        assert all(stepper.move(done).finite for done in range(2))
        moved = sum(not torch.equal(p, old) for p, old in zip(problem.parameters(), before, strict=True))
        assert moved == len(before), entrant.name
        heads = [group for group in stepper.optimizer.param_groups if group.get("role") == "rest"]
        assert any(dict(problem.model.named_parameters())[problem.head] is p for g in heads for p in g["params"])


def test_missing_data_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("ggt_lab.league.play.fresh_problem", _no_data)
    field = Field(PROTOCOL, PAPER, PROTOCOL.entrants)
    assert missing_data(field) == {task.name: f"no data for {task.problem}" for task in PAPER}
    assert play_league(field, tmp_path)  # nothing is run
    summary = summarize(field, tmp_path, missing_data(field))
    whys = {cell["why"] for cell in summary["cells"] if cell["task"] in [task.name for task in PAPER]}
    entering = {entrant.name for _, entrant in field.cells()}
    without = [package for name, package in missing_packages(field).items() if name in entering]
    assert whys == {"its data is missing"} | {f"{package} is not installed" for package in without}
    assert summary["claims"] == []


def _no_data(name, seed, device):
    raise DataError(f"no data for {name}")


# ---- the verdicts ---------------------------------------------------------------------------------------------------


def test_a_claim_holds_or_does_not_hold():
    falling = {name: [4.0, 3.0, 2.5, 2.0, 1.5] for name in NAMES}
    ours = {"ggt-200": [4.0, 2.0, 1.9, 1.8, 1.7]}  # ahead at first, and behind at the end
    field, done = play("gpt-ptb", {**falling, **ours})
    verdicts = judged(field, done, {})
    lead = of(verdicts, "GGT leads Adam in test perplexity")
    assert (lead.holds, lead.n, lead.command) == (True, 3, "ggt league --task gpt-ptb --device cpu")
    assert "ahead at looks 1–3 (of 4)" in lead.ours
    assert lead.statement.startswith("in 1200 steps, tuned alike: ")
    assert of(verdicts, "Adam ends with a lower training perplexity").holds is True
    assert of(verdicts, "GGT ends with a lower test perplexity than AdamW").holds is False
    assert of(verdicts, "best learning rate").holds is True
    took = of(verdicts, "every entrant")
    assert took.holds is True
    assert "skipped steps: GGT 6" in took.ours
    field, done = play("gpt-ptb", {**falling, "ggt-200": [4.0, 2.0, 1.9, 1.8, 1.2]})
    assert of(judged(field, done, {}), "Adam ends with a lower test perplexity").holds is False


def test_runs_that_are_too_short_decide_nothing():
    falling = {name: [7.0, 6.0, 5.0] for name in NAMES}
    verdicts = judged(*play("r4", {**falling, "ggt-200": [7.0, 5.5, 4.9]}), {}, doubts=())
    short = of(verdicts, "(until epoch 10 to 30)")
    assert (short.holds, short.n) == (None, 3)
    assert "the runs end before epoch 30" in short.ours
    assert of(verdicts, "at most 1 apart").holds is False
    assert of(judged(*play("r4", falling), {}, doubts=()), "at most 1 apart").holds is True
    late = judged(*play("r4", {**falling, "ggt-200": [7.0, 6.5, 4.9]}), {}, doubts=())
    assert of(late, "(until epoch 10 to 30)").holds is False  # no lead at first
    doubtful = judged(*play("r4", falling), {}, doubts=[Doubt("r4", "R4", "adam", 1e-3, 0.9, "badly tuned")])
    apart = of(doubtful, "at most 1 apart")
    assert (apart.holds, apart.n, apart.ours.endswith("badly tuned")) == (None, 3, True)
    assert of(doubtful, "best learning rate").holds is True  # what the runs themselves show is not in doubt
    assert of(judged(*play("r4", falling), {}, doubts=DOUBTS), "at most 1 apart").holds is True  # another choice
    (field, done), (better, more) = play("r4", falling), play("r4-full", falling)
    assert judged(field, {**done, **more}, {}) == []  # the same claims, by trials of full length
    assert of(judged(better, {**done, **more}, {}), "at most 1 apart").holds is True


def test_what_was_not_run_and_what_diverged():
    some = {"ggt-200": [2.0, 1.0, 0.5], "adam": None, "sgd": [2.0, 1.0, 0.51]}
    field, done = play("a1", some)
    verdicts = judged(field, done, {})
    assert of(verdicts, "at least 0.1 lower than Adam").holds is True  # Adam diverged at every trial
    missing = of(verdicts, "lower than AdaGrad")
    assert (missing.n, missing.word_or_not_run) == (0, "not run")
    took = of(verdicts, "every entrant")
    assert took.holds is False
    assert "Adam all 8 trials diverged" in took.ours
    assert "AdaGrad: not run" in took.ours
    assert judged(field, {}, {}) == []
    partly = {key: record for key, record in done.items() if record["seed"] != 12}  # a fresh seed is missing
    assert of(judged(field, partly, {}), "higher than SGD").word_or_not_run == "not run"


def test_seconds_come_from_the_step_times_of_the_league():
    slow = {name: [4.0, 3.0, 2.0, 1.5] for name in NAMES}
    field, done = play("lstm-ptb", {**slow, "ggt-200": [4.0, 2.0, 1.5, 1.2]})
    words = "with batches of 128: in seconds"
    without = of(judged(field, done, {}), words)
    assert (without.n, without.holds) == (0, None)
    assert "ggt league --task lstm-ptb --times" in without.ours
    for cost, holds in ((1.0, True), (10.0, False)):
        times = {("lstm-ptb", name): 0.01 * (cost if name == "ggt-200" else 1.0) for name in NAMES}
        assert of(judged(field, done, times), words).holds is holds


def test_a_new_run_replaces_the_old_verdict(tmp_path):
    def record(day, *verdicts, **options):
        folder = tmp_path / f"{day}-x"
        folder.mkdir()
        write_verdicts(folder, experiment="x", title="t", verdicts=verdicts, figures=[], **options)

    command = "ggt reproduce R4"
    old = Verdict(
        "R4", "GGT and Adam end with a validation perplexity at most 1 apart", "p", "o", None, 3, True, command
    )
    other = Verdict("R4", "another statement", "p", "o", None, 3, True, command)
    new = judged(*play("r4", {name: [7.0, 6.0, 5.0] for name in ("ggt-200", "adam")}), {})
    record("2026-01-01", old, other)
    record("2026-02-01", *new, replaces=replaced_by(new))
    assert (old.claim, old.statement) in read_verdicts(tmp_path / "2026-02-01-x" / "verdicts.json").replaces
    rows = {row.statement: row.record for row in collect(tmp_path) if row.claim == "R4"}
    assert old.statement not in rows
    assert rows["another statement"] == "2026-01-01-x"  # and the record itself stays as it is
    assert rows[of(new, "at most 1 apart").statement] == "2026-02-01-x"
    (tmp_path / "2026-02-01-x" / "verdicts.json").write_text('{"verdicts": [], "replaces": [{"claim": 1}]}')
    with pytest.raises(ValueError, match="of a statement that it replaces"):
        collect(tmp_path)


def test_the_old_verdicts_of_long_runs_stay():
    verdicts = judged(*play("lstm-ptb", {each: [7.0, 6.0, 5.0] for each in NAMES}), {})
    assert replaced_by(verdicts) == []


def test_the_statements_that_are_replaced_exist():
    """If a kind of claim changes its words, old verdicts would stay beside new ones."""
    rows = json.loads((ROOT / "records" / "claims.json").read_text())["claims"]
    known = {(row["claim"], row["statement"]) for row in rows}
    for task in PAPER:
        times = {(task.name, entrant): 0.01 for entrant in NAMES}
        verdicts = judged(*play(task.name, {each: [7.0, 6.0, 5.0] for each in NAMES}), times)
        old = set(replaced_by([each for each in verdicts if "beyond the paper" not in each.statement]))
        anew = {(each.claim, each.statement) for each in verdicts}  # in the table, once the runs are made
        assert old <= known or anew & known
