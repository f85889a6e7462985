"""Claims about long runs: every verdict can go either way, and runs can be stopped and continued."""

import json
import math
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ggt_lab.experiments.catalogue import chosen_experiment, default_folder, experiment
from ggt_lab.experiments.claim import mean_curve
from ggt_lab.experiments.curve_claims import AlikeAlong, EarlyLead, FastestAfterDecays, LowestAlong
from ggt_lab.experiments.deep_race import DeepRace
from ggt_lab.experiments.end_claims import AtMost, Compared, GapAtEnd, LevelAtEnd
from ggt_lab.experiments.experiment import Settings, reproduce
from ggt_lab.experiments.wall_clock_claims import (
    FirstInSeconds,
    StepTimes,
    early_curve,
    new_minima,
    read_step_times,
    time_to,
)
from ggt_lab.runs.long_run import LongRun, class_with, numbers_of
from ggt_lab.runs.results import Results
from ggt_lab.runs.schedules import SCHEDULES


def runs_of(*seeds, status="done", key="loss"):
    return [
        {
            "status": status,
            "lr": 0.1,
            "curve": [{"epoch": e, "step": 100 * e, key: value} for e, value in enumerate(values)],
            "setup": {"batch": 4, "length": 5, "parameters": 77},
        }
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
    assert "lower than Adam at 2 of 2 epochs" in verdict.ours
    verdict = LowestAlong("X", "GGT", ("Adam", "SGD"), "loss", "paper", first=1).verdict(RUNS, "c")
    assert verdict.holds is False
    assert verdict.statement == "GGT has a lower loss than Adam and SGD from epoch 1 on"
    assert verdict.ours == "lower than Adam at 2 of 3 epochs (not at 1); than SGD at 2 of 3 epochs (not at 3)"


def test_gap_at_end():
    # GGT ends 0.4 below Adam and 0.05 above SGD, ± 0.2.
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.15, "p").verdict(RUNS, "c").holds is True
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.3, "p").verdict(RUNS, "c").holds is None
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.5, "p").verdict(RUNS, "c").holds is False
    assert GapAtEnd("X", "GGT", "SGD", "loss", -0.3, "p").verdict(RUNS, "c").holds is True
    assert GapAtEnd("X", "GGT", "SGD", "loss", -0.1, "p").verdict(RUNS, "c").holds is None
    assert GapAtEnd("X", "GGT", "SGD", "loss", 0.0, "p").verdict(RUNS, "c").holds is False


@pytest.mark.parametrize(
    ("other", "gap", "statement", "ours"),
    [
        ("Adam", 0.0, "GGT ends with a lower loss than Adam", "1.1 against 1.5: 0.4000 lower"),
        ("Adam", 0.15, "GGT ends with a loss at least 0.15 lower than Adam", "1.1 against 1.5: 0.4000 lower"),
        ("SGD", -0.3, "GGT ends with a loss at most 0.3 higher than SGD", "1.1 against 1.05: 0.0500 higher"),
    ],
)
def test_a_gap_in_words(other, gap, statement, ours):
    verdict = GapAtEnd("X", "GGT", other, "loss", gap, "p").verdict(RUNS, "c")
    assert (verdict.statement, verdict.ours) == (statement, ours)


def test_a_single_seed_proves_no_gap():
    single = {name: records[:1] for name, records in RUNS.items()}
    verdict = GapAtEnd("X", "GGT", "Adam", "loss", 0.15, "p").verdict(single, "c")
    assert (verdict.holds, verdict.spread) == (None, "± unknown (two standard errors)")
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.6, "p").verdict(single, "c").holds is False
    assert "Adam 1.5 (0.5000 ± unknown higher)" in Compared("X", "GGT", ("Adam",), "loss").verdict(single, "c").ours


