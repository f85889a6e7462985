"""One small model, trained in one process or on many ranks in every way that torch knows, on the same batches."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT

DEVICE = "cpu"  # tests/gpu sets it to have all ranks on one GPU
WINDOW = 5
BATCH = 8


class Model(nn.Module):
    """Shapes that do not divide by 2 or 4; with 4 ranks the last layer leaves some of them nothing."""

    def __init__(self, scalar=False):
        super().__init__()
        self.first = nn.Linear(7, 12)
        self.second = nn.Linear(12, 10)
        self.last = nn.Linear(10, 2)
        self.scale = nn.Parameter(torch.ones(())) if scalar else None  # fully_shard takes no scalars

    def forward(self, x):
        x = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return x if self.scale is None else x * self.scale


def make(mode, dtype=torch.float64, scope="model", kind_of_optimizer=GGT, **options):
    """The model as ``mode`` distributes it, and its optimizer."""
    torch.manual_seed(0)
    model = Model(scalar=mode.endswith("scalar")).to(DEVICE, dtype)
    arguments = {"lr": 1e-3, "window": WINDOW, "scope": scope, **options}
    kind = mode.split("-")[0]
    ranks = dist.get_world_size() if kind != "single" else 1
    if kind == "ddp":
        arguments["process_group"] = dist.group.WORLD
        model = nn.parallel.DistributedDataParallel(model)
        for _ in range(2):  # DDP sorts its buckets anew after the first pass, and with them the order of its sums
            compute_gradients(mode, model, 0)
        model.zero_grad()
    elif kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh(DEVICE, (ranks,)))
    elif kind == "mixed":  # the second layer stays plain, and its gradients are averaged by hand
        arguments["process_group"] = dist.group.WORLD if mode == "mixed-split" else None
        for layer in (model.first, model.last):
            fully_shard(layer, mesh=init_device_mesh(DEVICE, (ranks,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh(DEVICE, (2, ranks // 2), mesh_dim_names=("replica", "shard")))
    elif kind == "tp":
        _tensor_parallel(model, init_device_mesh(DEVICE, (ranks,)))
    elif kind == "fsdp_tp":
        mesh = init_device_mesh(DEVICE, (2, ranks // 2), mesh_dim_names=("data", "tensor"))
        _tensor_parallel(model, mesh["tensor"])
        fully_shard(model, mesh=mesh["data"])
    return model, kind_of_optimizer(groups(model), **arguments)


def groups(model):
    """Two param groups: the first layer, and all else with a learning rate of its own."""
    first = [p for name, p in model.named_parameters() if "first" in name]
    others = [p for name, p in model.named_parameters() if "first" not in name]
    return [{"params": first}, {"params": others, "lr": 2e-3, "weight_decay": 0.1}]


def _tensor_parallel(model, mesh):
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})


def shard_of_batch(mode):
    """(index, count): which part of a batch this rank works on."""
    kind = mode.split("-")[0]
    if kind in ("single", "tp"):
        return 0, 1
    if kind == "fsdp_tp":
        return dist.get_rank() // (dist.get_world_size() // 2), 2
    return dist.get_rank(), dist.get_world_size()


def compute_gradients(mode, model, step):
    generator = torch.Generator().manual_seed(step)
    dtype = next(model.parameters()).dtype
    # Targets are noise: near a minimum, steps of a fixed length turn rounding into another path.
    x, y = torch.randn(BATCH, 7 + 2, generator=generator, dtype=torch.float64).to(dtype).split((7, 2), 1)
    x, y = x.to(DEVICE), y.to(DEVICE)
    index, count = shard_of_batch(mode)
    model.zero_grad()
    (model(x.chunk(count)[index]) - y.chunk(count)[index]).square().mean().backward()
    if mode.startswith("mixed"):
        for parameter in model.parameters():
            if not isinstance(parameter, DTensor):
                dist.all_reduce(parameter.grad)
                parameter.grad /= count


def train(mode, model, optimizer, start, stop):
    for step in range(start, stop):
        compute_gradients(mode, model, step)
        optimizer.step()


def whole_parameters(model):
    """All parameters, gathered: plain tensors, by name."""
    return {
        name.removeprefix("module."): (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def local_parameters(model):
    """What this rank has of each parameter."""
    return [(p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]


def distance(ours, theirs):
    """Largest relative difference of two sets of parameters."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in ours)


def same_everywhere(tensors):
    """Whether all ranks have the same bits."""
    mine = torch.cat([t.detach().reshape(-1) for t in tensors])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return all(torch.equal(mine, other) for other in everyone)


def small_state(optimizer):
    """What is r × r or smaller, of all matrices."""
    parts = ("window", "momentum_buffer", "exp_avg", "exp_avg_sq")
    return [v.double() for entry in optimizer.state.values() for key, v in entry.items() if key not in parts]
