"""The benchmark suite: cases that fail are recorded, promises are judged both ways, everything small runs on a CPU."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch

import ggt_lab.cli.bench_command as command
from ggt_lab.bench import (
    case_runner,
    cpu_step,
    host_step,
    kernel_variants,
    member_step,
    optimizer_step,
    paper_step,
    timing,
    training_step,
)
from ggt_lab.bench.case_files import case_flaw, read_cases, write_together
from ggt_lab.bench.cases import KINDS, SELECTIONS, Case, cases, named
from ggt_lab.bench.speed_summary import figures, promises, write_summary
from ggt_lab.experiments.catalogue import experiment
from ggt_lab.figures.speed_figures import draw_speed
from ggt_lab.optimizers.specs import optimizer_factory

CPU = torch.device("cpu")
SOURCE = str(Path(case_runner.__file__).parents[2])


@pytest.fixture(autouse=True)
def _children_find_the_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH")))))


# ---- timing ----------------------------------------------------------------------------------------------------------


def test_spread_leaves_out_a_tenth_at_each_end():
    timing_ = timing.summarize([float(x) for x in range(1, 21)])
    assert (timing_.low_ms, timing_.median_ms, timing_.high_ms, timing_.calls) == (3.0, 10.5, 18.0, 20)


def test_measure_stays_within_its_seconds():
    calls = []
    assert timing.measure(lambda: calls.append(1), CPU, repeats=7).calls == 7
    assert len(calls) == 7 + 5  # five to warm up
    assert timing.measure(lambda: sum(range(300_000)), CPU, repeats=1000, seconds=1e-3).calls == 3


def test_contenders_take_turns():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = timing.interleaved(calls, CPU, rounds=2, block=2, prepare={"b": lambda: order.append("prepare")})
    assert order == ["a", "a", "prepare", "b", "b"] * 4
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_an_error_is_words():
    assert timing.attempt(lambda: 1 / 0) == "ZeroDivisionError: division by zero"


# ---- what is measured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "d", "tensors"), [("odd", 1003, 20), ("lstm", 5_299_450, 15), ("gpt", 10_784_306, 78)]
)
def test_parameters(shapes, d, tensors):
    made = optimizer_step.make_parameters(shapes, CPU, d=1003)
    assert (sum(p.numel() for p in made), len(made)) == (d, tensors)
    assert all(p.grad is not None and p.grad.std() > 0.1 for p in made if p.numel() > 10)


@pytest.mark.parametrize("name", optimizer_step.OPTIMIZERS)
def test_every_optimizer_steps_or_is_not_installed(name):
    if (package := optimizer_step._NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        with pytest.raises(optimizer_step.NotInstalledError, match=f"{package} is not installed"):
            optimizer_step.make_optimizer(name, optimizer_step.make_parameters("square", CPU, d=16))
        return
    result = optimizer_step.step(CPU, 1e9, optimizer=name, shapes="square", d=1600, r=3, dtype="float32", repeats=3)
    assert result["d"] == 1600
    assert result["floor_ms"] == pytest.approx(2 * 3 * 1600 * 4 / 1e9 * 1e3)
    assert result["eager_over_floor"] == pytest.approx(result["eager"]["median_ms"] / result["floor_ms"])


def test_a_step_moves_every_parameter():
    for name in ("GGT", "SGD", "Adam", "Muon"):
        made = [
            *optimizer_step.make_parameters("square", CPU, d=64),
            *optimizer_step.make_parameters("odd", CPU, d=64, tensors=2),
        ]
        before = [p.detach().clone() for p in made]
        optimizer_step.make_optimizer(name, made, r=3)()
        assert not any(torch.equal(a, b) for a, b in zip(before, made, strict=True)), name


def test_the_papers_step_is_the_papers():
    """All three forms are [(GGᵀ)^½ + εI]⁻¹ v, in float64 and on a well-conditioned window; v is a column of it."""
    G = torch.randn(40, 5, dtype=torch.float64)
    v = G[:, 0].clone()
    root = scipy.linalg.sqrtm((G @ G.T).numpy() + 1e-14 * np.eye(40)).real
    want = torch.from_numpy(np.linalg.solve(root + 1e-8 * np.eye(40), v.numpy()))
    for method in (paper_step.by_eigh_in_the_span, paper_step.by_eigh, paper_step.by_svd):
        assert torch.allclose(method(G, v), want, atol=1e-5), method.__name__


@pytest.mark.parametrize("method", ["eigh", "svd"])
def test_paper(method):
    result = paper_step.paper(CPU, 1e9, d=500, r=4, method=method, rounds=3)
    name, *others = paper_step.METHODS[method]
    if method == "svd":  # the other drivers are a GPU's
        assert set(result["errors"]) == set(others)
        others = []
    assert set(result["over_GGT_float32"]) == {name, *others}
    times = {name: timing_["median_ms"] for name, timing_ in result["times"].items()}
    assert result["over_GGT_bfloat16"][name] == pytest.approx(times[name] / times["GGT bfloat16"])


@pytest.mark.parametrize("model", training_step.MODELS)
def test_training(model, monkeypatch):
    small = {"SGD": {}, "GGT r=2 float32": {"window": 2}}
    monkeypatch.setattr(training_step, "CONTENDERS", small)
    result = training_step.training(CPU, 1e9, model=model, mode="eager", rounds=2, block=1, tiny=True)
    measured = {*small, training_step.PLAIN, *training_step.BASELINES} - set(result["not measured"])
    assert set(result["times"]) == measured
    assert {*training_step.BASELINES} - measured <= {"SOAP"}
    assert result["over_SGD"].keys() == measured - {"SGD"}
    assert result["over_SGD"]["GGT r=2 float32"] > 0
    assert (result["batch"], result.get("length")) == (4, 5 if model.startswith("lstm") else None)


@pytest.mark.parametrize(("milliseconds", "steps"), [(1.0, 1), (10.0, 2), (1e6, 7)])
def test_steps_of_a_block(monkeypatch, milliseconds, steps):
    monkeypatch.setattr(training_step, "interleaved", lambda *_, **__: {"": [9.0, 5.0, 6.0]})
    assert training_step._steps_in(milliseconds, lambda: None, CPU, most=7) == steps


def test_baselines_that_cannot_be_had_are_named(monkeypatch):
    wanted = {"A": "no_such_package.A", "B": "Adam(beta=1)", "C": "SparseAdam", "D": "Adam"}
    monkeypatch.setattr(training_step, "BASELINES", wanted)
    calls, reasons = training_step._baselines("lstm", tiny=True, device=CPU)
    assert list(calls) == ["D"]
    assert reasons["A"] == "no_such_package is not installed"
    assert "beta" in reasons["B"]
    assert "SparseAdam" in reasons["C"]


def test_baselines_are_the_entrants_of_long_runs():
    """Benchmark and long runs use equal names and equal options, without the choice of fused kernels."""
    specs = {name: spec for name, (spec, _) in experiment("R1")._entrants.items()}
    for name, spec in training_step.BASELINES.items():
        assert spec.replace("(fused=True)", "") == specs[name]
    for name, contender in (("GGT", "GGT r=200 bfloat16"), ("GGT by parameter", "GGT by parameter")):
        options = {"scope": "model", **training_step.CONTENDERS[contender]}
        made = optimizer_factory(specs[name])([torch.nn.Parameter(torch.ones(2))], 0.1)
        assert options == {option: made.defaults[option] for option in options}


@pytest.mark.parametrize(("model", "mode", "words"), [("gru", "eager", "gru"), ("lstm", "lazy", "lazy")])
def test_training_of_something_else(model, mode, words):
    with pytest.raises(ValueError, match=words):
        training_step.training(CPU, 1e9, model=model, mode=mode, tiny=True)


def test_root_reports_its_error():
    result = kernel_variants.root(CPU, 1e9, r=6, batch=2)
    assert result["cholesky 1e-08, error"] < 1e-7
    G = torch.eye(3, dtype=torch.float64)[None]
    u = torch.ones(1, 3, dtype=torch.float64)
    assert kernel_variants.relative_error(G, 1.5 * u, u) == pytest.approx(0.5)


@pytest.mark.parametrize("model", member_step.MODELS)
def test_members_are_compared_with_what_they_replace(model):
    result = member_step.members(CPU, 1e9, model=model, rounds=2, block=1, tiny=True)
    assert result["members"].keys() == member_step.PAIRS.keys()
    made = {"status": "done", "kind": "members", "case": "members_x", "result": result}
    line, *_ = figures([made])
    assert line.against == "AdamW(fused=False, capturable=False)"
    assert line.ratio == result["members"]["whiten(AdamW)"]["ratio"]
    made |= {"options": {}, "device": "cpu"}
    assert case_flaw(made) is case_flaw({**made, "kind": "cpu"}) is None
    damaged = {**result, "members": {"GGT": {"ms": "fast"}}}
    for kind in ("members", "cpu"):
        assert "an object of members" in case_flaw({**made, "kind": kind, "result": damaged})


def test_muon_of_torch_moves_matrices_and_adamw_the_rest():
    network, loss = member_step._fresh("gpt", tiny=True, device=CPU)
    before = [p.detach().clone() for p in network.parameters()]
    step = member_step._training_step("torch.optim.Muon, AdamW", list(network.parameters()), loss, fused=False)
    step()
    assert not any(torch.equal(old, p) for old, p in zip(before, network.parameters(), strict=True))


def test_rows_in_host_memory():
    result = host_step.host(CPU, 1e9, d=700, r=3, dtype="int8", work_ms=1.0, rounds=2)
    assert result["window_bytes"] == round(3 * 700 * 1.0625)
    assert result["floor_ms"] == pytest.approx(2 * result["window_bytes"] / result["bus_bandwidth"] * 1e3)
    assert result["exposed_ms"] <= result["times"]["work and step"]["high_ms"]
    made = {"case": "host_x", "kind": "host", "status": "done", "options": {}, "device": "cpu", "result": result}
    assert case_flaw(made) is None
    alone, exposed = figures([made])
    assert alone.figure_ms == result["times"]["step"]["median_ms"]
    assert exposed.ratio == pytest.approx(result["exposed_ms"] / result["floor_ms"])


def test_selections_are_cases_with_promises_first():
    for name in SELECTIONS:
        found = named([name])
        assert [case.name for case in found] == list(SELECTIONS[name])
    assert [case.name for case in named(["cpu_memory_d4000000_r5", "lean"])][:2] == [
        "cpu_memory_d4000000_r5", "step_d5300000_r200_int8",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"unknown case 'step_d1': did you mean .*step_"):
        named(["step_d1"])


def test_one_file_holds_many_cases(tmp_path):
    records = [{**each, "environment": {}, "copy_bandwidth": 1e12} for each in made_up(good=True)]
    write_together(records, tmp_path / "deep" / "all.json")
    assert read_cases([tmp_path]) == records
    damaged = [{**records[0], "result": {}}, 7, *records[1:]]
    write_together(damaged, tmp_path / "deep" / "all.json")
    with pytest.warns(UserWarning, match="is left out"):
        assert read_cases([tmp_path]) == records[1:]


def test_members_of_an_unknown_model():
    with pytest.raises(ValueError, match="model must be one of gpt, lstm, small-gpt"):
        member_step.members(CPU, 1e9, model="vgg")


def test_cpu_figures():
    step = cpu_step.cpu(CPU, 1e9, figure="step", d=2000, r=3, rounds=3)
    ms = {name: timing_["median_ms"] for name, timing_ in step["times"].items()}
    assert step["over_bare_products"] == pytest.approx(ms["GGT"] / (ms["W v"] + ms["WT c"]))
    growth = cpu_step.cpu(CPU, 1e9, figure="growth", sizes=[[100, 2], [200, 2]], rounds=2)
    assert list(growth["times"]) == ["d=100 r=2", "d=200 r=2"]
    with pytest.raises(ValueError, match="figure must be"):
        cpu_step.cpu(CPU, 1e9, figure="speed")


# ---- cases and their processes ---------------------------------------------------------------------------------------


def test_cases_have_names_of_their_own_and_promises_come_first():
    everything = cases(KINDS)
    assert len({case.name for case in everything}) == len(everything)
    quick = cases(KINDS, quick=True)
    assert everything[: len(quick)] == quick
    assert {case.kind for case in everything} == set(KINDS) == set(case_runner.MEASURES)
    sizes = [case.options for case in everything if case.kind == "steps"]
    assert {o["d"] for o in sizes} >= {100_000, 1_000_000_000}
    assert {o["r"] for o in sizes} == {10, 20, 50, 100, 200, 400}
    with pytest.raises(ValueError, match="did you mean steps"):
        cases(["step"])


def test_every_promise_has_a_case():
    names = {case.name for case in cases(KINDS, quick=True)}
    assert {promise.case for promise in promises([])} <= names


SMALL = {"optimizer": "GGT", "shapes": "odd", "d": 60, "r": 2, "dtype": "float32", "repeats": 3}


@pytest.fixture
def quick_bandwidth(monkeypatch):
    monkeypatch.setattr(case_runner, "copy_bandwidth", lambda device: 1e9)


@pytest.mark.usefixtures("quick_bandwidth")
def test_an_error_in_a_case_is_a_record():
    good = case_runner.measure_case(Case("good", "steps", SMALL), CPU)
    assert (good["status"], good["copy_bandwidth"]) == ("done", 1e9)
    assert good["environment"]["torch"] == torch.__version__
    bad = case_runner.measure_case(Case("bad", "steps", {**SMALL, "shapes": "round"}), CPU)
    assert bad["status"] == "failed"
    assert "ValueError: shapes must be odd" in bad["error"]
    json.dumps([good, bad], allow_nan=False)


@pytest.mark.usefixtures("quick_bandwidth")
def test_a_missing_package_is_no_failure(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    record = case_runner.measure_case(
        Case("soap", "baselines", {"optimizer": "SOAP", "shapes": "square", "d": 16}), CPU
    )
    assert (record["status"], record["error"]) == ("not installed", "pytorch_optimizer is not installed")


def test_processes_failures_and_resuming(tmp_path):
    """In processes: one that succeeds, one whose error is recorded; then only the failed one is run again."""
    small = {"figure": "step", "d": 50, "r": 2, "rounds": 2}
    wanted = [Case("good", "cpu", small), Case("bad", "cpu", {**small, "figure": "none"})]
    seen = []
    records = case_runner.run_cases(wanted, tmp_path, device="cpu", on_done=lambda record: seen.append(record["case"]))
    assert [(r["case"], r["status"]) for r in records] == [("good", "done"), ("bad", "failed")]
    assert seen == ["good", "bad"]
    good = tmp_path / "good.json"
    before = good.stat().st_mtime_ns
    mended = [wanted[0], Case("bad", "cpu", small)]
    again = case_runner.run_cases(mended, tmp_path, device="cpu")
    assert [r["status"] for r in again] == ["done", "done"]
    assert good.stat().st_mtime_ns == before
    assert {r["case"] for r in read_cases([tmp_path])} == {"good", "bad"}


def test_a_process_that_dies_or_hangs_is_recorded(tmp_path, monkeypatch):
    class Dead:
        exitcode = -9

        def __init__(self, alive):
            self.alive = alive

        def start(self):
            pass

        def join(self, limit=None):
            pass

        def is_alive(self):
            return self.alive

        def kill(self):
            self.alive = False

    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "c.log").write_text("last words")
    case = Case("c", "cpu", {})
    outcomes = {}
    for alive, cut_short in ((False, False), (True, False), (True, True)):

        class Context:
            Process = staticmethod(lambda alive=alive, **_: Dead(alive))

        found = case_runner._in_a_process(Context, case, tmp_path, "cpu", limit=5, cut_short=cut_short)
        outcomes[alive, cut_short] = found and (found["status"], found["error"], found["log"])
    assert outcomes == {
        (False, False): ("failed", "its process ended with code -9", "last words"),
        (True, False): ("failed", "not finished after 5 s", "last words"),
        (True, True): None,  # the run's time was up, not the case's: it is left for the next call
    }


def test_no_time_left_leaves_all_cases(tmp_path):
    wanted = [Case("good", "cpu", {"figure": "step", "d": 50, "r": 2})]
    records = case_runner.run_cases(wanted, tmp_path, device="cpu", seconds=0)
    assert records == []
    assert case_runner.unfinished(wanted, records) == wanted


def test_damaged_files_are_run_again(tmp_path):
    (tmp_path / "good.json").write_text('{"case": "good", "sta')
    with pytest.warns(UserWarning, match="good.json is left out"):
        assert read_cases([tmp_path]) == []
    assert case_runner._finished(tmp_path / "good.json") is None


# ---- the summary -----------------------------------------------------------------------------------------------------


def record(case, kind, result, **more):
    environment = {"gpu": "a GPU", "processor": "a CPU", "command": "c"}
    return {
        "case": case,
        "kind": kind,
        "status": "done",
        "result": result,
        "environment": environment,
        "options": {},
        "copy_bandwidth": 4e12,
    } | {
        "device": "cuda",
        **more,
    }


def made_up(*, good):
    """Every promised case, all figures on the right side of their target or all on the wrong one, by a hair."""
    over = 0.999 if good else 1.001
    records = []
    for d, r, dtype, target in (
        (5_300_000, 200, "bfloat16", 1.5),
        (5_300_000, 200, "float32", 1.5),
        (100_000_000, 50, "bfloat16", 1.15),
        *((d, r, dtype, 1.25) for dtype in ("int8", "int4") for d, r in ((5_300_000, 200), (100_000_000, 50))),
    ):
        result = {"d": d, "r": r, "dtype": dtype, "scope": "model", "floor_ms": 1.0, "eager_over_floor": target * over}
        result |= {"eager": timing.summarize([target * over]).as_dict(), "captured": "AcceleratorError: no"}
        result |= {"host_syncs": 0 if good else 1, "beyond_window": 4 * over}
        records.append(record(f"step_d{d}_r{r}_{dtype}", "steps", result, options={"optimizer": "GGT"}))
    names = list(paper_step.METHODS["eigh"])
    times = {name: timing.summarize([12 / over]).as_dict() for name in names}
    times |= {f"GGT {dtype}": timing.summarize([1.0]).as_dict() for dtype in ("float32", "bfloat16")}
    result = {"d": 5_300_000, "r": 200, "times": times}
    result |= {f"over_GGT_{dtype}": dict.fromkeys(names, 12 / over) for dtype in steps_dtypes()}
    records.append(record("paper_eigh_d5300000_r200", "paper", result))
    for model, target in (("lstm", 1.10), ("shake-shake", 1.08)):
        for mode in ("eager", "captured"):
            ratios = {
                f"GGT r={r} {t}": over * (target if r == 200 else 1.03) for r in (20, 200) for t in steps_dtypes()
            }
            if (model, mode) == ("lstm", "captured"):
                ratios |= {"GGT r=200 bfloat16": 1.15 * over, "GGT r=200 int8": 1.10 * over}
            times = {name: timing.summarize([ratio]).as_dict() for name, ratio in {"SGD": 1.0, **ratios}.items()}
            result = {"model": model, "mode": mode, "times": times, "over_SGD": ratios}
            records.append(record(f"training_{model}_{mode}", "training", result))
    for model in ("gpt", "lstm"):
        found = {"replaces": "Muon", "ms": 1.0, "replaced_ms": 1.0}
        targets = {"GGT polar": 1.05, "whiten(AdamW)": 1.10}
        compared = {name: {**found, "ratio": target * over} for name, target in targets.items()}
        result = {"model": model, "r": 20, "dtype": "bfloat16", "members": compared}
        records += [record(f"members_{model}{mode}", "members", result) for mode in ("", "_captured")]
    for dtype in steps_dtypes():
        for scope, ms in (("model", 1.0), ("parameter", 1.3 * over)):
            result = {"d": 10, "r": 50, "dtype": dtype, "scope": scope, "floor_ms": 0.5}
            result["eager"] = timing.summarize([ms]).as_dict()
            records.append(record(f"scope_{scope}_gpt_r50_{dtype}", "scopes", result, options={"optimizer": "GGT"}))
    for d in (300_000, 1_000_000):
        times = {"W v": 1.0, "WT c": 1.0, "GGT": 3 * over}
        times = {name: timing.summarize([ms]).as_dict() for name, ms in times.items()}
        result = {"d": d, "r": 100, "dtype": "float32", "times": times, "over_bare_products": 1.5 * over}
        records.append(record(f"cpu_step_d{d}_r100", "cpu", result, device="cpu"))
    records.append(record("cpu_memory_d4000000_r5", "cpu", {"beyond_window": 4 * over}, device="cpu"))
    return records


def steps_dtypes():
    return ("bfloat16", "float32")


@pytest.mark.parametrize("good", [True, False])
def test_promises_are_judged_both_ways(good, tmp_path):
    records = made_up(good=good)
    judged = promises(records)
    assert [promise.met for promise in judged] == [good] * len(judged)
    assert {promise.word for promise in judged} == {"met" if good else "MISSED"}
    write_summary(records, tmp_path / "records" / "speed.json")
    written = json.loads((tmp_path / "records" / "speed.json").read_text())
    assert [promise["met"] for promise in written["promises"]] == [good] * len(judged)
    assert all(
        {"case", "figure_ms", "floor_ms", "ratio", "hardware", "command"} <= line.keys() for line in written["figures"]
    )
    assert {line["hardware"] for line in written["figures"]} == {"a GPU", "a CPU"}


def test_what_was_not_measured_is_neither_met_nor_missed():
    failed = {**made_up(good=True)[0], "status": "failed", "error": "OutOfMemoryError"}
    judged = promises([failed])
    assert {promise.met for promise in judged} == {None}
    words = made_up(good=True)[0]
    words["result"]["host_syncs"] = "RuntimeError: something else"
    syncs = next(promise for promise in promises([words]) if promise.what.startswith("host syncs"))
    assert syncs.word == "not measured"


def test_figures_of_baselines_are_means_and_failures_are_listed(tmp_path):
    eager = timing.summarize([1.0] * 9 + [11.0]).as_dict()
    soap = record(
        "baseline_gpt_SOAP", "baselines", {"d": 7, "scope": "model", "eager": eager}, options={"optimizer": "SOAP"}
    )
    assert [(line.figure_ms, line.floor_ms) for line in figures([soap])] == [(2.0, None)]
    missing = {"case": "x", "kind": "baselines", "status": "not installed", "error": "torchzero is not installed"}
    write_summary([soap, missing], tmp_path / "speed.json")
    assert json.loads((tmp_path / "speed.json").read_text())["not measured"] == {"x": "torchzero is not installed"}


def test_figures_are_drawn_from_records_alone(tmp_path):
    records = made_up(good=True)
    eager = timing.summarize([1.0]).as_dict()
    options = {"optimizer": "SGD", "shapes": "gpt"}
    records.append(record("baseline_gpt_SGD", "baselines", {"d": 7, "scope": "model", "eager": eager}, options=options))
    files = draw_speed(records, tmp_path)
    assert [file.name for file in files if file.suffix == ".png"] == ["steps.png", "training.png", "baselines.png"]
    assert all(file.stat().st_size > 5_000 for file in files)
    assert draw_speed([], tmp_path) == []


# ---- the commands ----------------------------------------------------------------------------------------------------


def test_ggt_bench_measures_sums_up_and_goes_on(tmp_path, monkeypatch, capsys):
    small = {"figure": "step", "d": 50, "r": 2, "rounds": 2}
    wanted = [Case("cpu_step_d300000_r100", "cpu", small), Case("cpu_bad", "cpu", {**small, "figure": "none"})]
    monkeypatch.setattr(case_runner, "cases", lambda what, *, quick: wanted)
    command.BenchCommand(device="cpu", out=tmp_path, seconds=0).run()
    assert "2 cases are left" in capsys.readouterr().out
    command.BenchCommand(device="cpu", out=tmp_path).run()
    words = " ".join(capsys.readouterr().out.split())
    assert "failed: cpu_bad: ValueError: figure must be" in words
    assert "CPU step, d = 50, r = 2" in words
    assert ("MISSED" in words) or ("met" in words)
    command.BenchCommand(out=tmp_path / "summary", records=(tmp_path,)).run()
    summed = json.loads((tmp_path / "summary" / "speed.json").read_text())
    assert {line["case"] for line in summed["figures"]} == {"cpu_step_d300000_r100"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": ("speed",)}, "unknown kind of case 'speed'"),
        ({"what": ("steps",), "device": "cpu"}, "without a GPU there is --what cpu"),
        ({"device": "tpu"}, "device must be cuda or cpu, got 'tpu'"),
        ({"records": (Path("nowhere"),)}, "no such folder of records: nowhere"),
    ],
)
def test_ggt_bench_says_what_is_wrong(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        command.BenchCommand(out=tmp_path, **options).run()