def test_level_has_two_sides():
    # GGT ends 0.4 below Adam and 0.05 above SGD, ± 0.2.
    for who, other, within, holds in (
        ("GGT", "Adam", 0.7, True),
        ("GGT", "Adam", 0.5, None),
        ("GGT", "Adam", 0.3, None),
        ("GGT", "Adam", 0.1, False),
        ("Adam", "GGT", 0.1, False),
        ("Adam", "GGT", 0.7, True),
        ("GGT", "SGD", 0.3, True),
        ("GGT", "SGD", 0.1, None),
    ):
        assert LevelAtEnd("X", who, other, "loss", within, "p").verdict(RUNS, "c").holds is holds, (who, other, within)
    verdict = LevelAtEnd("X", "GGT", "Adam", "loss", 0.1, "p").verdict(RUNS, "c")
    assert verdict.statement == "GGT and Adam end with a loss at most 0.1 apart"
    assert verdict.ours == "1.1 against 1.5: 0.4000 lower"
    diverged = {**RUNS, "Adam": runs_of([9.0], status="diverged")}
    assert LevelAtEnd("X", "GGT", "Adam", "loss", 9.0, "p").verdict(diverged, "c").holds is False
    single = {name: records[:1] for name, records in RUNS.items()}
    assert LevelAtEnd("X", "GGT", "Adam", "loss", 0.1, "p").verdict(single, "c").holds is None
    assert LevelAtEnd("X", "GGT", "Lion", "loss", 0.1, "p").verdict(RUNS, "c").n == 0


def test_at_most():
    assert AtMost("X", "GGT", "loss", 1.1, "p").verdict(RUNS, "c").holds is True
    assert AtMost("X", "GGT", "loss", 1.0, "p").verdict(RUNS, "c").holds is False


def test_a_diverged_seed_is_never_left_out():
    diverged = {**RUNS, "GGT": [*RUNS["GGT"], *runs_of([9.0, 1.0], status="diverged")]}
    assert mean_curve(diverged["GGT"], "loss")[3] == math.inf
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.0, "p").verdict(diverged, "c").holds is False
    assert LowestAlong("X", "GGT", ("Adam",), "loss", "p", first=2).verdict(diverged, "c").holds is False
    early = {**RUNS, "GGT": runs_of([9.0, 1.0], [9.0, 1.0], status="diverged")}
    assert LowestAlong("X", "GGT", ("Adam",), "loss", "p").verdict(early, "c").holds is False
    assert EarlyLead("X", "GGT", "Adam", "loss", "p").verdict(early, "c").holds is True
    # Nor does the other's divergence raise.
    other = {**RUNS, "Adam": runs_of([9.0], status="diverged")}
    assert GapAtEnd("X", "GGT", "Adam", "loss", 0.0, "p").verdict(other, "c").holds is True


def test_who_was_not_run_is_named_and_leaves_claims_open():
    two = {name: RUNS[name] for name in ("GGT", "Adam")}
    verdict = LowestAlong("X", "GGT", ("Adam", "SGD"), "loss", "p", first=2).verdict(two, "c")
    assert (verdict.holds, verdict.n) == (None, 2)
    assert "SGD: not run" in verdict.ours
    # What is lost already is lost.
    assert LowestAlong("X", "GGT", ("Adam", "SGD"), "loss", "p", first=1).verdict(two, "c").holds is False
    for claim in (
        LowestAlong("X", "SGD", ("Adam",), "loss", "p"),
        GapAtEnd("X", "GGT", "SGD", "loss", 0.0, "p"),
        AtMost("X", "SGD", "loss", 1.0, "p"),
        Compared("X", "GGT", ("SGD",), "loss"),
        EarlyLead("X", "GGT", "SGD", "loss", "p"),
        AlikeAlong("X", ("GGT", "SGD"), "loss", 0.1, "p"),
        FastestAfterDecays("X", "GGT", ("SGD",), "loss", "p"),
        FirstInSeconds("X", "GGT", ("SGD",), "loss", "lstm", "p"),
    ):
        verdict = claim.verdict(two, "c")
        assert (verdict.holds, verdict.n, verdict.ours) == (None, 0, "not run: SGD")


