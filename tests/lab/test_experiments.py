"""Reproductions: oracles, verdicts that can go either way, the whole path at tiny sizes."""

import gzip
import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import optimize

from ggt_lab.experiments import ablations, full_matrix_relatives
from ggt_lab.experiments.ablations import DirectionTask, measure_direction
from ggt_lab.experiments.catalogue import experiment, experiment_names
from ggt_lab.experiments.experiment import Settings, reproduce
from ggt_lab.experiments.full_matrix_relatives import DenseTask, compare_with_dense
from ggt_lab.experiments.hard_window_bound import HardWindowTask, Wells, run_hard_window
from ggt_lab.experiments.landscapes import steps_to
from ggt_lab.experiments.seed_statistics import is_negative, lacks_seeds, stdev
from ggt_lab.experiments.sparse_noise import RatioTask, bound, measure_ratios
from ggt_lab.experiments.verdicts import read_verdicts
from ggt_lab.problems.synthetic_landscapes import Barrier, BarrierVertex
from ggt_lab.report.plain_words import in_plain_words
from ggt_lab.runs.race import Run
from ggt_lab.theory import SparseNoise

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


# ---- the whole path --------------------------------------------------------------------------------------------------


_LIKE_ANOTHER = {"R2", "R3"}  # the code of R1, with other settings


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] if name in _LIKE_ANOTHER else []) for name in experiment_names()],
)
def test_smoke_from_end_to_end(name, tmp_path):
    seen = []
    chosen = experiment(name)
    settings = Settings(seeds=2 if name != "P1" else 1, smoke=True)
    outcome = reproduce(chosen, tmp_path, settings, command="ggt", progress=lambda *args: seen.append(args))
    assert outcome.verdicts
    written = json.loads((tmp_path / "verdicts.json").read_text())
    assert [v["statement"] for v in written["verdicts"]] == [v.statement for v in outcome.verdicts]
    assert [in_plain_words(v) for v in outcome.verdicts] == list(outcome.verdicts)
    if (record := ROOT / "records/2026-11-18-lab" / name / "verdicts.json").exists() and name != "T1":  # its ε differs
        old = [in_plain_words(v) for v in read_verdicts(record).verdicts]
        assert [(v.statement, v.paper) for v in outcome.verdicts] == [(v.statement, v.paper) for v in old]
    assert all(v["claim"] and v["ours"] and v["paper"] for v in written["verdicts"])
    assert name in {v["claim"] for v in written["verdicts"]}
    for figure in written["figures"]:
        png = tmp_path / figure["file"]
        assert png.read_bytes().startswith(b"\x89PNG")
        assert png.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        assert len(figure["alt"]) > 20
    assert seen[-1][0] == seen[-1][1] > 0

    class MustNotRun(type(chosen)):
        def execute(self, task, settings):
            pytest.fail("a finished task was run again")

    again = MustNotRun.__new__(MustNotRun)
    again.__dict__.update(chosen.__dict__)
    assert reproduce(again, tmp_path, settings, command="ggt").verdicts == outcome.verdicts


@pytest.mark.parametrize("name", ["S1", "S2", "T1", "T2", "T3", "P1", "P2"])
def test_the_runs_of_the_record_give_its_verdicts(name):
    """The record keeps no seconds, because other work ran on the machine; no verdict here needs them."""
    (folder,) = (ROOT / "records").glob(f"2026-11-18-[lr]*/{name}")
    with gzip.open(folder / "results.jsonl.gz", "rt") as file:
        records = [json.loads(line) for line in file]
    for point in (point for record in records for point in record.get("curve", ())):
        point["seconds"] = 0.0
    found = experiment(name).verdicts(records, f"ggt reproduce {name}")
    assert found == list(read_verdicts(folder / "verdicts.json").verdicts)


