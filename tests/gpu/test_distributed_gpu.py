"""Split windows on one GPU: NCCL with one rank, several ranks that share the GPU by gloo, and a CPU as second device.

One GPU is all this needs. What it cannot show is NCCL between GPUs; docs/distributed.md says so.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import backends

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore", "error:GGT", "ignore:GGT skipped"),  # torch's, about itself
]
CUDA = torch.device("cuda", 0)
MODES = ("ddp", "fsdp", "hsdp", "tp", "offload")


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    """A process group of one rank: NCCL for the GPU, gloo for what is offloaded to the CPU."""
    torch.cuda.set_device(CUDA)
    store = tmp_path_factory.mktemp("nccl") / "store"
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Model(nn.Module):
    """Odd shapes, and a tensor that is large enough for many pieces."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(70, 333)
        self.second = nn.Linear(333, 50)
        self.last = nn.Linear(50, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def make(mode, **options):
    torch.manual_seed(0)
    model = Model().to(CUDA)
    arguments = {"lr": 1e-3, "window": 9, "weight_decay": 0.1, **options}
    if mode == "ddp":
        arguments["process_group"] = dist.group.WORLD
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    elif mode == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
    elif mode == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cuda", (1, 1), mesh_dim_names=("replica", "shard")))
    elif mode == "tp":
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cuda", (1,)), plan)
    elif mode == "offload":
        fully_shard(model, mesh=init_device_mesh("cuda", (1,)), offload_policy=CPUOffloadPolicy())
    return model, GGT(model.parameters(), **arguments)


def compute_gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 73, generator=generator).to(CUDA).split((70, 3), 1)
    model.zero_grad()
    (model(x) - y).square().mean().backward()


def train(model, optimizer, start, stop):
    for step in range(start, stop):
        compute_gradients(model, step)
        optimizer.step()


def values(model):
    whole = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]  # one rank has all of it
    return torch.cat([p.detach().cpu().flatten() for p in whole])


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"scope": "parameter"}, {"window_dtype": torch.bfloat16}], ids=str)
def test_one_rank_of_nccl_is_one_process(nccl, mode, options):
    runs = [make(mode, **options), make("single", **options)]
    for model, optimizer in runs:
        train(model, optimizer, 0, 60)
    assert relative(values(runs[0][0]), values(runs[1][0])) < 1e-4
    if mode in ("ddp", "fsdp", "hsdp") and hasattr(backends.choose(CUDA), "table"):  # all parts of a step are kernels
        for block in runs[0][1].attached_blocks():
            assert block.addresses.keys() == {"gradients", "values"}


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "hsdp"])
def test_a_step_waits_for_nothing(nccl, mode):
    model, optimizer = make(mode)
    train(model, optimizer, 0, 3)
    compute_gradients(model, 3)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_goes_on_bitwise(nccl, mode, tmp_path):
    model, optimizer = make(mode)
    train(model, optimizer, 0, 12)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(state, checkpoint_id=tmp_path / "checkpoint")
    train(model, optimizer, 12, 20)

    other, other_optimizer = make(mode)
    state = dict(zip(("model", "optimizer"), get_state_dict(other, other_optimizer), strict=True))
    dcp.load(state, checkpoint_id=tmp_path / "checkpoint")
    set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    train(other, other_optimizer, 12, 20)
    assert torch.equal(values(other), values(model))


@pytest.mark.parametrize("mode", MODES)
def test_a_nan_is_skipped(nccl, mode):
    model, optimizer = make(mode)
    train(model, optimizer, 0, 5)
    before = values(model)
    compute_gradients(model, 5)
    gradient = next(model.parameters()).grad
    (gradient.to_local() if isinstance(gradient, DTensor) else gradient)[0] = torch.nan
    optimizer.step()
    assert optimizer.skipped == 1
    assert torch.equal(values(model), before)
    train(model, optimizer, 6, 9)
    assert bool(values(model).isfinite().all())


def test_the_all_gather_of_nccl(nccl):
    """With one rank a step leaves it out; here it runs: as bytes, in buckets, without waiting, and changes nothing."""
    model, optimizer = make("ddp")
    train(model, optimizer, 0, 2)
    before = values(model)
    parameters = [p.detach() for p in model.parameters()]
    parameters += [p.to(torch.bfloat16) for p in parameters]
    optimizer._live.columns._gathering.share(parameters)
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer._live.columns._gathering.share(parameters)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(values(model), before)


def test_offloaded_state_stays_on_the_cpu(nccl):
    model, optimizer = make("offload")
    train(model, optimizer, 0, 2)
    assert all(entry["window"].device.type == "cpu" for entry in optimizer.state.values())
    assert all(e["window"].to_local().device.type == "cpu" for e in optimizer.state_dict()["state"].values())


# ---- several ranks that share the GPU --------------------------------------------------------------------------------
# NCCL wants a GPU for each rank. Over gloo, torch's own collectives of FSDP and DTensor crash on CUDA tensors
# (pytorch/pytorch#132471, #152645), but all-reduce does not, and nothing else is in a step: shards made by hand do.


