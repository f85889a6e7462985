"""Result files survive what a kill leaves behind; runs say when they diverge."""

import json
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch

from ggt_lab.problems import problem_class
from ggt_lab.runs.environment import command_line, environment
from ggt_lab.runs.results import Results
from ggt_lab.runs.short_run import train

CPU = torch.device("cpu")


def test_append_and_read(tmp_path):
    results = Results(tmp_path / "deep" / "results.jsonl")
    assert list(results) == []
    results.append({"key": "a", "loss": 1.5})
    results.append({"key": "b"})
    assert [record["key"] for record in results] == ["a", "b"]
    assert results.finished() == {"a", "b"}


def test_a_line_cut_off_by_a_kill(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    results.append({"key": "a"})
    with results.path.open("a") as file:
        file.write('{"key": "b", "cur')
    with pytest.warns(UserWarning, match=r"results.jsonl:2 is damaged"):
        assert results.finished() == {"a"}
    results.append({"key": "c"})  # is not swallowed by the damaged line
    with pytest.warns(UserWarning, match="damaged"):
        assert results.finished() == {"a", "c"}


def test_what_is_not_json_is_refused_not_written(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    with pytest.raises(ValueError, match="JSON compliant"):
        results.append({"key": "a", "loss": float("nan")})
    assert list(results) == []


def test_environment_is_json():
    assert {"torch", "python", "command", "torch_ggt"} <= json.loads(json.dumps(environment())).keys()


def test_train_evaluates_evenly_and_from_the_start():
    problem = problem_class("logistic")(0, CPU)
    outcome = train(problem, lambda p, lr: torch.optim.SGD(p, lr=lr), 0.5, steps=100, evaluations=4)
    assert outcome.status == "done"
    assert [point["step"] for point in outcome.curve] == [0, 25, 50, 75, 100]
    assert outcome.curve[-1]["loss"] < outcome.curve[0]["loss"]
    assert [point["seconds"] for point in outcome.curve] == sorted(point["seconds"] for point in outcome.curve)


def test_a_diverging_run_is_recorded_as_such():
    problem = problem_class("sparse-noise")(0, CPU)
    outcome = train(problem, lambda p, lr: torch.optim.SGD(p, lr=lr), 1e3, steps=400)
    assert outcome.status == "diverged"
    assert outcome.curve[0]["step"] == 0


@pytest.mark.parametrize(
    ("module", "script", "expected"),
    [
        ("ggt_lab.__main__", "src/ggt_lab/__main__.py", "ggt R1 --entrants 'SGD low'"),
        (None, "src/ggt_lab/__main__.py", "ggt R1 --entrants 'SGD low'"),  # in a process that the command started
        ("package.module", "module.py", "python -m package.module R1 --entrants 'SGD low'"),
        (None, "benchmarks/script.py", "script.py R1 --entrants 'SGD low'"),
        (None, "bin/ggt", "ggt R1 --entrants 'SGD low'"),
    ],
)
def test_the_command_can_be_pasted(monkeypatch, module, script, expected):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(module, None) if module else None)
    monkeypatch.setattr(sys, "argv", [script, "R1", "--entrants", "SGD low"])
    assert command_line() == expected