def test_compared_beyond_the_paper():
    verdict = Compared("X", "GGT", ("Adam", "SGD"), "loss").verdict(RUNS, "c")
    assert verdict.holds is False
    assert "Adam 1.5 (0.4000 ± 0.2000 higher)" in verdict.ours
    assert "SGD 1.05 (0.0500 ± 0.2000 lower)" in verdict.ours
    assert Compared("X", "GGT", ("Adam",), "loss").verdict(RUNS, "c").holds is True
    assert Compared("X", "GGT", ("Adam", "SOAP"), "loss").verdict(RUNS, "c").holds is None
    close = {**RUNS, "Muon": runs_of([9.0, 2.0, 0.8], [9.0, 2.0, 1.5])}
    assert Compared("X", "GGT", ("Adam", "Muon"), "loss").verdict(close, "c").holds is None
    assert Compared("X", "GGT", ("Muon", "SGD"), "loss").verdict(close, "c").holds is False


def test_compared_with_who_diverged():
    gone = {**RUNS, "Adam": runs_of([9.0], status="diverged"), "SGD": runs_of([9.0], status="diverged")}
    verdict = Compared("X", "GGT", ("Adam",), "loss").verdict(gone, "c")
    assert verdict.holds is True
    assert "Adam diverged" in verdict.ours
    assert Compared("X", "SGD", ("Adam",), "loss").verdict(gone, "c").holds is False
    verdict = Compared("X", "SGD", ("GGT",), "loss").verdict(gone, "c")
    assert verdict.holds is False
    assert "GGT 1.1" in verdict.ours


# ---- the course of runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "until", "holds"),
    [
        ([9, 1, 1, 3, 3], None, True),
        ([9, 1, 1, 3, 3], (2, 3), True),
        ([9, 1, 1, 3, 3], (3, 4), False),  # the lead ends too soon
        ([9, 1, 1, 1, 1], None, False),  # it never ends
        ([9, 3, 1, 1, 3], None, False),  # it was none at first
        ([9, 1, 3, 1, 1], (1, 1), False),  # ahead again at the end
    ],
)
def test_early_lead(own, until, holds):
    runs = {"GGT": runs_of(own), "Adam": runs_of([9, 2, 2, 2, 2])}
    assert EarlyLead("X", "GGT", "Adam", "loss", "p", until).verdict(runs, "c").holds is holds


def test_alike_along():
    runs = {"A": runs_of([9, 9, 2.0, 1.0]), "B": runs_of([9, 1, 2.1, 1.05]), "C": runs_of([9, 9, 2.3, 1.0])}
    verdict = AlikeAlong("X", ("A", "B"), "loss", 0.06, "p").verdict(runs, "c")
    assert verdict.holds is True
    assert "at most 5%" in verdict.ours
    assert AlikeAlong("X", ("A", "B", "C"), "loss", 0.06, "p").verdict(runs, "c").holds is False
    diverged = {**runs, "B": runs_of([9.0], status="diverged")}
    assert AlikeAlong("X", ("A", "B"), "loss", 0.06, "p").verdict(diverged, "c").holds is False


def test_fastest_after_decays():
    """Sixteen epochs, decays after every second: each first epoch after one brings a factor, all others none."""

    def falling(factor, other=1.0):
        values = [1.0]
        for epoch in range(1, 17):
            values.append(values[-1] / (factor if epoch % 2 == 1 and epoch > 1 else other))
        return runs_of(values)

    runs = {"GGT": falling(1.5), "SGD": falling(1.2), "Adam": falling(1.0, other=2.0)}
    verdict = FastestAfterDecays("A1", "GGT", ("SGD", "Adam"), "loss", "p").verdict(runs, "c")
    assert verdict.holds is True
    assert "GGT is first at 7 of 7 decays; factors: GGT 1.50, 1.50" in verdict.ours
    assert FastestAfterDecays("A1", "SGD", ("GGT",), "loss", "p").verdict(runs, "c").holds is False
    diverged = {**runs, "SGD": runs_of([1.0, 1.0], status="diverged")}
    assert FastestAfterDecays("A1", "GGT", ("SGD",), "loss", "p").verdict(diverged, "c").holds is True
    short = {name: runs_of([3.0, 2.0, 1.0]) for name in ("GGT", "SGD")}
    assert FastestAfterDecays("A1", "GGT", ("SGD",), "loss", "p").verdict(short, "c").holds is None


