"""The benchmarks of rows of few bytes: a billion parameters, and the league's deep tasks; both at tiny sizes."""

import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ggt_lab.league.protocol import PROTOCOL
from ggt_lab.runs.results import Results

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    def loaded(name):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


def test_a_billion_parameters(load, tmp_path, capsys, monkeypatch):
    """Members train the same batches, one that fails does not lose the others, and the size is what it says."""
    script = load("one_billion")
    monkeypatch.setitem(script.MEMBERS, "whiten(AdamW)", lambda *_: 1 / 0)
    monkeypatch.setenv("GGT_CACHE", str(tmp_path / "cache"))  # a cache of this machine may hold PTB
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text").write_bytes(bytes(range(97, 123)) * 40)
    command = ["--tiny", "--device", "cpu", "--steps", "6", "--batch", "4", "--lr", "0.01"]
    script.main([*command, "--data", str(tmp_path / "data"), "--out", str(tmp_path)])
    written = json.loads((tmp_path / "one_billion.json").read_text())
    assert written["tokens"] == "bytes of the given files"
    ggt, failed, adamw = written["results"]
    assert ggt["losses"][0] == adamw["losses"][0]
    assert ggt["steps"] == adamw["steps"] == 6
    assert ggt["losses"][-1] < ggt["losses"][0]
    assert failed["error"].startswith("ZeroDivisionError")
    assert ggt["predicted"]["state"] == pytest.approx((16 * 1.0625 + 4 + 8) * ggt["parameters"], rel=0.03)
    assert "failed: ZeroDivisionError" in capsys.readouterr().out
    with torch.device("meta"):
        model = script.CharTransformer(50, **script.SIZES)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(1e9, rel=0.01)


def test_no_step_begins_after_the_time(load, tmp_path):
    script = load("one_billion")
    found = script.main(["--tiny", "--device", "cpu", "--seconds", "0", "--out", str(tmp_path)])
    assert [each["steps"] for each in found] == [0, 0, 0]


def league_trial(task, entrant, power, loss):
    """The key and record of a finished trial of the league."""
    from ggt_lab.league.protocol import trials_of

    (run,) = [trial for trial in trials_of(PROTOCOL, task, entrant, {}, "cuda") if trial.power == power]
    return {"key": run.key, "task": task.name, "status": "done", "points": [{"step": 1, task.tuned_by: loss}]}


def test_formats_on_deep_tasks(load, tmp_path, capsys):
    """Settings come from the league's best trial; runs are resumed; ratios are paired by seeds."""
    script = load("row_formats_deep")
    task, entrant = PROTOCOL.task("gpt-ptb"), PROTOCOL.entrant("ggt")
    league = Results(tmp_path / "league" / "results.jsonl")
    for power, loss in ((entrant.power - 1, 2.0), (entrant.power, 3.0), (entrant.power + 1, 2.5)):
        league.append(league_trial(task, entrant, power, loss))
    options = [str(tmp_path / "out"), "--settings", str(tmp_path / "league"), "--tasks", "gpt-ptb", "--device", "cuda"]
    seen = []

    def executed(run):
        seen.append(run)
        loss = {"float32:20": 2.0, "int8:7": 2.2}[run.entrant.name.split()[1]] * (1 + run.seed / 100)
        points = [{"step": run.steps, "test_loss": loss}]
        return {"task": "gpt-ptb", "entrant": run.entrant.name, "seed": run.seed, "steps": run.steps, "cost_s": 1.0,
                "status": "done", "points": points}  # fmt: skip

    class InThisProcess:
        def submit(self, function, task):
            from concurrent.futures import Future

            future = Future()
            future.set_result(function(task))
            return future

    import contextlib

    script.processes = lambda jobs: contextlib.nullcontext(InThisProcess())
    script.execute = executed
    more = ["--entrants", "ggt", "soap", "--formats", "float32:20", "int8:7"]
    with pytest.raises(ValueError, match="soap has no window"):
        script.main([*options, *more, "--like", "soap=ggt"])
    script.main([*options, *more[:2], *more[3:]])
    assert [(run.seed, run.power) for run in seen[:2]] == [(30, entrant.power - 1)] * 2
    assert "window=7, window_dtype='int8'" in seen[1].entrant.spec
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "| int8:7 | 7.4 | " in text
    assert "| 1.1000 ± 0.0000 (3) |" in text
    script.main([*options, *more[:2], *more[3:]])
    assert len(seen) == 6, "finished runs are not made again"
    script.main([str(tmp_path / "none"), "--tasks", "resnet", "--settings", str(tmp_path / "league")])
    assert "no settings for whiten-muon on resnet" in capsys.readouterr().out


def test_a_run_that_fails_or_comes_late_does_not_end_the_others(load, monkeypatch, capsys):
    script = load("row_formats_deep")
    monkeypatch.setattr(script, "execute", lambda run: 1 / 0)
    assert script.one("a run", until=math.inf) is None
    assert "failed: a run: ZeroDivisionError" in capsys.readouterr().out
    assert script.one("a run", until=0.0) is None
    assert capsys.readouterr().out == ""


def test_settings_by_hand(load, tmp_path):
    script = load("row_formats_deep")
    made = script.with_window(PROTOCOL.entrant("ggt"), "int4:13")
    assert made.spec == "GGT(window=13, window_dtype='int4', betas=({momentum}, 1.0), weight_decay={weight_decay})"
    narrow = replace(PROTOCOL.entrant("ggt"), spec="GGT(window=50, window_dtype='bfloat16', eps=1e-8)")
    assert script.with_window(narrow, "int8:7").spec == "GGT(window=7, window_dtype='int8', eps=1e-8)"
    assert script.bytes_of("int4:13") == pytest.approx(7.3125)
    assert script.ratio_in_words({1: 2.0, 2: math.inf}, {1: 1.0, 2: 1.0}) == "diverged"
    assert script.ratio_in_words({1: 2.0}, {1: 1.0, 2: 1.0}) == "2.0000 (1)"
