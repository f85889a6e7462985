"""No step of any member asks a device for a number, or sends it one: seen on a device that has no numbers.

Tensors on the meta device have shapes alone. Where the host would read a number, torch raises. A copy from the host is
noticed by its operator, and a tensor that is made of a number by its function: on a GPU the host waits for both.
"""

import functools

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_ggt
from torch_ggt import GGT, Whitening, whiten

SHAPES = [(4, 3), (3, 4), (2, 3, 2), (70,), ()]

MEMBERS = {
    "the defaults": GGT,
    "paper": functools.partial(GGT, history="momentum", finish="none", shrinkage=0.0),
    "nesterov": functools.partial(GGT, nesterov=True, scope="parameter"),
    "shrinkage 0.3": functools.partial(GGT, finish="none", shrinkage=0.3, scope="parameter"),
    "keep_norm": functools.partial(GGT, finish="none", adjust_lr_fn="keep_norm"),
    "sgd_scale": functools.partial(GGT, finish="none", sgd_scale=0.1),
    "polar": functools.partial(GGT, finish="polar"),
    "polar_rows": functools.partial(GGT, finish="polar_rows", history="momentum"),
    "polar_exact": functools.partial(GGT, finish="polar_exact"),
    "a callable": functools.partial(GGT, finish=torch.tanh),
    "RMSprop": functools.partial(torch_ggt.RMSprop, momentum=0.5),
    "NAdam": torch_ggt.NAdam,
    "Adadelta": torch_ggt.Adadelta,
    "AdaGrad": torch_ggt.AdaGrad,
    "Whitening": Whitening,
    "whiten(SGD)": lambda parameters, **options: whiten(torch.optim.SGD(parameters, lr=0.1), **options),
}


class NoCopyFromTheHost(TorchDispatchMode):
    """Raises where a tensor of the host is copied to the device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        name = function.overloadpacket.__name__
        source = args[1] if name == "copy_" else args[0] if name == "_to_copy" else None
        if isinstance(source, torch.Tensor) and source.is_cpu and found.is_meta:
            raise AssertionError(f"{name} copies {source} from the host")
        return found


class NoTensorOfNumbers(TorchFunctionMode):
    """Raises where the host makes a tensor on the device of a number."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function in (torch.tensor, torch.as_tensor) and found.is_meta and not isinstance(args[0], torch.Tensor):
            raise AssertionError(f"{function.__name__} sends {args[0]} from the host")
        return found


@pytest.fixture(autouse=True)
def _meta_is_a_device(monkeypatch):
    """The library refuses parameters without values."""
    for module in ("live", "block"):
        monkeypatch.setattr(f"torch_ggt.state.{module}.common_device", lambda _: torch.device("meta"))


@pytest.mark.parametrize("stored", ["float32", "int4"])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_step_waits_for_no_device(member, stored):
    parameters = [nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES]
    optimizer = MEMBERS[member](parameters, window=3, window_dtype=stored)
    step = optimizer if isinstance(optimizer, Whitening) else optimizer.step
    for number in range(4):
        for p in parameters:
            p.grad = torch.empty_like(p)
        if number < 2:  # tables are made once
            step()
        else:
            with NoCopyFromTheHost(), NoTensorOfNumbers():
                step()


def test_what_would_wait_is_seen():
    number = torch.ones((), device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        torch._foreach_add_([torch.ones(2, device="meta")], number)  # the overload that reads the number
    with NoCopyFromTheHost(), pytest.raises(AssertionError, match="copies"):
        torch.ones(2).to("meta")
    with NoTensorOfNumbers(), pytest.raises(AssertionError, match="sends"):
        torch.as_tensor(0.5, device="meta")
