"""ggt plan: its arithmetic, input as people type it, and its errors against measured steps."""

import functools
import inspect
import json
from pathlib import Path

import pytest
import torch

from ggt_lab.bench.case_files import read_cases
from ggt_lab.cli.plan_command import PlanCommand, count_parameters
from ggt_lab.planning.calibration import (
    Calibration,
    Measured,
    calibrate,
    load_calibration,
    measured_steps,
    solve_times,
)
from ggt_lab.planning.calibration_check import calibration_of, check_against
from ggt_lab.planning.step_plan import WRAPPED, largest_window, make_plan
from ggt_lab.planning.units import parse_bytes, parse_count, parse_seconds
from torch_ggt import GGT
from torch_ggt.finish import FINISHES, Finish

RECORDS = Path(__file__).parents[2] / "records"
SIMPLE = Calibration("a GPU", 1e12, {"float32": 1.5, "bfloat16": 1.25}, [(10, 1e-5), (100, 1e-4)], 2e-5, 3e-4)


# ---- what people type ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"), [("5.3M", 5_300_000), ("7B", 7 * 10**9), ("7e9", 7 * 10**9), (" 12 k", 12_000)]
)
def test_counts(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "many", "7X", "0", "1.5", "-3", "1e999", "5M parameters", "nan"])
def test_counts_that_are_none(text):
    with pytest.raises(ValueError, match="parameters must be"):
        parse_count(text)


def test_bytes_and_seconds():
    assert parse_bytes("80GiB", "memory") == 80 * 2**30
    assert parse_bytes("4.26TB/s", "bandwidth", per_second=True) == 4.26e12
    assert parse_seconds("20 us", "latency") == pytest.approx(2e-5)
    for text in ("80 gallons", "0GB", "4TB/s", "-1GB"):
        with pytest.raises(ValueError, match="memory must be") as caught:
            parse_bytes(text, "memory")
        assert repr(text) in str(caught.value)
    with pytest.raises(ValueError, match="a time with its unit"):
        parse_seconds("20", "latency")


def test_a_users_file_is_counted(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nclass Problem:\n    steps, metric = 1, 'loss'\n"
        "    def __init__(self, seed, device): self.m = torch.nn.Linear(6, 7); self.m.bias.requires_grad_(False)\n"
        "    def parameters(self): return self.m.parameters()\n    def loss(self): ...\n    def evaluate(self): ...\n"
    )
    assert count_parameters(str(own)) == 42
    with pytest.raises(ValueError, match="did you mean logistic"):
        count_parameters("logistics")


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_rows_in_host_memory():
    """They take no bytes of the GPU, and the passes are as fast as the bus; GPUs cannot share them."""
    options = {"window": 10, "calibration": SIMPLE, "memory": 10e9, "host_bandwidth": 50e9}
    here, there = (make_plan(10**8, dtype=dtype, **options) for dtype in ("bfloat16", "bfloat16@host"))
    assert (there.window_bytes, there.host_bytes) == (0, here.window_bytes)
    assert here.host_bytes == 0
    assert there.total_bytes == here.total_bytes - here.window_bytes
    assert there.passes_s == pytest.approx(2 * 2e9 / 50e9)
    with pytest.raises(ValueError, match="cannot be in host memory, got gpus=2"):
        make_plan(10**8, dtype="int8@host", gpus=2, **options)


def test_one_gpu_by_hand():
    plan = make_plan(10**8, window=10, dtype="bfloat16", calibration=SIMPLE, memory=10e9)
    assert plan.window_bytes == 2e9
    assert plan.model_bytes == 8e8
    assert plan.state_bytes == 12e8 + 8 * (28 * 100 + 2 * 10 + 3) + 4  # a row, two moments, and the finish counts
    assert plan.passes_s == pytest.approx(1.25 * 2 * 10 * 1e8 * 2 / 1e12)
    assert plan.traffic_s == pytest.approx(34 * 1e8 / 1e12)
    assert plan.device_s == pytest.approx(plan.passes_s + plan.traffic_s + 1e-5 + 2e-5)
    assert plan.collectives_s == 0
    assert plan.fits_here
    twice = make_plan(10**8, window=10, dtype="bfloat16", calibration=SIMPLE, bandwidth=2e12)
    assert twice.passes_s == pytest.approx(plan.passes_s / 2)


def test_small_steps_take_the_hosts_time():
    plan = make_plan(1000, window=10, dtype="float32", calibration=SIMPLE)
    assert plan.device_s < plan.step_s == 3e-4


