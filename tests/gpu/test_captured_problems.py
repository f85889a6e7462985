"""Deep problems whose steps are CUDA graphs, and compiled ones, give the gradients of those that are not."""

import pytest
import torch

from ggt_lab.problems import problem_class
from ggt_lab.runs.long_run import LongRun, advance

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
NAMES = ["cifar10", "cifar10-vgg", "ptb-chars", "ptb-chars-transformer", "ptb-words"]
CUDA = torch.device("cuda", 0)


def tiny(name, **settings):
    return type(f"Tiny{name}", (problem_class(f"{name}-tiny"),), settings)(0, CUDA)


@pytest.mark.parametrize(
    ("name", "autocast", "compiled"),
    [
        *((name, autocast, False) for name in NAMES for autocast in (False, True)),
        *((name, False, True) for name in NAMES if problem_class(name).compiled),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch.compile's own, in torch 2.11
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # and its advice
def test_captured_gradients_are_the_same(name, autocast, compiled, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the two may choose different convolutions
    faster = {"captured": True, "compiled": compiled}
    eager, captured = (tiny(name, autocast=autocast, l2=1e-3, clip=1.0, **how) for how in ({"captured": False}, faster))
    optimizers = [torch.optim.SGD(problem.parameters(), lr=1e-3) for problem in (eager, captured)]
    for step in range(2 * eager.steps_per_epoch):
        for problem, optimizer in zip((eager, captured), optimizers, strict=True):
            problem.take_gradients()
            optimizer.step()
            if step % 3 == 2:  # in between, the model is in another mode
                problem.evaluate()
        for ours, theirs in zip(captured.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-2 if autocast else 1e-3, atol=1e-4)
    assert captured._graph is not None
    assert list(captured.model.state_dict()) == list(eager.model.state_dict())
    assert eager.evaluate() == pytest.approx(captured.evaluate(), rel=1e-2)


@pytest.mark.parametrize("optimizer", ["GGT(window=3)", "Adagrad", "MuonAndAdamW"])
def test_a_captured_run_goes_on_where_it_was_left(optimizer, tmp_path):
    run = LongRun("ptb-words-tiny", optimizer, 1e-3, 0, 2, settings=(("captured", True),))
    whole = advance(run, tmp_path)
    clock = iter([0.0] * 7 + [1e9] * 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggt_lab.runs.long_run.time.monotonic", lambda: next(clock))
        assert advance(run, tmp_path, deadline=1.0) is None
    resumed = advance(run, tmp_path)
    assert resumed["curve"][-1]["validation_loss"] == pytest.approx(whole["curve"][-1]["validation_loss"], rel=1e-3)
