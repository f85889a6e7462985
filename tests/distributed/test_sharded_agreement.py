"""A gradient that is not finite is skipped by all ranks or by none; each keeps its share, and little travels."""

import math

import pytest
import torch
import torch.distributed as dist
from modes import compute_gradients, make, same_everywhere, small_state, train, whole_parameters
from ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import SpectrumRecorder, param_groups
from torch_ggt.distributed.pieces import best_cut, slice_of
from torch_ggt.layout import ALIGNMENT
from torch_ggt.spectrum.comparison import compare_steps


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


def test_a_nan_on_one_rank_of_four_skips_the_step_on_all():
    for found in on_ranks(4, a_nan_on_one_rank, ("ddp-scalar", "hsdp")):
        assert found == 2 * [(3, True, True, True)]


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
    """Every collective, with the bytes of its largest tensor: of an all-gather what all ranks have sent."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional", "c10d_functional") and "wait" not in func.__name__:
            tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            self.sent.append((func.__name__, max((t.nbytes for t in tensors), default=0)))
        return func(*args, **(kwargs or {}))


SHAPES = [(257, 64), (150, 100), (150,), (70, 150), (70,), (3, 64), (1, 5)]
ROWS = 10


def larger_model(mode, scope):
    """Parameters of uneven shapes with random gradients, float32; 4 ranks leave some of them nothing."""
    model = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in SHAPES])
    arguments = {"process_group": dist.group.WORLD} if mode == "ddp" else {}
    if mode == "fsdp":
        fully_shard(model)
    if mode == "hsdp":
        ranks = dist.get_world_size()
        fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replica", "shard")))
    return model, GGT(model.parameters(), window=ROWS, scope=scope, **arguments)


def traffic_and_memory(mode, scope):
    """What each of three steps sends, the first included, and the elements of the window that this rank keeps.

    The first rank keeps as many bytes as `GGT.memory` says; of DTensors every rank does.
    """
    torch.manual_seed(0)
    model, optimizer = larger_model(mode, scope)
    predicted = GGT.memory(model, window=ROWS, scope=scope, ranks=dist.get_world_size() if mode == "ddp" else 1)
    steps = []
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        with Traffic() as traffic:
            optimizer.step()
        steps.append(traffic.sent)
    blocks = optimizer.attached_blocks()
    here = sum(block.window.rows.nbytes for block in blocks), sum(block.row.nbytes for block in blocks)
    if mode != "ddp" or dist.get_rank() == 0:
        assert here == (predicted.window, predicted.row), (here, predicted)
    assert here <= (predicted.window, predicted.row)
    return steps, sum(block.window.rows.numel() for block in blocks)


def slab(shape, mode, parts):
    """The elements of one index along the dimension that is cut."""
    return math.prod(shape) / shape[best_cut(shape, parts) if mode == "ddp" else 0]


@pytest.mark.parametrize(("ranks", "mode"), [(2, "ddp"), (2, "fsdp"), (4, "ddp"), (4, "fsdp"), (4, "hsdp")])
def test_little_travels_and_each_rank_keeps_its_share(ranks, mode):
    d = sum(map(math.prod, SHAPES))
    parts = ranks // 2 if mode == "hsdp" else ranks
    # Parts are whole slabs, and the columns of a parameter start at a multiple of the alignment.
    padding = sum(slab(shape, mode, parts) + ALIGNMENT for shape in SHAPES)
    found = on_ranks(ranks, for_each_scope, mode)
    for scope, matrices in (("model", 1), ("parameter", len(SHAPES))):
        for by_scope in found:
            (first, *others), rows = by_scope[scope]
            assert rows <= ROWS * (d / parts + padding)
            for sent in others:
                (reduced, *gathered) = sent
                assert "allreduce" in reduced[0]
                # a Gram row and its square for each matrix, and how many ranks have another set of gradients
                assert reduced[1] == 8 * (matrices * (ROWS + 1) + 1)
                if mode != "ddp":
                    assert not gathered
                    continue
                ((name, received),) = gathered
                assert "allgather" in name
                assert 4 * d <= received <= 4 * (d + ranks * sum(slab(shape, mode, parts) for shape in SHAPES))
            # What ranks tell each other before the first step is small, too.
            assert max(size for name, size in first if "allgather" not in name or mode != "ddp") < 64 * 1024
            assert max(size for _, size in first) < 4 * ROWS * d / ranks


def for_each_scope(mode):
    return {scope: traffic_and_memory(mode, scope) for scope in ("model", "parameter")}


def groups_of(mode):
    """What `param_groups` says of a model, without its tensors."""
    model = make(mode)[0]
    return [{k: v for k, v in group.items() if k != "params"} for group in param_groups(model)]


def test_the_groups_of_shards_are_the_groups_of_the_model():
    whole = groups_of("single")
    assert [group["role"] for group in whole] == ["matrix", "rest"]
    for mode in ("fsdp", "tp"):
        assert on_ranks(2, groups_of, mode) == [whole, whole]


def test_the_padding_is_small():
    """A model of 0.5 M parameters in 26 tensors on 4 ranks: what padding adds to r·d/N is 0.4 %."""
    shapes = [(1000, 128), *6 * [(384, 128), (128, 128)], *13 * [(128,)]]
    d = sum(map(math.prod, shapes))
    kept = 0
    for shape in shapes:
        sizes = slice_of(nn.Parameter(torch.empty(shape)), 0, 4, None).sizes
        kept += -(-math.prod(sizes) // ALIGNMENT) * ALIGNMENT
    assert d / 4 <= kept <= 1.004 * d / 4


def spectra(modes):
    """{mode: (singular values, cosines with cheaper steps)} after some steps."""
    found = {}
    for mode in modes:
        model, optimizer = make(mode)
        with SpectrumRecorder(optimizer) as recorder:
            train(mode, model, optimizer, 0, 9)
            (block,) = optimizer.attached_blocks()
            compared = compare_steps(block.window, columns=block.columns)
            diagnosis = recorder.diagnose()
        found[mode] = optimizer.spectrum()[0], [compared.diagonal, compared.sgd], diagnosis.summary
    return found


def test_spectra_are_those_of_the_whole_window():
    expected, cosines, words = spectra(("single",))["single"]
    for ranks, modes in ((2, ("ddp", "fsdp", "mixed", "tp")), (4, ("hsdp",))):
        for found in on_ranks(ranks, spectra, modes):
            for mode in modes:
                values, compared, summary = found[mode]
                torch.testing.assert_close(values, expected, rtol=1e-9, atol=0)
                assert compared == pytest.approx(cosines, rel=1e-9)
                assert summary == words
