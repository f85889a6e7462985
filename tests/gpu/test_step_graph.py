"""cuda_graph=True: the optimizer's own graph makes the steps that are made without it, whatever changes in between."""

import copy

import pytest
import torch
from test_step import OPTIONS, Run
from torch import nn

from torch_ggt import GGT
from torch_ggt.kernels import gpu_kernels

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:GGT skipped a step"),
]


def both(**options):
    return Run("cuda", **options), Run("cuda", cuda_graph=True, **options)


def is_graph(run):
    return run.optimizer._graph._graph is not None


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_graph_makes_the_same_steps(options):
    plain, graphed = both(**options)
    for step in range(40):
        for run in (plain, graphed):
            for group in run.optimizer.param_groups:
                group["lr"] = 1e-2 / (1 + step)
            run.give_gradients(step, bad=step == 20)
            run.optimizer.step()
        assert torch.equal(plain.values(), graphed.values()), step
    assert graphed.optimizer.skipped == 1
    by_kernels = options.get("window_dtype") != torch.float64 and gpu_kernels(torch.device("cuda", 0)) is not None
    assert is_graph(graphed) == by_kernels


def test_gradients_elsewhere_and_missing_ones():
    kept = []
    plain, graphed = both()
    for step in range(40):
        for run in (plain, graphed):
            run.give_gradients(step, partly=10 <= step < 15)
            for p in run.parameters:
                kept.append(p.grad)
                p.grad = None if p.grad is None else p.grad.clone()
            run.optimizer.step()
        assert torch.equal(plain.values(), graphed.values()), step


def test_what_changes_between_steps():
    """Options, the state, and the parameters themselves."""
    plain, graphed = both(weight_decay=0.1)
    for step in range(60):
        for run in (plain, graphed):
            optimizer = run.optimizer
            if step == 10:
                optimizer.param_groups[0]["weight_decay"] = 0.0
            if step == 15:
                optimizer.param_groups[0]["betas"] = (0.8, 0.95)
            if step == 20:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if step == 30:
                torch.manual_seed(0)
                late = nn.Parameter(torch.randn(70, device="cuda"))
                run.parameters.append(late)
                optimizer.add_param_group({"params": [late], "lr": 3e-3})
            if step == 40:
                run.optimizer = copy.deepcopy(optimizer)
                run.parameters = [p for group in run.optimizer.param_groups for p in group["params"]]
            if step == 50:
                run.parameters[1].data = run.parameters[1].data.clone()  # at another address
            run.give_gradients(step)
            run.optimizer.step()
        assert torch.equal(plain.values(), graphed.values()), step
    assert is_graph(graphed) == (gpu_kernels(torch.device("cuda", 0)) is not None)


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_no_synchronization_not_even_to_capture(tensor_lr):
    run = Run("cuda", cuda_graph=True)
    if tensor_lr:
        run.optimizer.param_groups[0]["lr"] = torch.tensor(1e-2, device="cuda")
    run.give_gradients(0)
    run.optimizer.step()
    for step in range(1, 10):
        run.give_gradients(step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            run.optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", [{"nonfinite": "raise"}, {"solver": "eigh"}, {"jitter": 0.0}], ids=str)
def test_steps_that_cannot_be_a_graph(options):
    plain, graphed = both(**options)
    for step in range(10):
        for run in (plain, graphed):
            run.give_gradients(step)
            run.optimizer.step()
    assert torch.equal(plain.values(), graphed.values())
    assert not is_graph(graphed)


def test_inside_another_graph():
    run = Run("cuda", cuda_graph=True)
    for step in range(3):
        run.give_gradients(step)
        run.optimizer.step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="capturable=True, without cuda_graph"), torch.cuda.graph(graph):
        run.optimizer.step()


@pytest.mark.parametrize("scope", ["model", "group", "parameter"])
def test_training(scope):
    """Autograd's own gradients, set to None in between, on two streams in turn."""
    losses = []
    for cuda_graph in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1)).cuda()
        optimizer = GGT(model.parameters(), lr=1e-2, window=8, scope=scope, cuda_graph=cuda_graph)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=60, cycle_momentum=False)
        streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
        found = []
        for step in range(60):
            stream = streams[step // 20 % 2]
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                x = torch.randn(64, 20, generator=torch.Generator().manual_seed(step)).cuda()
                optimizer.zero_grad()
                loss = (model(x) - x[:, :1]).square().mean()
                loss.backward()
                optimizer.step()
                schedule.step()
                found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