def test_many_gpus_by_hand():
    options = {"window": 14, "dtype": "float32", "calibration": SIMPLE, "gpus": 4, "network_bandwidth": 1e9}
    split = make_plan(4 * 10**6, network_latency=1e-5, **options)
    assert split.window_bytes == 14 * 10**6 * 4
    assert split.model_bytes == 8e6
    assert split.collectives_s == pytest.approx(1e-5 + 2 * 0.75 * 8 * 16 / 1e9)
    whole = make_plan(4 * 10**6, network_latency=1e-5, replicated=True, **options)
    assert whole.model_bytes == 32e6
    assert whole.collectives_s == pytest.approx(split.collectives_s + 1e-5 + 0.75 * 16e6 / 1e9)


def test_the_bytes_are_the_bytes_of_ggt_and_its_defaults_are_the_defaults_of_ggt():
    command, defaults = PlanCommand("1"), inspect.signature(GGT.memory).parameters
    assert all(getattr(command, name) == defaults[name].default for name in ("window", "history"))
    assert command.finish is None
    assert make_plan(1, window=1, dtype="float32", calibration=SIMPLE).finish == defaults["finish"].default
    memory = GGT.memory(10**6)  # its rows have the default dtype
    plan = make_plan(10**6, window=command.window, dtype=command.dtype, calibration=SIMPLE)
    assert plan.window_bytes == memory.window == 80e6
    assert plan.state_bytes == memory.total - memory.window + 8 * 27 * 20**2


@pytest.mark.parametrize(("whiten", "own"), [("adamw", 8), ("muon", 4), ("sgd", 0), ("sgd-momentum", 4)])
def test_whitening_keeps_gradients_and_a_row_beside_the_optimizers_own_state(whiten, own):
    options = {"window": 10, "dtype": "bfloat16", "calibration": SIMPLE, "whiten": whiten}
    plan = make_plan(64 * 10**6, **options)
    assert (plan.window_bytes, plan.wrapped_bytes) == (20 * 64e6, own * 64e6)
    assert plan.state_bytes == 4 * 64e6 + 8 * (28 * 100 + 2 * 10 + 3)  # no momentum
    assert plan.total_bytes == (20 + 4 + own + 8) * 64e6 + 8 * (28 * 100 + 2 * 10 + 3)
    shared = make_plan(64 * 10**6, gpus=4, **options)
    assert (shared.window_bytes, shared.wrapped_bytes) == (20 * 16e6, own * 16e6)
    copied = make_plan(64 * 10**6, gpus=4, replicated=True, **options)
    assert (copied.window_bytes, copied.wrapped_bytes) == (20 * 16e6, own * 64e6)  # its state is not split