@pytest.mark.parametrize("epochs", [40, 30, 17, 16])
def test_decays_are_those_of_the_schedule(epochs):
    """Before and after are whole epochs on either side of a change of the learning rate, with at most one between."""
    for before, after in FastestAfterDecays("X", "A", ("B",), "loss", "p")._around_decays(epochs):
        rates = [{SCHEDULES["halving"]((e - 1 + k / 100) / epochs) for k in range(100)} for e in (before, after)]
        assert all(len(rate) == 1 for rate in rates)
        assert rates[0].pop() == 2 * rates[1].pop()
    assert len(FastestAfterDecays("X", "A", ("B",), "loss", "p")._around_decays(epochs)) == 7


# ---- seconds ---------------------------------------------------------------------------------------------------------


def step_times(**ms):
    ratios = {{"GGT": "GGT r=200 bfloat16"}.get(name, name): value / 2 for name, value in ms.items()}
    return StepTimes({"lstm": {**timed(2.0, ratios), "batch": 4, "length": 5, "d": 77}})


def timed(sgd, ratios):
    """What the benchmark writes; baselines' own times are from later rounds, and not what counts."""
    medians = {"SGD": sgd, **dict.fromkeys(ratios, 9.9)}
    keys = ("median_ms", "mean_ms", "low_ms", "high_ms")
    times = {name: {**dict.fromkeys(keys, median), "calls": 10} for name, median in medians.items()}
    return {"times": times, "over_SGD": ratios}


FALLING = {"GGT": runs_of([9.0, 3.0, 2.0, 1.0]), "Adam": runs_of([9.0, 5.0, 4.0, 3.0])}


@pytest.mark.parametrize(("ms", "holds"), [(1.9, False), (1.4, True), (3.1, False)])
def test_first_in_seconds(ms, holds):
    """Adam is at 5, 4 and 3 after 0.1, 0.2 and 0.3 s; GGT, on its first straight line, after 4/6, 5/6 and 1 epoch."""
    claim = FirstInSeconds("R3", "GGT", ("Adam",), "loss", "lstm", "p", times=step_times(GGT=ms, Adam=1.0))
    verdict = claim.verdict(FALLING, "c")
    ratios = [seconds / (ms * 0.1 * part) for seconds, part in ((0.1, 4 / 6), (0.2, 5 / 6), (0.3, 1.0))]
    assert verdict.holds is holds
    assert f"first to {sum(r > 1 for r in ratios)} of 3 levels, {ratios[1]:.2f} times as fast (median)" in verdict.ours
    assert f"{min(ratios):.2f} at worst" in verdict.ours
    assert replace(claim, wins=False).verdict(FALLING, "c").holds is not holds


def test_levels_that_are_never_reached_are_lost():
    runs = {"GGT": FALLING["Adam"], "Adam": FALLING["GGT"]}
    claim = FirstInSeconds("R3", "GGT", ("Adam",), "loss", "lstm", "p", times=step_times(GGT=0.1, Adam=1.0))
    assert "first to 1 of 3 levels" in claim.verdict(runs, "c").ours
    diverged = {**FALLING, "Adam": runs_of([9.0], status="diverged")}
    words = "Adam (1.00 ms a step): no levels, because the mean over its seeds is never below its start"
    assert words in claim.verdict(diverged, "c").ours
    assert claim.verdict(diverged, "c").holds is None


