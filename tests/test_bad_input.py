"""What GGT refuses, in which words, and that a refusal changes nothing."""

import copy
import math
import re
import warnings

import pytest
import torch
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT

NAN, INF = math.nan, math.inf


def parameter(*shape):
    return nn.Parameter(torch.ones(shape or (3,)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1e-3}, ValueError, "lr must be a finite number ≥ 0, got lr=-0.001"),
        ({"lr": NAN}, ValueError, "got lr=nan"),
        ({"lr": INF}, ValueError, "got lr=inf"),
        ({"lr": torch.tensor([1e-3, 1e-3])}, ValueError, "1 real element, got tensor"),
        ({"lr": "fast"}, TypeError, "lr must be a number or a 1-element Tensor, got 'fast'"),
        ({"betas": (1.0, 1.0)}, ValueError, r"betas\[0\] .* \[0, 1\), got 1.0"),
        ({"betas": (-0.1, 1.0)}, ValueError, "got -0.1"),
        ({"betas": (NAN, 1.0)}, ValueError, "got nan"),
        ({"betas": (0.9, 0.0)}, ValueError, r"betas\[1\] .* \(0, 1\], got 0.0"),
        ({"betas": (0.9, 1.1)}, ValueError, "got 1.1"),
        ({"betas": 0.9}, ValueError, "pair"),
        ({"betas": (0.9, 0.99, 0.999)}, ValueError, "pair"),
        ({"betas": ("a", 1.0)}, ValueError, "pair of numbers"),
        ({"lr": torch.tensor(1j)}, ValueError, "1 real element"),
        ({"jitter": 1e-14}, ValueError, r"0 or lie in \[1e-10, 1\], got jitter=1e-14"),
        ({"jitter": 2.0}, ValueError, "got jitter=2.0"),
        ({"betas": (0.99, 0.9), "history": "gradient"}, ValueError, "needs β₁ ≤ β₂"),
        ({"eps": -1e-8}, ValueError, "eps must be a finite number ≥ 0, got eps=-1e-08"),
        ({"eps": NAN}, ValueError, "got eps=nan"),
        ({"weight_decay": -0.1}, ValueError, "got weight_decay=-0.1"),
        ({"sgd_scale": -1.0}, ValueError, "got sgd_scale=-1.0"),
        ({"jitter": -1e-6}, ValueError, "got jitter=-1e-06"),
        ({"jitter": "small"}, ValueError, "got jitter='small'"),
        ({"window": 0}, ValueError, "window must be an int ≥ 1, got window=0"),
        ({"window": -3}, ValueError, "got window=-3"),
        ({"window": 20.0}, TypeError, "window must be an int ≥ 1, got window=20.0"),
        ({"window": True}, TypeError, "got window=True"),
        ({"window_dtype": torch.float16}, ValueError, "window_dtype must be one of None, torch.float32"),
        ({"history": "raw"}, ValueError, "history must be one of 'momentum', 'gradient', .*got history='raw'"),
        ({"scope": "layer"}, ValueError, "scope must be one of 'model', 'group', 'parameter', got scope='layer'"),
        ({"solver": "svd"}, ValueError, "solver must be 'auto', 'cholesky' or 'eigh', got 'svd'"),
        ({"solver": "cholesky", "jitter": 0.0}, ValueError, "needs jitter > 0"),
        ({"adjust_lr_fn": "muon"}, ValueError, "adjust_lr_fn must be one of 'match_rms_adamw', 'original'"),
        ({"nonfinite": "ignore"}, ValueError, "nonfinite must be one of 'skip', 'raise'"),
        ({"nesterov": 1}, TypeError, "nesterov must be True or False, got nesterov=1"),
        ({"maximize": "yes"}, TypeError, "maximize must be True or False"),
        ({"cuda_graph": 1}, TypeError, "cuda_graph must be True or False, got cuda_graph=1"),
        (
            {"process_group": "gloo"},
            TypeError,
            "process_group must be a torch.distributed.ProcessGroup, 'world' or None",
        ),
        ({"process_group": "world"}, RuntimeError, "its process group does not exist.*init_process_group"),
    ],
    ids=str,
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        GGT([parameter()], **options)
    if not {"process_group", "cuda_graph"} & set(options):  # which are of the optimizer, not of a group
        with pytest.raises(error, match=message):
            GGT([{"params": [parameter()], **options}])  # as a group's own option, too


def test_parameter_lists():
    with pytest.raises(ValueError, match="empty parameter list"):
        GGT([])
    with pytest.raises(TypeError, match="iterable"):
        GGT(torch.ones(3))
    with pytest.raises(TypeError, match="only optimize Tensors"):
        GGT([3.0])
    with pytest.raises(ValueError, match="non-leaf"):
        GGT([parameter() * 2])
    shared = parameter()
    with pytest.raises(ValueError, match="more than one"):
        GGT([{"params": [shared]}, {"params": [shared]}])