def test_the_bytes_of_whitened_optimizers_are_those_of_torch():
    """One step of each optimizer leaves as many bytes for each parameter as the table says."""
    makers = {
        "adamw": torch.optim.AdamW,
        "muon": torch.optim.Muon,
        "sgd": torch.optim.SGD,
        "sgd-momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    }
    assert makers.keys() == WRAPPED.keys()
    for name, make in makers.items():
        parameter = torch.nn.Parameter(torch.ones(100, 50))
        optimizer = make([parameter], lr=1e-3)
        parameter.grad = torch.ones(100, 50)
        optimizer.step()
        state = [value for value in optimizer.state[parameter].values() if torch.is_tensor(value) and value.dim()]
        assert sum(value.nbytes for value in state) == WRAPPED[name] * 5000


def test_a_finish_is_counted(monkeypatch):
    class TwoMoments(Finish):
        buffers = ("first", "second")

    monkeypatch.setitem(FINISHES, "two", TwoMoments())
    options = {"window": 10, "dtype": "float32", "calibration": SIMPLE, "history": "gradient"}
    plain, finished = (make_plan(64 * 10**6, finish=finish, **options) for finish in ("none", "two"))
    assert finished.state_bytes - plain.state_bytes == 8 * 64e6
    assert finished.fits["float32"] < plain.fits["float32"]


@pytest.mark.parametrize("parameters", [7, 10_000, 5_300_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("budget", [0.0, 1e6, 1e8, 3.7e9])
@pytest.mark.parametrize("gpus", [1, 3])
def test_the_largest_window_is_the_largest(parameters, dtype, budget, gpus):
    size = 4 if dtype == "float32" else 2
    columns = -(-parameters // (64 * gpus)) * 64

    def needed(r):
        return 12 * columns + r * columns * size + 8 * (28 * r * r + 2 * r + 3) + 4

    r = largest_window(parameters, dtype, budget, gpus=gpus)
    assert r == 0 or needed(r) <= budget
    assert r == parameters or needed(r + 1) > budget


def test_a_plan_of_the_largest_window_fits_and_of_one_more_does_not():
    options = {"dtype": "bfloat16", "calibration": SIMPLE, "memory": 24e9}
    largest = make_plan(10**8, window=1, **options).fits["bfloat16"]
    assert make_plan(10**8, window=largest, **options).fits_here
    assert not make_plan(10**8, window=largest + 1, **options).fits_here
    assert make_plan(10**10, window=1, **options).fits == {"float32": 0, "bfloat16": 0, "int8": 0, "int4": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": 0}, "parameters must be from 1 on, got 0"),
        ({"window": 0}, "window must be from 1 on, got 0"),
        ({"gpus": -1}, "gpus must be from 1 on, got -1"),
        ({"dtype": "int3"}, "dtype must be float32 or bfloat16 or int8 or int4, got 'int3'"),
        ({"gpus": 200}, "200 GPUs cannot share 100 columns"),
        ({"whiten": "adam"}, "whiten must be adamw, muon, sgd, sgd-momentum or nothing, got 'adam'"),
        ({"whiten": "sgd", "finish": "adam"}, "leaves the steps to that optimizer"),
        ({"history": "future"}, "history must be one of"),
    ],
)
def test_bad_plans(change, message):
    options = {"parameters": 100, "window": 2, "dtype": "float32", "calibration": SIMPLE, **change}
    with pytest.raises(ValueError, match=message):
        make_plan(**options)


# ---- against what was measured ---------------------------------------------------------------------------------------


def synthetic():
    """Steps that follow the model with these constants exactly."""
    solves = {10: 2e-5, 100: 1e-4}
    made = []
    sizes = [(10**5, 10, "float32"), (10**5, 10, "bfloat16"), (10**7, 100, "float32"), (10**8, 10, "bfloat16")]
    sizes += [(2 * 10**7, 100, "bfloat16"), (3 * 10**7, 100, "float32")]
    for number, (d, r, dtype) in enumerate(sizes):
        size, factor = (4, 1.5) if dtype == "float32" else (2, 1.2)
        device = factor * 2 * r * d * size / 4e12 + 34 * d / 4e12 + solves[r] + 1e-5
        made.append(Measured(f"step_{number}", d, r, dtype, device, max(device, 2e-4), 4e12))
    return made, solves


def test_calibration_finds_the_constants_it_was_made_with():
    steps, solves = synthetic()
    found = calibrate(steps, solves)
    assert found.factors == pytest.approx({"float32": 1.5, "bfloat16": 1.2}, rel=0.01)
    assert found.small_s == pytest.approx(1e-5, rel=0.3)
    assert found.host_s == 2e-4
    assert not found.assumed


def as_record(step):
    result = {"d": step.d, "r": step.r, "dtype": step.dtype, "scope": "model", "floor_ms": 1e3 * step.floor_s}
    names = ("median_ms", "mean_ms", "low_ms", "high_ms")
    for mode, seconds in (("eager", step.eager_s), ("captured", step.device_s)):
        result[mode] = {**dict.fromkeys(names, 1e3 * seconds), "calls": 9}
    options = {"optimizer": "GGT"}
    return {"case": step.case, "kind": "steps", "options": options, "device": "cuda", "status": "done"} | {
        "result": result,
        "copy_bandwidth": step.bandwidth,
        "environment": {"gpu": "G"},
    }


def records_of(steps, solves):
    made = {"kind": "root", "status": "done", "options": {}, "device": "cuda"}
    roots = [
        {"case": f"root_r{r}_batch1", **made, "result": {"r": r, "batch": 1, "kernel, captured": 1e3 * s}}
        for r, s in solves.items()
    ]
    return [*map(as_record, steps), *roots]


def test_errors_are_small_for_the_model_itself_and_show_what_does_not_follow_it():
    exact = check_against(records_of(*synthetic()))
    assert len(exact) == 6
    assert max(abs(check.error) for check in exact) < 0.1
    steps, solves = synthetic()
    steps[2] = Measured(**{**steps[2].__dict__, "device_s": 3 * steps[2].device_s})
    off = {check.case: check.error for check in check_against(records_of(steps, solves))}
    assert off["step_2"] == pytest.approx(1 / 3 - 1, abs=0.05)  # its own time had no vote


def test_cases_that_are_no_ggt_step_of_one_matrix_are_left_out():
    records = records_of(*synthetic())
    others = [
        {**records[0], "options": {"optimizer": "SOAP"}},
        {**records[0], "options": {"optimizer": "GGT", "scope": "parameter"}},
        {**records[0], "device": "cpu"},
        {**records[0], "kind": "training", "case": "training_lstm_eager"},
    ]
    assert measured_steps(others) == []


def test_what_is_shipped_comes_from_the_records():
    shipped, written = load_calibration()
    records = read_cases([RECORDS])
    assert set(solve_times(records)) == {20, 50, 100, 200, 400}
    again, errors = calibration_of(records)
    assert again.factors == pytest.approx(shipped.factors)
    assert (again.hardware, again.bandwidth) == (shipped.hardware, pytest.approx(shipped.bandwidth))
    assert errors == pytest.approx(written)


def test_too_little_to_calibrate_with():
    with pytest.raises(ValueError, match="two measured steps or more, got 0"):
        check_against([])
    with pytest.raises(ValueError, match="no measured GGT step"):
        calibrate([], {10: 1.0})
    steps, _ = synthetic()
    with pytest.raises(ValueError, match="r × r part"):
        calibrate(steps, {})
    two = records_of(*synthetic())
    two[0] = {**two[0], "environment": {"gpu": "another"}}
    with pytest.raises(ValueError, match="several GPUs"):
        calibration_of(two)


# ---- the command -----------------------------------------------------------------------------------------------------


def words_of(command, capsys):
    command.run()
    return " ".join(capsys.readouterr().out.split())


def test_the_command_says_what_fits_and_how_wrong_it_may_be(capsys):
    words = words_of(PlanCommand("7B", window=20, gpus=8, dtype="bfloat16"), capsys)
    assert "7,000,000,000 parameters, window 20 in bfloat16, shared by 8 GPUs" in words
    assert "35 GB" in words
    assert "It fits into 141 GB" in words
    assert "predicted from the others, is off by" in words
    words = words_of(PlanCommand("7B", window=20, history="momentum", finish="none"), capsys)
    assert "It does NOT fit" in words
    assert "Largest window: 1 in bfloat16 or 2 in int8 or 5 in int4." in words
    assert "No window fits" in words_of(PlanCommand("70B"), capsys)


def test_the_command_plans_whitening_in_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    PlanCommand("7B", gpus=8, whiten="sgd-momentum").run()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    assert "window 20 in float32 before sgd-momentum, shared by 8 GPUs" in words
    assert "state of sgd-momentum │ 3.5 GB" in words or "state of sgd-momentum 3.5 GB" in words
    assert "The step of sgd-momentum comes on top, and was not measured." in words


def test_the_command_predicts_from_records_of_ones_own(tmp_path, capsys):
    for record in records_of(*synthetic()):
        (tmp_path / f"{record['case']}.json").write_text(json.dumps(record))
    assert "Predicted from 6 measured steps on G." in words_of(PlanCommand("1e8", records=(tmp_path,)), capsys)
    with pytest.raises(ValueError, match="no such folder"):
        PlanCommand("1e8", records=(tmp_path / "no",)).run()


def test_a_plan_of_integers_counts_their_scales_and_says_what_was_not_measured(tmp_path, capsys):
    plan = make_plan(64 * 10**6, window=7, dtype="int8", calibration=SIMPLE, whiten="muon")
    assert plan.window_bytes == 7 * (64 + 4) * 10**6
    assert plan.fits["int4"] > 1.8 * plan.fits["int8"] > 3 * plan.fits["bfloat16"]
    for record in records_of(*synthetic()):
        (tmp_path / f"{record['case']}.json").write_text(json.dumps(record))
    words = words_of(PlanCommand("1B", window=16, dtype="int8", records=(tmp_path,)), capsys)
    assert "17 GB" in words
    assert "No step with rows in int8 was measured" in words
    assert "No step with rows" not in words_of(PlanCommand("1B", window=16, dtype="int8"), capsys)


def test_a_step_of_integers_moves_more_beside_the_window():
    eight, plain = (make_plan(10**8, window=7, dtype=dtype, calibration=SIMPLE) for dtype in ("int8", "float32"))
    assert eight.traffic_s == pytest.approx(46 / 34 * plain.traffic_s)