def test_mu_on_sparse_noise_is_variance(monkeypatch):
    """T3's explanation: a run again at d = 10, and the page shows the record."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("variance_of_mu")
    again = module.measure(10, 1)
    assert again["mu"] == pytest.approx(1 / (4 * math.sqrt(1000)), rel=0.25)
    assert again["share_of_bias"] < 0.1
    cases = json.loads((ROOT / "records/2026-11-18-lab/T3/variance.json").read_text())["cases"]
    assert (again["rate"], again["mu"]) == pytest.approx((cases[0]["rate"], cases[0]["mu"]), rel=1e-6)
    # One step, from a start of length 1, with a tiny rate: the average is the start, and all of it is bias.
    monkeypatch.setattr(module, "RATES", (1e-9,))
    assert module.measure(10, 1, steps=1, tuning=2, draws=5)["share_of_bias"] == pytest.approx(1)
    assert [(case["d"], case["draws"]) for case in cases] == [(d, 200) for d, _ in module.CASES]
    assert module.table(cases) in (ROOT / "docs/experiments.md").read_text()


def test_unknown_experiment():
    with pytest.raises(ValueError, match="did you mean S1"):
        experiment("S11")


# ---- S1 and S2 -------------------------------------------------------------------------------------------------------


def landscape_record(run, final):
    curve = [{"step": s, "seconds": s / 100, "suboptimality": final ** (s / 500)} for s in (0, 250, 450, 500)]
    return {**run.__dict__, "metric": "suboptimality", "status": "done", "curve": curve}


def made_up(name, ends):
    """Records in which each family ends at the given suboptimality, best at an inner learning rate."""
    chosen = experiment(name)
    runs = chosen.first(Settings(seeds=5))
    rates = sorted({run.lr for run in runs})

    def end(run):
        plain = run.optimizer.partition("(")[0]
        forgets = "beta2" in run.optimizer
        return ends[plain, forgets] * (1.0 if run.lr == rates[2] else 3.0) * (1 + 0.01 * run.seed)

    return chosen, runs, [landscape_record(run, end(run)) for run in runs]


AS_IN_THE_PAPER = {
    ("SGD", False): 1e-2,
    ("DiagonalAdaptive", False): 1e-3,
    ("DiagonalAdaptive", True): 9e-4,
    ("FullMatrixAdaptive", False): 1e-4,
    ("FullMatrixAdaptive", True): 5e-5,
}


@pytest.mark.parametrize("name", ["S1", "S2"])
def test_orderings_as_in_the_paper_hold(name):
    chosen, _, records = made_up(name, AS_IN_THE_PAPER)
    verdicts = chosen.verdicts(records, "ggt")
    assert all(verdict.holds for verdict in verdicts), [v.statement for v in verdicts if not v.holds]
    assert any("all inside" in verdict.ours for verdict in verdicts)


@pytest.mark.parametrize(
    ("better", "worse", "statement"),
    [
        (("SGD", False), ("DiagonalAdaptive", False), "SGD is slower"),
        (("DiagonalAdaptive", False), ("FullMatrixAdaptive", False), "diagonal AdaGrad is slower"),
        (("FullMatrixAdaptive", False), ("FullMatrixAdaptive", True), "forgetting helps"),
    ],
)
def test_orderings_that_are_reversed_do_not_hold(better, worse, statement):
    ends = dict(AS_IN_THE_PAPER)
    ends[better], ends[worse] = ends[worse], ends[better]
    chosen, _, records = made_up("S2", ends)
    concerned = [v for v in chosen.verdicts(records, "ggt") if v.statement.startswith(statement)]
    assert len(concerned) == 6  # two starts, three measures
    assert not any(verdict.holds for verdict in concerned)


def test_a_best_rate_at_the_edge_is_said_and_the_grid_widened():
    chosen, runs, records = made_up("S1", AS_IN_THE_PAPER)
    edge = max(run.lr for run in runs)
    for record in records:
        if record["optimizer"] == "SGD" and record["lr"] == edge:
            record["curve"][-1]["suboptimality"] = record["curve"][-2]["suboptimality"] = 1e-9
    more = chosen.more(Settings(seeds=5), runs, records)
    assert {run.optimizer for run in more} == {"SGD"}
    assert [run.lr for run in more] == [pytest.approx(edge * math.sqrt(10), rel=1e-4)] * 5
    assert chosen.more(Settings(seeds=5, smoke=True), runs, records) == []
    (inside,) = [v for v in chosen.verdicts(records, "ggt") if "inside of its grid" in v.statement]
    assert inside.holds is False
    assert "SGD" in inside.ours


def test_steps_to_a_level():
    record = landscape_record(Run("p", "A", 1.0, 0), 1e-4)
    assert steps_to(0.1, record) == pytest.approx(125)
    assert steps_to(0.01, record) == pytest.approx(250)
    assert steps_to(1e-5, record) == math.inf


@pytest.mark.parametrize("seed", [0, 1])
def test_minimum_of_the_barrier_by_damped_newton(seed):
    """SciPy's answer against textbook Newton steps."""
    problem = Barrier(seed, CPU)
    x, c = problem.samples.numpy(), problem.offsets.numpy()
    w = np.zeros(10)
    for _ in range(60):
        scaled = x / (x @ w + c)[:, None]
        step = np.linalg.solve(scaled.T @ scaled, scaled.sum(0))
        size = 1.0
        while np.any(x @ (w + size * step) + c <= 0):
            size /= 2
        w = w + min(size, 1 / (1 + np.sqrt(len(x)) * np.linalg.norm(scaled @ step) / len(x))) * step
    assert problem.infimum == pytest.approx(-np.log(x @ w + c).mean(), abs=1e-12)
    assert problem.evaluate()["suboptimality"] == pytest.approx(-np.log(c).mean() - problem.infimum)


