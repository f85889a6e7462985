"""Optimizers alone and whitened: the search for rate and momentum, the scores, and the page that shows them."""

import importlib.util
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ggt_lab.runs.results import Results

ROOT = Path(__file__).parents[2]
HOW = "50 rows, the length of the gradient"
KEPT = (50, True, 0.0)
PAGE = ROOT / "docs/whitening-evidence.md"


@pytest.fixture(scope="module")
def pairs():
    spec = importlib.util.spec_from_file_location("whitened_pairs", ROOT / "benchmarks/whitened_pairs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["whitened_pairs"] = module
    spec.loader.exec_module(module)
    return module


def made_up(trial, loss):
    """The record of a run that ended with this loss; it diverged if the loss is not finite."""
    status = "done" if math.isfinite(loss) else "diverged"
    points = [{"step": trial.steps, "loss": loss, "error": 10 * loss}]
    return {"key": trial.key, **asdict(trial), "metric": "error", "status": status, "points": points}


def searched(pairs, loss_of):
    """All runs of an entrant, on a made-up landscape of rate and momentum."""
    entrant, records = pairs.Entrant("pinn-poisson", "Muon", 50), []
    while trials := pairs.next_trials(entrant, records, steps=9):
        records += [made_up(trial, loss_of(trial.lr, trial.momentum)) for trial in trials]
    return records


@pytest.mark.parametrize(
    ("best_rate", "last_rates", "note"),
    [
        (0.012, (10**-1.75, 10**-1.875), ""),
        (0.008, (10**-2.25, 10**-2.125), ""),
        (0.0001, (10**-3.5, 10**-4), "the lowest rate tried"),
        (0.12, (0.1, 10**-0.5), ""),
    ],
)
def test_search(pairs, best_rate, last_rates, note):
    """Four rates, two more momenta, two more rates between the best ones or beyond the edge; then three fresh seeds."""
    records = searched(pairs, lambda lr, momentum: abs(math.log(lr / best_rate)) + abs(momentum - 0.94))
    tuning = [r for r in records if r["seed"] == 100]
    assert (len(tuning), [r["seed"] for r in records[8:]]) == (8, [0, 1, 2])
    assert [r["momentum"] for r in tuning] == [0.9, 0.9, 0.9, 0.9, 0.8, 0.95, 0.95, 0.95]
    assert [r["lr"] for r in tuning[-2:]] == pytest.approx(last_rates)
    best = min(tuning, key=lambda r: r["points"][-1]["loss"])
    assert {(r["lr"], r["momentum"]) for r in records[8:]} == {(best["lr"], 0.95)}
    (line,) = pairs.choices_table(records, pairs.scores(records)).splitlines()[2:]
    assert line == f"| Poisson | Muon | {HOW} | {best['lr']:.2g} | 0.95 | 8 | {note} |"


def test_a_search_in_which_all_diverges(pairs):
    records = searched(pairs, lambda lr, momentum: math.inf)
    assert len(records) == 4
    assert pairs.scores(records) == {}


def test_scores_and_tables(pairs):
    """The lower mean is bold, whichever it is; a run that diverged and a pair that is missing are shown as such."""
    errors = {
        ("Muon", 0): (1.0, 2.0, 3.0),
        ("Muon", 50): (0.1, 0.1, 0.4),
        ("AdamW", 0): (0.3, 0.3, 0.3),
        ("AdamW", 50): (0.5, 0.4, 0.6),
        ("SOAP", 0): (1.0, 1.0, 1.0),
        ("SOAP", 50): (0.1, 0.1, math.inf),
        ("NorMuon", 0): (1.0, 1.0),
    }
    records = [
        made_up(pairs.Trial("pinn-poisson", name, window, 0.01, 0.9, seed, 9), value / 10)
        for (name, window), values in errors.items()
        for seed, value in [(100, values[0]), *enumerate(values)]
    ]
    found = pairs.scores(records)
    assert found[pairs.Entrant("pinn-poisson", "Muon", 0)].error == pytest.approx(1 / math.sqrt(3))
    assert pairs.table(found, KEPT).splitlines()[2:6] == [
        "| Poisson, relative error | AdamW | **0.3 ± 0** | 0.5 ± 0.06 | 0.6 | -3.5 |",
        "| Poisson, relative error | Muon | 2 ± 0.6 | **0.2 ± 0.1** | 10 | +3.1 |",
        "| Poisson, relative error | NorMuon | 1 ± 0 (2 of 3 seeds) | not run |  |  |",
        "| Poisson, relative error | SOAP | **1 ± 0** | 1 of 3 diverged | – | – |",
    ]
    assert pairs.count(found, KEPT) == (1, 3)
    assert "incomplete" in pairs.best_table(found, KEPT)


def test_one_run(pairs):
    """A whitened run follows the cosine to its end and can be read as JSON."""
    record = pairs.execute(pairs.Trial("pinn-poisson", "NorMuon", 5, 0.01, 0.8, 0, 4, keep_norm=False))
    assert (
        record["spec"]
        == "whiten(NorMuonAndAdamW(weight_decay=0.0, momentum=0.8), window=5, keep_norm=False, shrinkage=0.0)"
    )
    assert (record["status"], record["points"][-1]["step"]) == ("done", 4)
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("2026-11-18-whitened-pairs", "kept"),
        ("2026-11-18-whitened-pairs", "unit"),
        ("2026-11-18-whitened-pairs", "defaults"),
        ("2026-11-18-whitened-pairs-ten", "unit"),
    ],
)
def test_the_page_shows_the_record(pairs, folder, name):
    """Every table of the page, computed again from the runs."""
    method, record = pairs.METHODS[name], ROOT / "records" / folder
    config = json.loads((record / "config.json").read_text())
    records, seeds = list(Results(record / "results.jsonl")), config["seeds"]
    page, found = PAGE.read_text(), pairs.scores(records, seeds)
    tables = (pairs.table(found, method), pairs.best_table(found, method), pairs.burgers_errors(records, method, seeds))
    for text in tables:
        assert text in page
    wins, complete = pairs.count(found, method)
    assert f"({pairs.named(method)}) is lower than alone in {wins} of {complete} pairs" in page
    assert (record / f"summary_{name}.md").read_text() == pairs.summary(records, method, seeds) + "\n"
    assert config["runs"] == len(records)
    assert {r["steps"] for r in records} == {config["steps"]}


