"""How many launches a step takes on a GPU. No GPU is needed: Triton's kernels are counted in place of being started.

A step of a small model takes as long as its launches. None of them may be one for each parameter.
"""

import collections
import functools
import importlib.util

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_ggt import GGT, backends, whiten

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from torch_ggt.backends.triton import TritonBackend, coded, noise, passes, ring, root, tensors

FREE = {"detach", "empty", "empty_like", "expand", "select", "slice", "t", "transpose", "unbind", "unsqueeze", "view"}
FREE |= {"_reshape_alias", "_unsafe_view", "alias", "as_strided", "lift_fresh", "narrow", "new_empty", "permute"}
FREE |= {
    "diagonal",
    "split",
    "split_with_sizes",
    "squeeze",
    "reshape",
    "_record_function_enter_new",
    "_record_function_exit",
}


class Counter(TorchDispatchMode):
    """Counts the operators that start a kernel; a foreach operator counts once."""

    def __init__(self):
        super().__init__()
        self.found = collections.Counter()
        self.largest = 0  #: The elements of the largest tensor that an operator was given, or made.

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name not in FREE:
            self.found[name] += 1
        made = function(*args, **(kwargs or {}))
        if name not in FREE:
            sizes = [x.numel() for x in tree_leaves((args, kwargs, made)) if isinstance(x, torch.Tensor)]
            self.largest = max(self.largest, *sizes)
        return made


def launches(monkeypatch, make, parameters=12, counter=None, shape=(5, 3), **options):
    """What one steady step starts, by name, without the operators of an optimizer that comes after."""
    counter = Counter() if counter is None else counter

    def count(kernel, programs, *_, **__):
        counter.found[kernel.fn.__name__] += 1

    for module in (coded, noise, passes, ring, root, tensors):
        monkeypatch.setattr(module, "launch", count)
    monkeypatch.setattr(backends, "choose", lambda _: TritonBackend())
    made = [nn.Parameter(torch.zeros(shape)) for _ in range(parameters)]
    optimizer = make(made, window=4, **options)
    step = getattr(optimizer, "whitening", optimizer.step)
    for _ in range(3):
        for p in made:
            p.grad = torch.randn_like(p)
        counter.found.clear()
        counter.largest = 0
        with counter:
            step()
    return dict(counter.found)


def whitened(parameters, **options):
    return whiten(torch.optim.AdamW(parameters), **options)


@pytest.mark.parametrize("scope", ["model", "parameter"])
@pytest.mark.parametrize(("make", "most"), [(whitened, 20), (functools.partial(GGT, finish="none"), 21), (GGT, 60)])
def test_launches_are_few_and_none_is_for_a_parameter_alone(monkeypatch, make, most, scope):
    few, many = (launches(monkeypatch, make, parameters=n, scope=scope) for n in (3, 12))
    assert few == many
    assert sum(many.values()) <= most


@pytest.mark.parametrize("scope", ["model", "parameter"])
@pytest.mark.parametrize("make", [whitened, functools.partial(GGT, finish="none")], ids=["whiten", "GGT"])
@pytest.mark.parametrize("stored", ["int8", "int4"])
def test_a_step_of_integers_is_applied_in_the_pass_that_makes_it(monkeypatch, stored, make, scope):
    """What rounding has cut off is added there, too: no operator of torch works on a vector like the gradient."""
    counter = Counter()
    found = launches(monkeypatch, make, counter=counter, shape=(80, 30), window_dtype=stored, scope=scope)
    assert counter.largest < 80 * 30  # of one parameter
    kernels = {name for name in found if name.startswith("_")}
    names = {"_gather", "_encode", "_gram_partials", "_sum_partials", "_admit", "_write", "_noise", "_solve"}
    assert kernels == {*names, "_update"}
    assert sum(found.values()) <= 35


@pytest.mark.parametrize("stored", ["int8", "int4"])
def test_a_finished_step_of_integers_has_small_launches_only_beside_those_of_plain_rows(monkeypatch, stored):
    plain, coded_ones = (launches(monkeypatch, GGT, window_dtype=name) for name in ("float32", stored))
    assert coded_ones.pop("_encode") == 1
    foreach = {name: number for name, number in plain.items() if name.startswith("_")}
    assert {name: number for name, number in coded_ones.items() if name.startswith("_")} == foreach


def test_shrinkage_costs_one_launch(monkeypatch):
    found = [launches(monkeypatch, whitened, shrinkage=share) for share in (0.0, 0.3, "auto")]
    assert found[0] == found[1]
    assert found[2] == {**found[0], "_noise": 1}