def test_looks_inside_of_the_first_epoch():
    """They say when GGT was there; what others reached in between is counted, and decides nothing."""

    def with_early(records, *values):
        return [{**r, "early": [{"step": 10 * (i + 1), "loss": v} for i, v in enumerate(values)]} for r in records]

    claim = FirstInSeconds("R3", "GGT", ("Adam",), "loss", "lstm", "p", times=step_times(GGT=1.6, Adam=1.0))
    assert claim.verdict(FALLING, "c").holds is False  # on its straight line GGT is at 5 after 0.107 s, Adam after 0.1
    # The blow-up of its first steps is over at step 60, where it is below 5.
    own = with_early(FALLING["GGT"], 20.0, 12.0, 9.0, 7.0, 6.0, 4.0)
    verdict = claim.verdict({"GGT": own, "Adam": with_early(FALLING["Adam"], 8.0, 8.5, 7.5)}, "c")
    assert verdict.holds is True
    assert "first to 3 of 3 levels" in verdict.ours
    assert "(inside the first epoch: first to 0 of 2)" in verdict.ours
    # Means are over what all seeds have.
    two = own + with_early(FALLING["GGT"], 20.0, 12.0)
    assert early_curve(two, "loss") == {10: 20.0, 20: 12.0}
    assert early_curve(FALLING["GGT"], "loss") == {}


def test_first_in_seconds_against_some():
    """Who was not run is named; what is lost already is lost, what is won is not decided."""
    others = ("Adam", "SGD")
    won, lost = (
        FirstInSeconds("R3", "GGT", others, "loss", "lstm", "p", times=step_times(GGT=ms, Adam=1.0)).verdict(
            FALLING, "c"
        )
        for ms in (1.4, 1.9)
    )
    assert (won.holds, lost.holds) == (None, False)
    assert "Against SGD: not run; Adam (1.00 ms a step): first to 3 of 3 levels" in won.ours


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (None, "no step times; measure them alone on the GPU"),
        (step_times(GGT=1.0), "no time of a step of lstm with Adam"),
        (StepTimes({}), "no time of a step of lstm with GGT, Adam"),
        (
            StepTimes({"lstm": {**step_times(GGT=1, Adam=1).results["lstm"], "batch": 128}}),
            "batch 4 in the runs, 128 where steps were timed",
        ),
    ],
)
def test_step_times_that_do_not_serve(times, words):
    verdict = FirstInSeconds("R3", "GGT", ("Adam",), "loss", "lstm", "p", times=times).verdict(FALLING, "c")
    assert (verdict.holds, verdict.n) == (None, 0)
    assert words in verdict.ours


def test_minima_and_times():
    assert new_minima([(0.0, 5.0), (1.0, 6.0), (2.0, 4.0), (3.0, math.inf)]) == [(2.0, 4.0)]
    assert time_to([(1.0, 3.0), (2.0, 2.0)], 3.5) == 1.0
    assert time_to([(0.0, math.inf), (2.0, 2.0)], 3.0) == 2.0


def bench_folder(folder, sgd, **ratios):
    case = {
        "case": "training_lstm-512-bf16_eager",
        "kind": "training",
        "status": "done",
        "options": {},
        "device": "cuda",
    }
    result = {"model": "lstm-512-bf16", "mode": "eager", **timed(sgd, ratios)}
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps({**case, "device": "cuda", "result": result}))
    return folder


def test_step_times_of_a_folder(tmp_path):
    folder = bench_folder(tmp_path / "speed", 8.0, **{"GGT r=200 bfloat16": 1.25, "Adam": 1.5, "GGT r=20 float32": 0.5})
    expected = {"SGD": 8.0, "GGT": 10.0, "Adam": 12.0, "GGT r=20 float32": 4.0}
    assert read_step_times(folder).milliseconds("lstm-512-bf16") == expected
    assert read_step_times(folder).milliseconds("another") == {}
    for wrong in (tmp_path / "none", tmp_path):
        (folder / "training.json").unlink(missing_ok=True)
        with pytest.raises(ValueError, match="holds no times of training steps; measure them: ggt bench"):
            read_step_times(wrong)


