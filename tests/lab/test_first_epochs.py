"""The looks at the CNN's first epochs: what is done with the lengths of the tensors' steps."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks/first_epochs.py"


@pytest.mark.parametrize(("norms", "lengths"), [("as they are", [3.0, 4.0]), ("equal", [1.0, 1.0])])
def test_steps_of_sgd(norms, lengths):
    """A first step is as long as the gradient, or all are 1."""
    steps = step_lengths(norms, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    torch.testing.assert_close(steps, torch.tensor(lengths))


def test_steps_in_the_proportions_of_the_gradients():
    """Those of an optimizer that makes them equally long are stretched back; their root mean square stays."""
    equally_long = step_lengths("as they are", lambda parameters: torch.optim.Adam(parameters, lr=1.0))
    steps = step_lengths("gradient", lambda parameters: torch.optim.Adam(parameters, lr=1.0))
    torch.testing.assert_close(equally_long, torch.full((2,), 2.0))
    torch.testing.assert_close(steps[1] / steps[0], torch.tensor(4 / 3))
    torch.testing.assert_close(steps.square().mean().sqrt(), torch.tensor(2.0))


def step_lengths(norms, make):
    parameters = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
    for parameter, length in zip(parameters, (3.0, 4.0), strict=True):
        parameter.grad = torch.full((4,), length / 2)
    around = runpy.run_path(str(SCRIPT))["Norms"](parameters, norms)
    with around.around_step():
        make(parameters).step()
    return torch.stack([torch.linalg.vector_norm(parameter.detach()) for parameter in parameters])


def test_a_run(tmp_path):
    """From the command to a line of results; the lengths matter from the second step on."""
    for norms in ("as they are", "equal", "gradient"):
        arguments = [tmp_path / "out.jsonl", "GGT(window=3)", "0.01", "--norms", norms, "--warm-up", "2"]
        tiny = ["--problem", "cifar10-tiny", "--device", "cpu", "--epochs", "2"]
        subprocess.run([sys.executable, SCRIPT, *arguments, *tiny], check=True)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    losses = [record["train_loss_of_tenths"] for record in records]
    assert [len(each) for each in losses] == [8, 8, 8]
    assert len({each[0] for each in losses}) == 1
    assert len({each[2] for each in losses}) == 3
    assert [record["norms"] for record in records] == ["as they are", "equal", "gradient"]
