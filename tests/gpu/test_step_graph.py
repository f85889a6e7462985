"""cuda_graph=True: the optimizer's own graph makes the steps that are made without it, whatever changes in between."""

import copy

import pytest
import torch
from test_step import OPTIONS, Run
from torch import nn

import torch_ggt
from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import backends, whiten
from torch_ggt import step as step_module

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:GGT skipped a step"),
]


KERNELS = torch.cuda.is_available() and hasattr(backends.choose(torch.device("cuda", 0)), "table")  # no graph without


def both(**options):
    return Run("cuda", **options), Run("cuda", cuda_graph=True, **options)


def is_graph(optimizer):
    return optimizer._graph._graph is not None


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
    assert is_graph(graphed.optimizer) == (KERNELS and options.get("window_dtype") != torch.float64)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adam", "polar", "whiten", "a callable"])
def test_a_graph_of_finished_steps_and_of_whitened_gradients(name, stored):
    """The same bits as without a graph; a parameter moves, and a gradient is not finite, on the way."""
    finish = {"adam": "adam", "polar": "polar", "a callable": torch.tanh}.get(name)
    runs = []
    for cuda_graph in (False, True):
        options, generator = {"window": 6, "window_dtype": stored, "cuda_graph": cuda_graph}, torch.Generator()
        generator.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(s, generator=generator).cuda()) for s in ((20, 30), (7,), (65,))]
        if name == "whiten":
            optimizer = whiten(torch.optim.AdamW(parameters, lr=1e-2), **options)
        else:
            optimizer = torch_ggt.GGT(parameters, lr=1e-2, finish=finish, **options)
        found = []
        for step in range(25):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator).cuda()
            if step == 15:
                parameters[1].data = parameters[1].data.clone()
            if step == 20 and name != "whiten":
                parameters[2].grad[3] = torch.nan
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
            optimizer.step()
            found.append(torch.cat([p.detach().flatten() for p in parameters]))
        runs.append(torch.stack(found))
        graph = getattr(optimizer, "whitening", optimizer)._graph
        assert (graph._graph is not None) == (KERNELS and cuda_graph and name != "a callable")
    if name == "whiten":
        assert torch.equal(*runs)
    else:  # lr·u is rounded before it is applied, in a graph alone
        torch.testing.assert_close(*runs, rtol=1e-5, atol=1e-6)


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
        assert is_graph(graphed.optimizer) == (KERNELS and (3 <= step < 10 or step >= 18))


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
                optimizer.add_param_group({"params": [late], "lr": 3e-3, "betas": (0.8, 0.95)})
            if step == 40:
                run.optimizer = copy.deepcopy(optimizer)
                run.parameters = [p for group in run.optimizer.param_groups for p in group["params"]]
            if step == 50:
                run.parameters[1].data = run.parameters[1].data.clone()  # at another address
            run.give_gradients(step)
            run.optimizer.step()
        assert torch.equal(plain.values(), graphed.values()), step
    assert is_graph(graphed.optimizer) == KERNELS


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_no_synchronization_not_even_to_capture(tensor_lr):
    run = Run("cuda", cuda_graph=True)
    if tensor_lr:
        run.optimizer.param_groups[0]["lr"] = torch.tensor(1e-2, device="cuda")
    run.give_gradients(0)
    run.optimizer.step()
    for step in range(1, 10):
        run.give_gradients(step)
        try:
            torch.cuda.set_sync_debug_mode("error")
            run.optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert is_graph(run.optimizer) == KERNELS


@pytest.mark.parametrize("options", [{"nonfinite": "raise"}, {"solver": "eigh"}, {"jitter": 0.0}], ids=str)
def test_steps_that_cannot_be_a_graph(options):
    plain, graphed = both(**options)
    for step in range(10):
        for run in (plain, graphed):
            run.give_gradients(step)
            run.optimizer.step()
    assert torch.equal(plain.values(), graphed.values())
    assert not is_graph(graphed.optimizer)


def test_a_rate_on_the_cpu():
    plain, graphed = both()
    for step in range(10):
        for run in (plain, graphed):
            run.optimizer.param_groups[0]["lr"] = torch.tensor(1e-2 / (1 + step))
            run.give_gradients(step)
            run.optimizer.step()
    assert torch.equal(plain.values(), graphed.values())
    assert not is_graph(graphed.optimizer)


@pytest.mark.skipif(not KERNELS, reason="needs the kernels")
def test_a_step_that_cannot_be_captured_is_made_without(monkeypatch):
    plain, graphed = both()
    advance = step_module.advance

    def fail_in_a_capture(*arguments):
        if torch.cuda.is_current_stream_capturing():
            raise torch.cuda.OutOfMemoryError("no more")
        advance(*arguments)

    monkeypatch.setattr(step_module, "advance", fail_in_a_capture)
    for step in range(10):
        for run in (plain, graphed):
            run.give_gradients(step)
            if run is graphed and step == 3:
                with pytest.warns(UserWarning, match=r"OutOfMemoryError: no more\); going on without one"):
                    run.optimizer.step()
            else:
                run.optimizer.step()
        assert isinstance(graphed.optimizer.param_groups[0]["lr"], float)
        assert torch.equal(plain.values(), graphed.values()), step
    assert not is_graph(graphed.optimizer)


def test_a_matrix_without_a_gradient_counts_skipped_steps_too():
    found = []
    for cuda_graph in (False, True):
        generator = torch.Generator().manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size, generator=generator).cuda()) for size in (50, 70)]
        groups = [{"params": [p]} for p in parameters]
        optimizer = GGT(groups, lr=1e-2, window=5, scope="group", cuda_graph=cuda_graph)
        for step in range(40):
            for index, p in enumerate(parameters):
                p.grad = torch.randn(p.shape, generator=generator).cuda()
                if step in (15, 25) and index == 0:
                    p.grad[0] = torch.nan
                if 10 <= step < 20 and index == 1:
                    p.grad = None
            optimizer.step()
        assert is_graph(optimizer) == (KERNELS and cuda_graph)
        counts = [int(optimizer.state[p]["skipped"]) for p in parameters]
        found.append((counts, torch.cat([p.detach().cpu() for p in parameters])))
    assert found[0][0] == found[1][0] == [2, 2]
    assert torch.equal(found[0][1], found[1][1])


def test_inside_another_graph():
    run = Run("cuda", cuda_graph=True)
    for step in range(3):
        run.give_gradients(step)
        run.optimizer.step()
    torch.cuda.synchronize()

    def capture():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")  # torch warns of graphs that are empty
            run.optimizer.step()

    with pytest.raises(RuntimeError, match="capturable=True, without cuda_graph"):
        capture()


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
                del loss  # with its graph, which is of this stream
        assert is_graph(optimizer) == (KERNELS and cuda_graph)
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