# ---- choices ---------------------------------------------------------------------------------------------------------


def test_entrants_in_pieces(tmp_path):
    """Two now, the rest later; then everything is judged, and nothing was run twice."""
    smoke = Settings(1, smoke=True)
    speed = bench_folder(tmp_path / "speed", 7.0, **{"GGT r=200 bfloat16": 1.1})
    chosen = chosen_experiment("R1", entrants=["GGT", "SGD"], step_times=speed)
    some = reproduce(chosen, tmp_path / "R1", smoke, command="c")
    by_statement = {verdict.statement: verdict for verdict in some.verdicts}
    attendance = by_statement["every entrant was run, and no seed diverged"]
    assert "took part: GGT, SGD; Adam: not run; AdaGrad: not run" in attendance.ours
    assert by_statement["GGT ends with a validation perplexity at least 0.07 lower than Adam"].n == 0
    assert [figure.path.name for figure in some.figures] == ["epochs.png", "seconds.png"]
    before = (tmp_path / "R1/results.jsonl").read_text()
    every = reproduce(chosen_experiment("R1", entrants=["Adam", "SGD", "GGT"]), tmp_path / "R1", smoke, command="c")
    after = (tmp_path / "R1/results.jsonl").read_text()
    assert after.startswith(before)
    (later,) = [v for v in every.verdicts if v.statement.endswith("from epoch 2 on") and "validation" in v.statement]
    assert "Adam at 1 of 1" in later.ours or "Adam at 0 of 1" in later.ours


def test_a_matrix_for_each_parameter(tmp_path):
    """Two GGTs in one experiment stay two entrants, also with tiny windows."""
    chosen = chosen_experiment("R1", entrants=["GGT", "GGT by parameter"])
    outcome = reproduce(chosen, tmp_path, Settings(1, smoke=True), command="c")
    assert "took part: GGT, GGT by parameter; Adam: not run" in outcome.verdicts[-1].ours
    specs = {record["optimizer"] for record in Results(tmp_path / "results.jsonl")}
    one = "PaperGGT(window=5, adjust_lr_fn='original')"
    assert specs == {one, "PaperGGT(window=5, adjust_lr_fn='original', scope='parameter')"}


def test_an_optimizer_that_is_not_installed(tmp_path, monkeypatch):
    """The verdict names it. Its runs are not tried, and runs that were finished on another machine are shown."""
    base = experiment("R1")
    chosen = DeepRace("R1", "t", "ptb-chars", {"SGD": base._entrants["SGD"], "Far": ("far_away.Opt", (0.1, 0.2))},
        tuning_epochs=1, epochs=2, keys=("train_perplexity",))  # fmt: skip
    smoke = Settings(1, smoke=True)
    outcome = reproduce(chosen, tmp_path, smoke, command="c")
    assert "took part: SGD; Far: not installed (far_away)" in outcome.verdicts[-1].ours
    results = Results(tmp_path / "results.jsonl")
    for record in list(results):
        run = replace(LongRun(**{name: record[name] for name in FIELDS}, device="cpu"), optimizer="far_away.Opt")
        for lr in (0.1, 0.2) if run.epochs == 1 else (0.1,):
            other = replace(run, lr=lr)
            if other.key not in results.finished():
                results.append({**record, "optimizer": "far_away.Opt", "lr": lr, "key": other.key})
    outcome = reproduce(chosen, tmp_path, smoke, command="c")
    assert "took part: SGD, Far" in outcome.verdicts[-1].ours


FIELDS = ("problem", "optimizer", "lr", "seed", "epochs", "schedule")


