"""Every step of GGT against the dense reference, over every combination of its options."""

import functools
import itertools

import pytest
import torch
from helpers import SHAPES, flat, make_parameters, take_step

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt.reference import GGTReference

STEPS = 300
WINDOW = 7

# Two param groups, split so that each has several shapes.
GROUPS = (range(3), range(3, len(SHAPES)))


def scheduled(betas, t):
    """Betas that a cyclic scheduler would give."""
    beta1, beta2 = betas
    swing = 0.5 * (1 + (t % 20) / 20)
    return (beta1 * swing, beta2 * (0.5 + 0.5 * swing))


@functools.lru_cache(maxsize=2)
def prescribed(dtype):
    """The same 300 gradients for all; rounded to ``dtype``, so that reference and optimizer see the same numbers."""
    generator = torch.Generator().manual_seed(7)
    return [
        [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]
        for _ in range(STEPS)
    ]


def blocks(scope):
    if scope == "model":
        return [range(len(SHAPES))]
    return GROUPS if scope == "group" else [[i] for i in range(len(SHAPES))]


@functools.lru_cache(maxsize=4)
def reference_steps(history, scope, betas, nesterov, cyclic, dtype, eps, jitter):
    """Reference steps (without SGD) and the vectors they precondition, flat, for all steps."""
    steps = []
    references = [
        (block, GGTReference(window=WINDOW, eps=eps, jitter=jitter, history=history, nesterov=nesterov))
        for block in blocks(scope)
    ]
    for t, gradients in enumerate(prescribed(dtype)):
        now = scheduled(betas, t) if cyclic else betas
        steps.append(
            [
                (ref.step(flat(gradients[i] for i in block), betas=now), ref.preconditioned.clone())
                for block, ref in references
            ]
        )
    return steps


OPTIONS = {
    "history": ("momentum", "gradient"),
    "scope": ("model", "group", "parameter"),
    "betas": tuple(itertools.product((0.0, 0.9), (1.0, 0.99, 0.9))),
    "nesterov": (False, True),
    "cyclic": (False, True),
    "eps": (0.0, 1e-8, 1e-4, 1e-2),
    "solver_jitter": (("eigh", 0.0), ("eigh", 1e-6), ("cholesky", 1e-6)),
    "sgd_scale": (0.0, 0.3),
}
# The quick suite runs every 47th combination: 47 is prime to all the counts, so that all pairs of values occur.
QUICK = 47


def combinations():
    for index, values in enumerate(itertools.product(*OPTIONS.values())):
        case = dict(zip(OPTIONS, values, strict=True))
        name = "-".join(str(value).replace(" ", "") for value in values)
        yield pytest.param(case, id=name, marks=() if index % QUICK == 0 else pytest.mark.soak)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", list(combinations()))
def test_every_step_equals_the_reference(case, dtype):
    history, scope, betas, nesterov, cyclic, eps, (solver, jitter), sgd_scale = case.values()
    parameters = make_parameters(dtype=dtype)
    optimizer = GGT(
        [{"params": [parameters[i] for i in group]} for group in GROUPS],
        lr=1.0,
        betas=betas,
        eps=eps,
        window=WINDOW,
        history=history,
        scope=scope,
        sgd_scale=sgd_scale,
        jitter=jitter,
        nesterov=nesterov,
        adjust_lr_fn="original",
        solver=solver,
    )
    expected = reference_steps(history, scope, betas, nesterov, cyclic, dtype, eps, jitter)
    for t, gradients in enumerate(prescribed(dtype)):
        if cyclic:
            for group in optimizer.param_groups:
                group["betas"] = scheduled(betas, t)
        found = take_step(optimizer, parameters, gradients)
        for block, (u, v) in zip(blocks(scope), expected[t], strict=True):
            error = (flat(found[i] for i in block).double() - u - sgd_scale * v).norm()
            length = (u + sgd_scale * v).norm()
            if dtype == torch.float64:
                assert error <= 1e-8 * length, (t, block, error / length)
            else:
                assert error <= 1e-3 * max(1.0, (sgd_scale * v.norm()).item()), (t, block, error)
