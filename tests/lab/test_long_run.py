"""Long runs: interrupted ones end where uninterrupted ones do."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from ggt_lab.problems import problem_class
from ggt_lab.runs import long_run
from ggt_lab.runs.long_run import LongRun, advance, changed_since, run_until
from ggt_lab.runs.process_pool import processes
from ggt_lab.runs.results import Results
from ggt_lab.runs.schedules import SCHEDULES
from ggt_lab.spectra.eigenvalue_log import EigenvalueLog, condition_numbers, read_spectra
from torch_ggt import SpectrumRecorder


def without_seconds(record):
    return {**record, "curve": [{k: v for k, v in p.items() if k != "seconds"} for p in record["curve"]]}


@pytest.mark.parametrize("optimizer", ["GGT(window=3)", "Adam", "SGD(momentum=0.9)", "MuonAndAdamW"])
def test_interrupted_is_uninterrupted(tmp_path, monkeypatch, optimizer):
    run = LongRun("ptb-chars-tiny", optimizer, 0.01, seed=1, epochs=2, device="cpu")
    whole = advance(run, tmp_path)
    assert whole["status"] == "done"
    assert [point["epoch"] for point in whole["curve"]] == [0, 1, 2]
    clock = iter(range(10**9))
    monkeypatch.setattr(long_run.time, "monotonic", lambda: next(clock))
    pieces = 0
    while (record := advance(run, tmp_path, deadline=next(clock) + 8)) is None:
        pieces += 1
        assert [path.suffix for path in tmp_path.iterdir()] == [".pt"]
    assert pieces > 2
    assert without_seconds(record) == without_seconds(whole)
    assert not list(tmp_path.iterdir())


def test_early_looks_change_nothing(tmp_path, monkeypatch):
    """They are at steps of the first epoch, see what an evaluation there sees, and survive an interruption."""
    plain = LongRun("ptb-chars-tiny", "Adam", 0.01, seed=1, epochs=2, device="cpu")
    looking = replace(plain, early_looks=3)
    whole = advance(looking, tmp_path)
    early = whole.pop("early")
    steps = problem_class("ptb-chars-tiny")(1, torch.device("cpu")).steps_per_epoch
    assert [point["step"] for point in early] == [round(steps * part / 4) for part in (1, 2, 3)]
    assert without_seconds(whole) == {**without_seconds(advance(plain, tmp_path)), "early_looks": 3}
    assert looking.key != plain.key

    problem = problem_class("ptb-chars-tiny")(1, torch.device("cpu"))
    optimizer = torch.optim.Adam(problem.parameters())
    for step in range(early[-1]["step"]):
        optimizer.param_groups[0]["lr"] = 0.01 * SCHEDULES["cosine"](step / (2 * steps))
        problem.take_gradients()
        optimizer.step()
    assert problem.evaluate()["validation_loss"] == early[-1]["validation_loss"]

    clock = iter(range(10**9))
    monkeypatch.setattr(long_run.time, "monotonic", lambda: next(clock))
    while (record := advance(looking, tmp_path, deadline=next(clock) + 8)) is None:
        pass
    assert record["early"] == early


def test_many_until_time_is_up(tmp_path):
    runs = [LongRun("ptb-chars-tiny", "Adam", lr, seed=0, epochs=1, device="cpu") for lr in (0.01, 0.1)]
    results = Results(tmp_path / "r.jsonl")
    assert run_until(runs, results, tmp_path / "kept", seconds=0) == 2
    assert run_until(runs, results, tmp_path / "kept", workers=2) == 0
    assert {record["lr"] for record in results} == {0.01, 0.1}
    before = results.path.read_bytes()
    assert run_until(runs, results, tmp_path / "kept") == 0
    assert results.path.read_bytes() == before


def test_what_is_not_begun_when_time_is_up_costs_nothing(tmp_path):
    run = LongRun("no such problem", "Adam", 0.1, seed=0, epochs=1, device="cpu")
    assert advance(run, tmp_path, deadline=0.0) is None
    assert not list(tmp_path.iterdir())


def test_processes_have_one_thread_each():
    with processes(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1


def test_a_diverged_run_is_recorded_as_diverged(tmp_path):
    record = advance(LongRun("ptb-chars-tiny", "SGD", 1e30, seed=0, epochs=1, device="cpu"), tmp_path)
    assert record["status"] == "diverged"
    json.dumps(record, allow_nan=False)


def test_skipped_steps_are_recorded(tmp_path, monkeypatch):
    """GGT leaves out steps with gradients that are not finite; in how many, the record says."""
    run = LongRun("ptb-chars-tiny", "GGT(window=3)", 0.01, seed=0, epochs=1, device="cpu")
    assert advance(run, tmp_path)["skipped"] == 0
    cls = problem_class("ptb-chars-tiny")
    take = cls.take_gradients

    def overflow(problem):
        take(problem)
        if problem.step in (2, 5):
            next(iter(problem.parameters())).grad.view(-1)[0] = torch.inf

    monkeypatch.setattr(cls, "take_gradients", overflow)
    with pytest.warns(UserWarning, match="skipped a step"):
        record = advance(run, tmp_path)
    assert (record["status"], record["skipped"]) == ("done", 2)
    other = advance(replace(run, optimizer="Adam"), tmp_path)
    assert other["status"] == "diverged"
    assert "skipped" not in other


def test_schedules():
    assert [SCHEDULES["cosine"](x) for x in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.5, 0])
    assert [SCHEDULES["halving"](x) for x in (0.0, 0.12, 0.13, 0.99)] == [1, 1, 0.5, 2.0**-7]
    assert SCHEDULES["constant"](0.7) == 1


def test_settings_change_the_problem(tmp_path):
    base = LongRun("ptb-chars-tiny", "Adam", 0.01, seed=0, epochs=1, device="cpu")
    changed = LongRun("ptb-chars-tiny", "Adam", 0.01, seed=0, epochs=1, device="cpu", settings=(("length", 5),))
    assert advance(changed, tmp_path)["curve"][-1]["step"] > advance(base, tmp_path)["curve"][-1]["step"]
    with pytest.raises(ValueError, match="no setting colour"):
        advance(LongRun("ptb-chars-tiny", "Adam", 0.01, 0, 1, device="cpu", settings=(("colour", 1),)), tmp_path)
    with pytest.raises(ValueError, match="has no epochs"):
        advance(LongRun("logistic", "Adam", 0.01, 0, 1, device="cpu"), tmp_path)


# ---- spectra ---------------------------------------------------------------------------------------------------------

WITH_SPECTRA = LongRun("ptb-chars-tiny", "PaperGGT(window=4)", 0.01, seed=1, epochs=2, device="cpu", spectrum_every=3)


def test_spectra_of_an_interrupted_run(tmp_path, monkeypatch):
    """They equal the spectra of the uninterrupted run, and the spectra that a recorder of the library sees."""
    whole = advance(WITH_SPECTRA, tmp_path / "kept", spectra=tmp_path / "whole")
    (tmp_path / "kept").mkdir()
    clock = iter(range(10**9))
    monkeypatch.setattr(long_run.time, "monotonic", lambda: next(clock))
    record = None
    while record is None:
        record = advance(WITH_SPECTRA, tmp_path / "kept", deadline=next(clock) + 8, spectra=tmp_path / "s")
    assert record["spectrum"] == {**whole["spectrum"], "file": f"s/{WITH_SPECTRA.digest}.npz"}
    one, other = (read_spectra(tmp_path / folder / f"{WITH_SPECTRA.digest}.npz") for folder in ("whole", "s"))
    assert one == other
    steps = record["curve"][-1]["step"]
    assert one["steps"] == list(range(3, steps + 1, 3))

    problem = long_run.class_with(WITH_SPECTRA.problem, WITH_SPECTRA.settings)(WITH_SPECTRA.seed, torch.device("cpu"))
    optimizer = GGT(problem.parameters(), lr=0.01, window=4)
    with SpectrumRecorder(optimizer, every=3) as recorder:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 0.01 * SCHEDULES["cosine"](step / steps)
            optimizer.zero_grad()
            problem.loss().backward()
            optimizer.step()
            if problem.step % problem.steps_per_epoch == 0:
                problem.evaluate()
    for mine, theirs in zip(one["singular_values"], recorder.records, strict=True):
        np.testing.assert_allclose(mine, theirs.singular_values, rtol=1e-5)  # as many while the window fills


def test_what_the_record_says_of_spectra(tmp_path):
    record = advance(WITH_SPECTRA, tmp_path, spectra=tmp_path / "s")
    json.dumps(record, allow_nan=False)
    said, read = record["spectrum"], read_spectra(tmp_path / "s" / f"{WITH_SPECTRA.digest}.npz")
    largest, smallest = (np.array([pick(v) for v in read["singular_values"]]) for pick in (max, min))
    full = np.array(said["steps"]) >= 4
    np.testing.assert_allclose(np.array(said["conditions"])[full], (largest[full] / smallest[full]) ** 2, rtol=1e-3)
    # Four rows of momentum 0.9 without structure: the Toeplitz matrix 0.9^|i - j|.
    lag = abs(np.subtract.outer(np.arange(4), np.arange(4)))
    assert said["isotropic"] == pytest.approx(np.linalg.cond(0.9**lag), rel=1e-3)
    assert (tmp_path / "s" / f"{WITH_SPECTRA.digest}.npz").stat().st_size < 20_000


def test_runs_recorded_before_keep_their_keys():
    file = Path(__file__).parents[2] / "records/2026-11-16-ptb-chars-first/results.jsonl"
    for record in Results(file):
        run = LongRun(
            *(record[name] for name in ("problem", "optimizer", "lr", "seed", "epochs", "schedule", "device")),
            settings=tuple(map(tuple, record["settings"])),
        )
        assert run.key == record["key"]
    assert WITH_SPECTRA.key != LongRun("ptb-chars-tiny", "PaperGGT(window=4)", 0.01, 1, 2, device="cpu").key


def test_a_record_knows_whether_its_problem_has_changed(tmp_path, monkeypatch):
    run = LongRun("ptb-chars-tiny", "SGD", 0.1, 0, 1, device="cpu", settings=(("length", 5),))
    record = json.loads(json.dumps(advance(run, tmp_path)))
    assert changed_since(record) == []
    cls = problem_class("ptb-chars-tiny")
    for name in ("captured", "compiled"):  # other ways to the same result
        monkeypatch.setattr(cls, name, True)
    monkeypatch.setattr(cls, "length", 7)  # the run has its own
    assert changed_since(record) == []
    monkeypatch.setattr(cls, "batch", 4)
    for name in ("gradient_scale", "weight_drop"):
        del record["setup"][name]  # as if it were older than that
    assert changed_since(record) == [
        "batch 8 there, 4 now",
        f"gradient_scale 1.0 there, {cls.gradient_scale} now",
        f"weight_drop 0 there, {cls.weight_drop} now",
    ]


def test_spectra_of_what_has_none(tmp_path):
    with pytest.raises(ValueError, match=r"reads the window of a GGT.*the optimizer is Adam"):
        advance(LongRun("ptb-chars-tiny", "Adam", 0.1, 0, 1, device="cpu", spectrum_every=1), tmp_path)
    with pytest.raises(ValueError, match="reads the window of a GGT"):
        EigenvalueLog(GGT([torch.nn.Parameter(torch.ones(2))], scope="parameter"), 1)
    with pytest.raises(ValueError, match="got -1"):
        EigenvalueLog(GGT([torch.nn.Parameter(torch.ones(2))]), -1)
    (tmp_path / "x.npz").write_bytes(b"PK half")
    with pytest.raises(ValueError, match="holds no spectra"):
        read_spectra(tmp_path / "x.npz")


def test_condition_numbers_leave_rounding_out():
    spectra = [np.array([100.0, 1.0, 1e-9]), np.array([5.0]), np.zeros(3)]
    assert condition_numbers(spectra, 1e-6) == [100.0, 1.0, 1.0]