def test_the_ten_seeds_are_fresh_and_nothing_was_tuned_for_them(pairs):
    """The trials are those of the record with three seeds; what the page says of them in words."""
    first, ten = (
        list(Results(ROOT / "records" / name / "results.jsonl"))
        for name in ("2026-11-18-whitened-pairs", "2026-11-18-whitened-pairs-ten")
    )
    seeds = range(3, 13)
    assert {r["seed"] for r in ten} == {pairs.TUNING_SEED, *seeds}
    known = {r["key"]: r for r in first}
    assert all(known[r["key"]] == r for r in ten if r["seed"] == pairs.TUNING_SEED)
    scores = pairs.scores(ten, seeds)
    assert all(score.complete for score in scores.values())
    alone, whitened = (
        {e.optimizer: scores[e].values for e in scores if e.problem == "pinn-poisson" and e.window == window}["AdamW"]
        for window in (0, 50)
    )
    assert all(after < before for before, after in zip(alone, whitened, strict=True))
    assert pairs.best_table(scores, pairs.METHODS["unit"]) in (ROOT / "docs/results.md").read_text()
    together = pairs.scores([*first, *(r for r in ten if r["key"] not in known)], range(13))
    assert pairs.best_table(together, pairs.METHODS["unit"]) in PAGE.read_text()
    assert pairs.count(together, pairs.METHODS["unit"]) == (11, 12)


def test_other_seeds_are_an_argument(pairs):
    """The tables count the seeds that were asked for, and the others are left out."""
    entrant = pairs.Entrant("pinn-poisson", "Muon", 50)
    runs = {100: 1.0, 0: 9.0, 3: 1.0, 4: 3.0}
    records = [
        made_up(pairs.Trial("pinn-poisson", "Muon", 50, 0.01, 0.9, seed, 9), value / 10) for seed, value in runs.items()
    ]
    found = pairs.scores(records, [3, 4])
    assert found[entrant].values == pytest.approx((1.0, 3.0))
    assert found[entrant].complete
    assert not pairs.scores(records, [3, 4, 5])[entrant].complete