@pytest.mark.parametrize(
    "difference",
    [
        {"betas": (0.5, 1.0)},
        {"eps": 1e-4},
        {"window": 5},
        {"history": "gradient"},
        {"jitter": 1e-3},
        {"nesterov": True},
    ],
    ids=str,
)
def test_groups_of_one_matrix_must_agree(difference):
    groups = [{"params": [parameter()]}, {"params": [parameter()], **difference}]
    (key,) = difference
    with pytest.raises(ValueError, match=f"param group 1 has {key}=.*must agree"):
        GGT(copy.deepcopy(groups))
    GGT(copy.deepcopy(groups), scope="group")
    GGT(copy.deepcopy(groups), scope="parameter")


def test_groups_must_agree_on_scope_and_nonfinite():
    for difference in ({"scope": "parameter"}, {"nonfinite": "raise"}):
        with pytest.raises(ValueError, match="must agree"):
            GGT([{"params": [parameter()]}, {"params": [parameter()], **difference}], scope="group")


def test_groups_that_come_to_disagree_are_noticed_at_the_step():
    p, q = parameter(), parameter()
    optimizer = GGT([{"params": [p]}, {"params": [q]}])
    p.grad, q.grad = torch.ones(3), torch.ones(3)
    optimizer.step()
    optimizer.param_groups[1]["betas"] = (0.5, 1.0)
    with pytest.raises(ValueError, match=r"betas=\(0.5, 1.0\)"):
        optimizer.step()


def test_a_refused_group_is_not_added():
    optimizer = GGT([parameter()])
    with pytest.raises(ValueError, match="must agree"):
        optimizer.add_param_group({"params": [parameter()], "window": 3})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients():
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = GGT(embedding.parameters())
    embedding(torch.tensor([1, 3])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step()


def test_meta_tensors():
    p = nn.Parameter(torch.ones(3, device="meta"))
    optimizer = GGT([p])
    p.grad = torch.ones(3, device="meta")
    with pytest.raises(RuntimeError, match="meta device"):
        optimizer.step()
    assert not optimizer.state.get(p)


def test_a_parameter_that_moved():
    p = parameter()
    optimizer = GGT([p])
    p.grad = torch.ones(3)
    optimizer.step()
    p.grad = None
    # As `module.to(device)` does it; meta is the one other device that every machine has.
    torch.utils.swap_tensors(p, nn.Parameter(torch.ones(3, device="meta")))
    p.grad = torch.ones(3, device="meta")
    with pytest.raises(RuntimeError, match="on meta, but its optimizer state is on cpu"):
        optimizer.step()


def test_a_matrix_partly_on_meta_changes_nothing():
    p, q = parameter(), nn.Parameter(torch.ones(3, device="meta"))
    optimizer = GGT([p, q])
    p.grad, q.grad = torch.ones(3), torch.ones(3, device="meta")
    with pytest.raises(RuntimeError, match="meta device"):
        optimizer.step()
    assert not any(optimizer.state.values())


def test_out_of_memory_says_what_would_fit():
    p = nn.Parameter(torch.zeros(1_000_000))
    optimizer = GGT([p], window=1_000_000_000)
    p.grad = torch.zeros(1_000_000)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        optimizer.step()
    message = str(caught.value)
    assert "4000000000000000 bytes (4 PB)" in message
    assert "window=1000000000 rows × 1000000 elements" in message
    assert "in torch.float32 or window=" in message
    assert re.search(r"in torch.bfloat16 or window=\d+ in int8 or window=\d+ in int4 would fit", message)
    assert "window" not in optimizer.state[p]


# ---- gradients that are not finite ---------------------------------------------------------------------------------


def trained(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = GGT(model.named_parameters(), window=4, weight_decay=0.1, **options)
    for _ in range(6):
        gradients(model)
        optimizer.step()
    return model, optimizer


def gradients(model):
    for p in model.parameters():
        p.grad = torch.randn_like(p)


def everything(model, optimizer):
    state = {
        (i, key): value.clone()
        for i, entry in optimizer.state_dict()["state"].items()
        for key, value in entry.items()
        if key != "skipped"
    }
    return [p.detach().clone() for p in model.parameters()], state


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "options",
    [{}, {"history": "gradient"}, {"scope": "parameter"}, {"nesterov": True}, {"window_dtype": torch.bfloat16}],
    ids=str,
)
def test_skip_changes_nothing_and_counts(options, value):
    model, optimizer = trained(**options)
    before = everything(model, optimizer)
    gradients(model)
    model[2].weight.grad[1, 2] = value
    with pytest.warns(UserWarning, match="skipped a step"):
        optimizer.step()
    after = everything(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    assert all(torch.equal(before[1][key], after[1][key]) for key in before[1])
    assert optimizer.skipped == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()  # counted, and warned of only once
    assert optimizer.skipped == 2
    gradients(model)
    optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())
    assert optimizer.skipped == 2


@pytest.mark.filterwarnings("ignore:GGT skipped")
def test_skips_are_counted_once_each_whatever_block_they_came_from():
    p, q = parameter(), parameter()
    optimizer = GGT([p, q], scope="parameter")
    for step in range(6):
        bad, absent = (p, q) if step % 2 else (q, p)
        bad.grad, absent.grad = torch.full((3,), NAN), None
        optimizer.step()
    assert optimizer.skipped == 6


@pytest.mark.parametrize("change", [{"window": 7}, {"history": "gradient"}], ids=str)
def test_options_that_cannot_change_in_mid_run(change):
    p = parameter()
    optimizer = GGT([p])
    p.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0].update(change)
    with pytest.raises(ValueError, match="was changed to"):
        optimizer.step()


