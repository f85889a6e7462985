"""Long runs: interrupted ones end where uninterrupted ones do."""

import json
import subprocess
import sys

import pytest

from ggt_lab import longrun
from ggt_lab.longrun import SCHEDULES, LongRun, advance, run_until
from ggt_lab.results import Results


def without_seconds(record):
    return {**record, "curve": [{k: v for k, v in p.items() if k != "seconds"} for p in record["curve"]]}


@pytest.mark.parametrize("optimizer", ["GGT(window=3)", "Adam", "SGD(momentum=0.9)"])
def test_interrupted_is_uninterrupted(tmp_path, monkeypatch, optimizer):
    run = LongRun("ptb-chars-tiny", optimizer, 0.01, seed=1, epochs=2, device="cpu")
    whole = advance(run, tmp_path)
    assert whole["status"] == "done"
    assert [point["epoch"] for point in whole["curve"]] == [0, 1, 2]
    clock = iter(range(10**9))
    monkeypatch.setattr(longrun.time, "monotonic", lambda: next(clock))
    pieces = 0
    while (record := advance(run, tmp_path, deadline=next(clock) + 8)) is None:
        pieces += 1
        assert [path.suffix for path in tmp_path.iterdir()] == [".pt"]
    assert pieces > 2
    assert without_seconds(record) == without_seconds(whole)
    assert not list(tmp_path.iterdir())


def test_many_until_time_is_up(tmp_path):
    runs = [LongRun("ptb-chars-tiny", "Adam", lr, seed=0, epochs=1, device="cpu") for lr in (0.01, 0.1)]
    results = Results(tmp_path / "r.jsonl")
    assert run_until(runs, results, tmp_path / "kept", seconds=0) == 2
    assert run_until(runs, results, tmp_path / "kept", workers=2) == 0
    assert {record["lr"] for record in results} == {0.01, 0.1}
    before = results.path.read_bytes()
    assert run_until(runs, results, tmp_path / "kept") == 0
    assert results.path.read_bytes() == before


def test_a_diverged_run_is_recorded_as_diverged(tmp_path):
    record = advance(LongRun("ptb-chars-tiny", "SGD", 1e30, seed=0, epochs=1, device="cpu"), tmp_path)
    assert record["status"] == "diverged"
    json.dumps(record, allow_nan=False)


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


def test_the_command_needs_torch_and_numpy_alone(tmp_path):
    """And goes on where it was left."""
    plan = [
        {"problem": "cifar10-tiny", "optimizer": "GGT(window=3)", "lr": 0.01, "seed": 0, "epochs": 1, "device": "cpu"}
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(['rich', 'tyro', 'scipy', 'sklearn', 'plotly', 'matplotlib']));"
    )
    command = f"{blocked} from ggt_lab.longrun import main; main()"
    arguments = [str(tmp_path / "plan.json"), "--kept", str(tmp_path / "kept"), "--results", str(tmp_path / "r.jsonl")]
    run = subprocess.run([sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=True)
    assert "all runs are finished" in run.stdout
    assert len(list(Results(tmp_path / "r.jsonl"))) == 1