def test_vertex_start_is_inside_and_close_to_ten_facets():
    problem = BarrierVertex(0, CPU)
    slack = problem.samples @ problem.point.detach() + problem.offsets
    assert (slack > 0).all()
    # At 99 % of the way to a vertex, ten constraints have one percent of their slack at the origin left.
    assert int((slack / problem.offsets <= 0.01 * (1 + 1e-6)).sum()) == 10
    assert problem.evaluate()["suboptimality"] > Barrier(0, CPU).evaluate()["suboptimality"]


# ---- T1 --------------------------------------------------------------------------------------------------------------


def test_wells_against_autograd_and_scipy():
    wells = Wells(4, 0.7, torch.Generator().manual_seed(0))
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(wells.value(x), x)
    torch.testing.assert_close(wells.gradient(x.detach()), gradient)
    centre = x.detach()
    noise = torch.stack([wells.sample(centre) - wells.gradient(centre) for _ in range(4000)])
    torch.testing.assert_close(noise.norm(dim=1), torch.full((4000,), 0.7, dtype=torch.float64))
    assert noise.mean(0).norm() < 0.05

    def value(y):
        y = torch.from_numpy(y)
        return float(wells.value(y) + 1.5 * (y - centre).square().sum())

    found = optimize.minimize(value, centre.numpy(), method="BFGS", tol=1e-10)
    np.testing.assert_allclose(wells.proximal_minimizer(centre, 1.5).numpy(), found.x, atol=1e-5)


def test_hard_window_record_and_verdicts():
    record = run_hard_window(HardWindowTask(dimension=3, sigma=1.0, target=1.0, ratio=0.5, seed=0))
    assert len(record["ratios"]) == record["restarts"]
    assert len(record["gradient_norms"]) == record["restarts"] + 1
    assert record["best_gradient_norm"] == min(record["gradient_norms"])
    chosen = experiment("T1")
    assert [v.holds for v in chosen.verdicts([record], "ggt")] == [True, True]
    worse = {**record, "ratios": [0.6] * record["restarts"], "best_gradient_norm": 1.1}
    assert [v.holds for v in chosen.verdicts([worse], "ggt")] == [False, False]
    # A window that starts below the target is of no concern.
    late = {**record, "ratios": [0.1, *[9.0] * (record["restarts"] - 1)]}
    late["gradient_norms"] = [2.0, *[0.5] * record["restarts"]]
    assert chosen.verdicts([late], "ggt")[0].holds is True


# ---- T2 and T3 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sgd", "diagonal"])
def test_ratio_by_coordinates_against_a_plain_loop(algorithm):
    task = RatioTask(algorithm, dimension=5, nonzeros=2, steps=40, seed=3, rates=(0.1, 0.3))
    generator = torch.Generator().manual_seed(3)
    which = torch.randint(5, (40,), generator=generator).tolist()
    signs = [1 - 2 * int(s) for s in torch.randint(2, (40,), generator=generator)]
    for rate, ratio in zip(task.rates, measure_ratios(task)["ratios"], strict=True):
        x, squares, total = np.zeros(5), np.zeros(5), np.zeros(5)
        x[:2] = math.sqrt(0.5)
        for index, sign in zip(which, signs, strict=True):
            total += x
            g = 2 * x
            g[index] += sign
            squares += g**2
            x = x - rate * (g if algorithm == "sgd" else g / (np.sqrt(squares) + 1e-8))
        assert ratio == pytest.approx(math.sqrt(40) * np.sum((total / 40) ** 2), rel=1e-9)


def test_in_one_dimension_full_matrix_is_a_plain_loop():
    task = RatioTask("full", dimension=1, nonzeros=1, steps=60, seed=2, rates=(0.1, 1.0))
    for rate, ratio in zip(task.rates, measure_ratios(task)["ratios"], strict=True):
        oracle = SparseNoise(1, torch.Generator().manual_seed(2))
        x, squares, total = oracle.basis[:, 0].clone(), torch.zeros(1), torch.zeros(1)
        for _ in range(60):
            total = total + x
            g = oracle.sample(x)
            squares = squares + g**2
            x = x - rate * g / (squares.sqrt() + 1e-8)
        assert ratio == pytest.approx(float((total / 60) ** 2) * math.sqrt(60), rel=1e-6)
    assert bound(1, 1) == 1


