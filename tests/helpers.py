"""Prescribed gradients, and the step an optimizer makes of them."""

import torch

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT

SHAPES = ((), (3,), (2, 3), (2, 1, 2), (1, 2, 2, 2))


def make_parameters(shapes=SHAPES, dtype=torch.float64):
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def take_step(optimizer, parameters, gradients):
    """The step u that ``optimizer`` makes of ``gradients`` with lr = 1, one tensor per parameter."""
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.zero_()
            parameter.grad = None if gradient is None else gradient.clone()
    optimizer.step()
    return [-p.detach().clone() for p in parameters]


def single(d, dtype=torch.float32, **options):
    """A GGT over one parameter of d elements, whose steps are the plain u of the paper."""
    parameter = torch.nn.Parameter(torch.zeros(d, dtype=dtype))
    return parameter, GGT([parameter], lr=1.0, adjust_lr_fn="original", **options)


def words(value):
    """An id for a parametrized test that is one on all workers: no address of a function, no order of a set."""
    if isinstance(value, dict):
        return str({key: words(item) for key, item in value.items()})
    if isinstance(value, set):
        return str(sorted(value))
    return getattr(value, "__name__", str(value))
