"""The scan of landscapes: all seeds and rates at once give what the optimizers of the lab give one by one."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class

PATH = Path(__file__).parents[2] / "benchmarks" / "landscape_scan.py"


@pytest.fixture(scope="module")
def scan():
    spec = importlib.util.spec_from_file_location("landscape_scan", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["landscape_scan"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("SGD", "SGD"),
        ("diagonal", "DiagonalAdaptive"),
        ("full", "FullMatrixAdaptive"),
        ("full, soft 0.95", "FullMatrixAdaptive(beta2=0.95)"),
        ("full, hard 20", "PaperGGT(window=20, betas=(0.0, 1.0), eps=1e-4, jitter=0, adjust_lr_fn='original')"),
    ],
)
@pytest.mark.parametrize("problem", ["logistic", "barrier"])
def test_a_scan_is_many_runs_of_the_lab(scan, problem, name, spec):
    method = next(method for method in scan.METHODS if method.name == name)
    # Halved steps at high rates amplify rounding: a longer comparison on the barrier would compare noise.
    steps = 30 if problem == "logistic" else 10
    found = scan.train(scan.Case(problem, 0), method, seeds=2, steps=steps)[-1]
    for place in (3, 7):
        world = problem_class(problem)(1, torch.device("cpu"))
        optimizer = optimizer_factory(spec)(world.parameters(), scan.RATES[place])
        for _ in range(steps):
            optimizer.zero_grad()
            if problem == "barrier":
                world._return_inside()
            world.terms(slice(None)).mean().backward()
            optimizer.step()
        with torch.no_grad():
            expected = world.evaluate()["suboptimality"]
        assert 10 ** found[1, place].item() == pytest.approx(expected, rel=1e-4)


def test_paired_tests(scan):
    assert scan.paired([0.0, 0.1, 0.2], [1.0, 1.1, 1.3]).endswith("holds")
    assert scan.paired([1.0, 1.1, 1.3], [0.0, 0.1, 0.2]).endswith("**reverse**")
    assert scan.paired([0.0, 1.0, 0.0], [0.5, 0.0, 0.6]).endswith("undecided")
    assert scan.paired([0.0, float("inf")], [0.0, 0.0]) == "diverged"
