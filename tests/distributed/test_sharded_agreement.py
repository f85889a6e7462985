"""All ranks agree bit by bit, each keeps its share of the window, and little travels."""

import pytest
import torch
import torch.distributed as dist
from modes import WINDOW, compute_gradients, local_parameters, make, train, whole_parameters
from ranks import on_ranks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_ggt.kernels.spans import ALIGNMENT


def same_everywhere(tensors):
    """Whether all ranks have the same bits."""
    mine = torch.cat([t.detach().reshape(-1) for t in tensors])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return all(torch.equal(mine, other) for other in everyone)


def small_state(optimizer):
    return [v.double() for entry in optimizer.state.values() for v in entry.values() if not isinstance(v, DTensor)]


def many_steps(modes, steps):
    found = {}
    for mode in modes:
        model, optimizer = make(mode, torch.float32)
        train(mode, model, optimizer, 0, steps)
        parameters = list(whole_parameters(model).values())
        found[mode] = same_everywhere(parameters) and same_everywhere(small_state(optimizer))
        if mode == "hsdp":  # ranks r and r + N/2 hold the same shard
            half = dist.get_world_size() // 2
            mine = torch.cat([p.reshape(-1) for p in local_parameters(model)])
            sizes = [None] * dist.get_world_size()
            dist.all_gather_object(sizes, mine)
            found[mode] = found[mode] and torch.equal(mine, sizes[(dist.get_rank() + half) % (2 * half)])
    return found


def test_bits_are_the_same_after_500_steps():
    for found in on_ranks(2, many_steps, ("ddp-scalar",), 500):
        assert found == {"ddp-scalar": True}


@pytest.mark.soak
def test_bits_are_the_same_after_500_steps_on_four_ranks():
    modes = ("ddp-scalar", "fsdp", "hsdp", "mixed", "tp", "fsdp_tp")
    for found in on_ranks(4, many_steps, modes, 500):
        assert found == dict.fromkeys(modes, True)


def a_nan_on_one_rank(modes):
    """[(skipped, whether parameters are as before)] for a NaN in the gradients that one rank alone reads."""
    found = []
    for mode in modes:
        model, optimizer = make(mode)
        train(mode, model, optimizer, 0, 7)
        before = whole_parameters(model)
        for layer in ("first", "second", "last"):
            compute_gradients(mode, model, 7)
            if dist.get_rank() == 1:
                for name, parameter in model.named_parameters():
                    if layer in name:
                        grad = parameter.grad
                        (grad.to_local() if isinstance(grad, DTensor) else grad).fill_(torch.nan)
            optimizer.step()
        after = whole_parameters(model)
        same = all(torch.equal(before[name], after[name]) for name in before)
        count = optimizer.skipped
        train(mode, model, optimizer, 8, 12)
        finite = all(bool(p.isfinite().all()) for p in whole_parameters(model).values())
        found.append((count, same, finite, same_everywhere(small_state(optimizer))))
    return found


def test_a_nan_on_one_rank_skips_the_step_on_all():
    for found in on_ranks(2, a_nan_on_one_rank, ("ddp-scalar", "fsdp", "mixed", "tp")):
        assert found == 4 * [(3, True, True, True)]


def a_nan_that_nobody_reads():
    """Rank 1 has a NaN in the part of a parameter that rank 0 keeps: no rank skips, and no rank has it afterwards."""
    model, optimizer = make("ddp")
    train("ddp", model, optimizer, 0, 3)
    compute_gradients("ddp", model, 3)
    if dist.get_rank() == 1:
        model.module.first.weight.grad[0] = torch.nan  # rows 0 to 5 are rank 0's
    optimizer.step()
    return (
        optimizer.skipped,
        all(bool(p.isfinite().all()) for p in model.parameters()),
        same_everywhere(model.parameters()),
    )


def test_a_nan_that_no_rank_reads_is_skipped_by_none():
    assert on_ranks(2, a_nan_that_nobody_reads) == 2 * [(0, True, True)]


class Traffic(TorchDispatchMode):
    """Every collective, with the elements it sends."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional", "c10d_functional") and "wait" not in func.__name__:
            tensors = torch.utils._pytree.tree_leaves((args, kwargs))
            self.sent.append((func.__name__, max(t.numel() for t in tensors if isinstance(t, torch.Tensor))))
        return func(*args, **(kwargs or {}))


def traffic_and_memory(mode, scope):
    model, optimizer = make(mode, torch.float32, scope)
    train(mode, model, optimizer, 0, 2)
    compute_gradients(mode, model, 2)
    with Traffic() as traffic:
        optimizer.step()
    rows = sum(block.window.rows.numel() for block in optimizer.attached_blocks())
    shapes = [tuple(p.shape) for p in model.parameters()]
    return traffic.sent, rows, shapes


@pytest.mark.parametrize("scope", ["model", "parameter"])
def test_little_travels_and_each_rank_keeps_its_share(scope):
    ranks = 2
    for mode in ("ddp", "fsdp"):
        for sent, rows, shapes in on_ranks(ranks, traffic_and_memory, mode, scope):
            d = sum(torch.Size(shape).numel() for shape in shapes)
            matrices = 1 if scope == "model" else len(shapes)
            (reduced, *gathered) = sent
            assert "allreduce" in reduced[0]
            assert reduced[1] == matrices * (WINDOW + 1) + 2  # and how many ranks cannot take the step
            if mode == "fsdp":
                assert not gathered
            else:
                ((name, elements),) = gathered
                assert "allgather" in name
                # bytes of float32 from all ranks: d, and one slab of each parameter for parts of unequal size
                slabs = sum(torch.Size(shape).numel() / max(shape) for shape in shapes)
                assert 4 * d <= elements <= 4 * (d + ranks * slabs)
            # r·d/N, and per parameter one slab (parts are whole slabs) and the alignment of its columns
            padding = sum(torch.Size(shape).numel() / max(shape) + ALIGNMENT for shape in shapes)
            assert rows <= WINDOW * (d / ranks + padding)