def test_diverged_rates_are_none_and_never_best():
    record = measure_ratios(RatioTask("sgd", 4, 1, 3000, seed=0, rates=(0.1, 3.0)))
    assert record["ratios"][1] is None
    json.dumps(record, allow_nan=False)


def ratio_records(ratio_of):
    chosen = experiment("T3")
    tasks = chosen.first(Settings(seeds=2))
    records = []
    for task in tasks:
        best = ratio_of(task.dimension, task.nonzeros)
        records.append({**task.__dict__, "ratios": [best * (1 + abs(i - 3)) for i in range(len(task.rates))]})
    return chosen, records


def test_bound_holds_or_not():
    chosen, records = ratio_records(lambda d, k: 0.5 * bound(d, k))
    assert [v.holds for v in chosen.verdicts(records, "ggt")] == [True, True, True]
    chosen, records = ratio_records(lambda d, k: 0.2)
    *below, slope = chosen.verdicts(records, "ggt")
    assert [v.holds for v in below] == [False, False]  # at d = 100 the bound of a 1-sparse start is 0.1
    assert slope.holds is False
    assert "-0.00" in slope.ours or "+0.00" in slope.ours


# ---- P1 --------------------------------------------------------------------------------------------------------------


def test_direction_goes_from_ggt_to_sgd():
    record = measure_direction(DirectionTask(seed=0, steps=10))
    assert record["cosines"] == sorted(record["cosines"])
    assert record["cosines"][0] < 0.95
    assert record["cosines"][-1] > 0.999


@pytest.mark.parametrize(
    ("differences", "gain", "no_gain", "little"),
    [
        ([-0.5, -0.6, -0.5, -0.4, -0.5], True, False, False),
        ([0.5, 0.6, 0.5, 0.4, 0.5], False, True, False),
        ([0.001, -0.002, 0.001, 0.0, 0.001], None, True, True),
        ([-0.5, -0.6], None, None, None),
    ],
)
def test_judges_of_ablations(differences, gain, no_gain, little):
    assert ablations._is_gain(differences, 0.1) is gain
    assert ablations._is_no_gain(differences, 0.1) is no_gain
    assert ablations._is_little(differences, 0.1) is little


def test_few_or_diverged_seeds_decide_nothing():
    chosen, _, records = made_up("S1", AS_IN_THE_PAPER)
    few = [record for record in records if record["seed"] < 3]
    undecided = [v for v in chosen.verdicts(few, "ggt") if "inside of its grid" not in v.statement]
    assert {v.holds for v in undecided} == {None}
    assert all(v.ours.endswith("; undecided: 3 seeds, and 5 are the fewest that decide") for v in undecided)
    assert all(map(lacks_seeds, undecided))
    assert not any("undecided" in v.ours for v in chosen.verdicts(records, "ggt"))
    assert is_negative([-1.0] * 9 + [math.inf]) is None
    assert stdev([1.0, math.inf]) == math.inf


# ---- P2 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("difference", "diagonal", "expected"), [(1e-9, 1e-1, True), (1e-3, 1e-3, False)])
def test_relatives_are_judged_by_their_dense_form_and_by_the_diagonal(difference, diagonal, expected):
    chosen = experiment("P2")
    tasks = chosen.first(Settings(seeds=5))
    runs = [task for task in tasks if isinstance(task, Run)]
    rates = sorted({run.lr for run in runs})

    def end(run):
        best = 1e-2 if "FullMatrix" in run.optimizer else diagonal
        return best * (1 + 0.01 * run.seed) * (1.0 if run.lr == rates[2] else 3.0)

    records = [landscape_record(run, end(run)) for run in runs]
    records += [{"member": task.member, "difference": difference} for task in tasks if not isinstance(task, Run)]
    assert {verdict.holds for verdict in chosen.verdicts(records, "ggt")} == {expected}


def test_a_member_with_other_options_is_not_its_dense_form(monkeypatch):
    assert compare_with_dense(DenseTask("RMSprop", 0, 30))["difference"] < 1e-8
    dense, options = full_matrix_relatives._MEMBERS["RMSprop"]
    monkeypatch.setitem(
        full_matrix_relatives._MEMBERS, "RMSprop", (lambda g, **o: dense(g, **{**o, "alpha": 0.9}), options)
    )
    assert compare_with_dense(DenseTask("RMSprop", 0, 30))["difference"] > 1e-2