def test_variants_have_the_tuned_rate():
    chosen = experiment("C1").with_entrants(["SGD", "SGD fixed", "SGD low"])
    settings = Settings(2, device="cpu")
    tasks = chosen.first(settings)
    assert {task.optimizer for task in tasks} == {"SGD(momentum=0.9)"}

    def record(task, loss):
        curve = [{"epoch": task.epochs, "step": 1, "seconds": 1.0, "test_loss": loss, "test_error": loss}]
        return {**task.__dict__, "status": "done", "metric": "test_loss", "curve": curve}

    tuned = [record(task, 1.0 if task.lr == 0.1 else 2.0) for task in tasks]
    full = chosen.more(settings, tasks, tuned)
    assert {(run.lr, run.schedule, run.epochs) for run in full} == {
        (0.1, "cosine", 30),
        (0.1, "constant", 30),
        (0.01, "cosine", 30),
    }
    assert len(full) == 6
    runs = chosen.full_runs([*tuned, *(record(run, run.lr) for run in full)])
    assert {name: len(found) for name, found in runs.items()} == {"SGD": 2, "SGD fixed": 2, "SGD low": 2}
    assert {record["lr"] for record in runs["SGD low"]} == {0.01}
    # A variant alone: its entrant is tuned, and not run.
    alone = experiment("C1").with_entrants(["SGD low"])
    assert [run.lr for run in alone.more(settings, tasks, tuned)] == [0.01, 0.01]


def test_grids_are_widened_until_the_best_is_inside():
    chosen = experiment("R1").with_entrants(["Muon"])
    tasks = chosen.first(Settings(1, device="cpu"))
    curve = [{"epoch": 4, "step": 1, "seconds": 1.0, "loss": 1.0}]
    records = [
        {**t.__dict__, "status": "done", "metric": "loss", "curve": [{**curve[0], "loss": -t.lr}]} for t in tasks
    ]
    (wider,) = chosen.more(Settings(1, device="cpu"), tasks, records)
    assert wider.lr > max(task.lr for task in tasks)
    assert wider.epochs == tasks[0].epochs


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("R1", {"entrants": ["Adan"]}, "did you mean Adam"),
        ("E1", {"entrants": ["GGT"]}, "unknown entrant 'GGT'"),
        ("S1", {"entrants": ["SGD"]}, "for deep experiments: R1, R2, R3, C1"),
        ("E1", {"epochs": 9}, "neither --epochs nor --set nor --step-times"),
        ("S1", {"changes": ["batch=2"]}, "for deep experiments"),
        ("R1", {"changes": ["colour=2"]}, "has no setting colour; it has autocast, batch, "),
        ("R1", {"changes": ["_losses=2"]}, "has no setting _losses"),
        ("R1", {"changes": ["batch=2.5"]}, "batch of ptb-chars is 896; 2.5 is of another kind"),
        ("R1", {"changes": ["batch"]}, "--set takes name=value"),
        ("R1", {"changes": ["batch=print()"]}, "--set takes name=value"),
        ("R1", {"changes": ["epochs=9"]}, "is --epochs"),
        ("R1", {"epochs": 4}, "tunes over 10 epochs; full runs need more, got 4"),
    ],
)
def test_choices_that_are_none(name, options, words):
    with pytest.raises(ValueError, match=words):
        chosen_experiment(name, **options)


def test_runs_with_other_settings_are_not_taken_for_these(tmp_path):
    settings = Settings(1, device="cpu", folder=tmp_path)
    chosen = experiment("R1").with_entrants(["SGD"])
    old = Path(__file__).parents[2] / "records/2026-11-16-ptb-chars-batch-512/results.jsonl"
    shutil.copy(old, tmp_path / "results.jsonl")
    with pytest.raises(ValueError, match=r"other settings \(batch 512 there, .*another folder \(--out\)"):
        chosen.first(settings)
    assert experiment("C1").first(settings)  # of another problem