def ddp_on_one_gpu(scopes):
    """Parameters after 40 steps of DDP; ranks talk by gloo, over the host."""
    import modes

    modes.DEVICE = "cuda"
    found = {}
    mode = "ddp" if dist.get_world_size() > 1 else "single"
    for scope in scopes:
        model, optimizer = modes.make(mode, torch.float32, scope)
        modes.train(mode, model, optimizer, 0, 40)
        found[scope] = {name: p.cpu() for name, p in modes.whole_parameters(model).items()}
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_ranks_that_share_a_gpu_are_one_process(ranks):
    from ranks import on_ranks

    scopes = ("model", "parameter")
    results = on_ranks(ranks, ddp_on_one_gpu, scopes)
    (expected,) = on_ranks(1, ddp_on_one_gpu, scopes)
    for scope in scopes:
        for found in results:
            for name, value in expected[scope].items():
                assert relative(found[scope][name], value) < 1e-4, (scope, name)
                assert torch.equal(found[scope][name], results[0][scope][name])


SHAPES = [(70, 333), (333,), (3, 50), (2,), (1, 1030)]


def mesh_shape(layout, ranks):
    return (2, ranks // 2) if layout == "hsdp" else (ranks,)


def placements_of(layout, tensor):
    last = Shard(tensor.ndim - 1 if layout == "tp" else 0)
    return [Replicate(), last] if layout == "hsdp" else [last]


def own_part(layout, tensor, coordinate, ranks):
    """What torch's chunks give to the rank at this coordinate of the mesh; nothing, where they are too few."""
    for placement, index, size in zip(
        placements_of(layout, tensor), coordinate, mesh_shape(layout, ranks), strict=True
    ):
        if placement.is_shard():
            chunks = tensor.chunk(size, placement.dim)
            tensor = chunks[index] if index < len(chunks) else tensor.narrow(placement.dim, 0, 0)
    return tensor.contiguous()


def trained_on(place, options):
    """Parameters, put somewhere by ``place``, after 30 steps on prescribed gradients, one of which is not a number."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(place(torch.randn(shape, generator=generator))) for shape in SHAPES]
    optimizer = GGT(parameters, lr=1e-3, window=9, weight_decay=0.1, **options)
    for step in range(30):
        for index, parameter in enumerate(parameters):
            gradient = torch.randn(SHAPES[index], generator=generator)
            if step == 12 and index == 0:
                gradient[0, 0] = torch.nan
            parameter.grad = place(gradient)
        optimizer.step()
    assert optimizer.skipped == 1
    return [p.detach() for p in parameters]


def trained_shards(layout, options):
    """This rank's coordinate in the mesh, and its parts of the parameters."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cuda", mesh_shape(layout, ranks))

    def place(tensor):
        local = own_part(layout, tensor, mesh.get_coordinate(), ranks).to(CUDA)
        layout_of = {"run_check": False, "shape": tensor.shape, "stride": tensor.stride()}
        return DTensor.from_local(local, mesh, placements_of(layout, tensor), **layout_of)

    return mesh.get_coordinate(), [p.to_local().cpu() for p in trained_on(place, options)]


@pytest.mark.parametrize(("ranks", "layout"), [(2, "fsdp"), (4, "fsdp"), (4, "hsdp"), (2, "tp")])
@pytest.mark.parametrize("options", [{}, {"scope": "parameter", "window_dtype": torch.bfloat16}], ids=str)
def test_shards_of_ranks_that_share_a_gpu(ranks, layout, options):
    """Uneven and empty shards in the kernels: 4 ranks leave some of them nothing of the smallest tensors."""
    from ranks import on_ranks

    expected = [p.cpu() for p in trained_on(lambda tensor: tensor.to(CUDA), options)]
    results = on_ranks(ranks, trained_shards, layout, options)
    for coordinate, found in results:
        for value, whole in zip(found, expected, strict=True):
            part = own_part(layout, whole, coordinate, ranks)
            assert value.shape == part.shape
            assert value.numel() == 0 or relative(value, part) < 1e-4
    if layout == "hsdp":  # ranks 0 and 2, 1 and 3 are replicas
        for (_, found), (_, replica) in zip(results[:2], results[2:], strict=True):
            assert all(torch.equal(*pair) for pair in zip(found, replica, strict=True))


# ---- several devices in one process ----------------------------------------------------------------------------------


def parameters_on(second):
    torch.manual_seed(0)
    starts = [torch.randn(shape) for shape in ((7, 12), (12,), (12, 10), (10, 2), (1030,))]
    return [nn.Parameter(start.to(second if index % 2 else "cpu")) for index, start in enumerate(starts)]


@pytest.mark.parametrize("options", [{"scope": "group"}, {"scope": "parameter"}], ids=str)
def test_matrices_on_the_cpu_and_on_the_gpu(options):
    """Each matrix is on one device; a NaN on one of them is skipped by both."""
    ends = []
    for second in (CUDA, "cpu"):
        parameters = parameters_on(second)
        groups = [{"params": parameters[::2]}, {"params": parameters[1::2]}]
        optimizer = GGT(groups, lr=1e-2, window=6, solver="cholesky", **options)
        for step in range(20):
            generator = torch.Generator().manual_seed(step)
            for index, p in enumerate(parameters):
                p.grad = torch.randn(p.shape, generator=generator).to(p.device)
                if step == 6:
                    p.grad.fill_(0.0 if index % 2 else torch.nan)
            optimizer.step()
        assert optimizer.skipped == 1
        ends.append(torch.cat([p.detach().cpu().flatten() for p in parameters]))
    assert relative(*ends) < 1e-4


def test_a_matrix_over_both_is_refused():
    parameters = parameters_on(CUDA)
    optimizer = GGT(parameters, window=6)
    for p in parameters:
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="must be on one device"):
        optimizer.step()
    assert not optimizer.state