def test_the_warning_points_at_the_user():
    p = parameter()
    optimizer = GGT([p])
    p.grad = torch.full((3,), NAN)
    with pytest.warns(UserWarning, match="skipped") as caught:
        optimizer.step()
    assert caught[0].filename == __file__


def test_the_groups_own_scope_and_nonfinite_count():
    p, q = parameter(), parameter()
    optimizer = GGT([{"params": [p, q], "scope": "parameter", "nonfinite": "raise"}])
    p.grad, q.grad = torch.ones(3), torch.ones(3)
    optimizer.step()
    assert len(optimizer.spectrum()) == 2
    p.grad[0] = NAN
    with pytest.raises(RuntimeError, match="not finite"):
        optimizer.step()


def test_lists_of_betas_agree_with_tuples():
    GGT([{"params": [parameter()], "betas": [0.9, 1.0]}, {"params": [parameter()]}])


def test_gradients_at_the_end_of_float32():
    p = nn.Parameter(torch.zeros(4))
    optimizer = GGT([p], eps=0.0, lr=1.0, adjust_lr_fn="original")
    p.grad = torch.tensor([1e-40, 0, 1e-40, 1e-40])
    optimizer.step()
    assert p.detach().norm().item() == pytest.approx(1.0, rel=1e-3)


def test_first_gradient_not_finite():
    p = parameter()
    optimizer = GGT([p])
    p.grad = torch.full((3,), NAN)
    with pytest.warns(UserWarning, match="skipped"):
        optimizer.step()
    assert torch.equal(p.detach(), torch.ones(3))
    p.grad = torch.ones(3)
    optimizer.step()
    assert (p < 1).all()


def test_raise_names_the_first_offender():
    model, optimizer = trained(nonfinite="raise")
    before = everything(model, optimizer)
    gradients(model)
    model[0].bias.grad[0] = INF
    model[2].weight.grad[0, 0] = NAN
    with pytest.raises(RuntimeError, match=r"parameter '0.bias' of shape \(4,\) is not finite"):
        optimizer.step()
    after = everything(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    assert all(torch.equal(before[1][key], after[1][key]) for key in before[1])


def test_raise_without_names():
    p = parameter()
    optimizer = GGT([p], nonfinite="raise")
    p.grad = torch.full((3,), NAN)
    with pytest.raises(RuntimeError, match=r"parameter 0 of its group, of shape \(3,\)"):
        optimizer.step()


def test_overflow_of_the_window_dtype_is_not_finite_either():
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = GGT([p], window_dtype=torch.float32, nonfinite="raise")
    p.grad = torch.full((3,), 1e100, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="overflows"):
        optimizer.step()


# ---- windows that are nearly nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"jitter": 0.0}, {"solver": "cholesky"}, {"eps": 0.0}, {"eps": 0.0, "jitter": 0.0}]
)
def test_zero_gradients_anywhere_give_zero_steps_not_nan(options):
    p = parameter()
    optimizer = GGT([p], lr=1.0, window=3, betas=(0.0, 1.0), **options)
    zero, one = torch.zeros(3), torch.ones(3)
    for gradient in (zero, zero, one, zero, zero, zero, zero, one, one):
        before = p.detach().clone()
        p.grad = gradient.clone()
        optimizer.step()
        assert p.isfinite().all()
        assert torch.equal(p.detach(), before) == (not gradient.any())
    assert int(optimizer.state[p]["count"]) == 3


def test_a_zero_row_into_an_empty_window_is_not_pushed():
    p = parameter()
    optimizer = GGT([p])
    p.grad = torch.zeros(3)
    optimizer.step()
    assert int(optimizer.state[p]["count"]) == 0
    assert optimizer.spectrum()[0].numel() == 0