def test_runs_of_other_choices_are_not_taken_for_these(tmp_path):
    settings = Settings(1, device="cpu", folder=tmp_path)
    changed = chosen_experiment("R2", entrants=["SGD"], changes=["weight_drop=0", "l2=1e-6"])
    (task, *_) = changed.first(settings)
    assert dict(task.settings) == {"batch": 256, "weight_drop": 0, "l2": 1e-6}
    setup = numbers_of(class_with(task.problem, task.settings))
    record = {"key": task.key, **asdict(task), "status": "done", "setup": setup, "metric": "loss"}
    record["curve"] = [{"step": 1, "seconds": 1.0, "loss": 1.0}]
    Results(tmp_path / "results.jsonl").append(record)
    assert changed.first(settings)
    with pytest.raises(ValueError, match=r"weight_drop 0, l2 1e-06 there, batch 256 asked for\); give another folder"):
        experiment("R2").first(settings)
    with pytest.raises(ValueError, match="the problem's own asked for"):
        experiment("R1").first(settings)


def test_longer_runs():
    chosen = chosen_experiment("R1", entrants=["GGT"], epochs=200)
    tasks = chosen.first(Settings(1, device="cpu"))
    assert {task.epochs for task in tasks} == {10}
    assert chosen._lengths(Settings(1)) == (10, 200)
    assert experiment("R1")._lengths(Settings(1)) == (10, 50)


def test_verdicts_of_other_choices_are_other_statements():
    def statements(**choices):
        settings = Settings(1, device="cpu", folder=Path("nowhere"))
        chosen = chosen_experiment("R2", entrants=["SGD"], **choices)
        tasks = [
            *chosen.first(settings),
            chosen._run(settings, "SGD(momentum=0.9)", 1.0, 0, epochs=60, schedule="cosine"),
        ]
        curve = [{"epoch": 1, "step": 9, "seconds": 1.0, "validation_perplexity": 2.4, "train_perplexity": 2.5}]
        made = {"metric": "validation_perplexity", "status": "done", "curve": curve}
        records = [{**asdict(task), **made} for task in tasks]
        return {verdict.statement for verdict in chosen.verdicts(records, "")}

    own, longer = statements(), statements(epochs=60, changes=["weight_drop=0.4"])
    assert {words.removeprefix("with 60 epochs, weight_drop 0.4: ") for words in longer} == own
    assert not longer & own
    assert statements(epochs=50, changes=["batch=256"]) == own  # as they are anyway
    assert statements(changes=["captured=True"]) == own  # equal results in less time


def test_newer_optimizers_decide_no_claim_of_the_paper():
    for name in ("R1", "C1"):
        for claim in experiment(name)._claims:
            if not isinstance(claim, Compared):
                named = {getattr(claim, "who", ""), getattr(claim, "other", ""), *getattr(claim, "others", ())}
                assert not named & {"AdamW", "Muon", "SOAP"}


def testnumbers_of_that_begin_later():
    late = [{"status": "done", "curve": [{"epoch": 0}, {"epoch": 1, "loss": 2.0}]}]
    assert mean_curve(late, "loss") == {1: 2.0}


def test_time_is_up_and_the_same_call_goes_on(tmp_path):
    chosen = experiment("R1").with_entrants(["GGT", "SGD"])
    none = reproduce(chosen, tmp_path, Settings(1, smoke=True, deadline=time.monotonic()), command="ggt")
    assert none.left > 0
    assert not none.verdicts
    assert not (tmp_path / "verdicts.json").exists()
    rest = reproduce(chosen, tmp_path, Settings(1, smoke=True), command="ggt")
    assert rest.left == 0
    assert {verdict.claim for verdict in rest.verdicts} == {"R1", "R3"}
    assert not (tmp_path / "kept").exists()


def test_a_smoke_test_has_a_folder_of_its_own():
    assert default_folder("R1", smoke=True) != default_folder("R1", smoke=False)
