"""Members under DDP with a split window: ranks, skipping and state without another line."""

import functools
import re
from pathlib import Path

import torch
import torch.distributed as dist
from modes import Model, compute_gradients, distance, groups, train, whole_parameters
from ranks import on_ranks
from torch import nn

from torch_ggt import Adadelta, AdaGrad, NAdam, RMSprop
from torch_ggt.rules import RULES

PAGE = Path(__file__).parent.parent.parent / "docs" / "architecture.md"


def tutorial():
    """The class `RMSprop` of docs/architecture.md."""
    names = {}
    exec(re.search(r"```python member\n(.*?)```", PAGE.read_text(), re.DOTALL)[1], names)
    return names["RMSprop"]


MEMBERS = {
    "tutorial": None,  # of the page
    "RMSprop": functools.partial(RMSprop, momentum=0.9),
    "NAdam": NAdam,
    "Adadelta": functools.partial(Adadelta, eps=1e-3),
    "AdaGrad": AdaGrad,
}


def run(mode, name, scope):
    """The parameters after 14 steps of which one is skipped and the last six follow a save and a load."""
    torch.manual_seed(0)
    member, model, options = MEMBERS[name] or tutorial(), Model(scalar=True).double(), {}
    if mode == "ddp":
        model, options = nn.parallel.DistributedDataParallel(model), {"process_group": dist.group.WORLD}
        for _ in range(2):
            compute_gradients(mode, model, 0)
    optimizer = member(groups(model), lr=1e-3, window=5, scope=scope, **options)
    train(mode, model, optimizer, 0, 7)
    compute_gradients(mode, model, 7)
    if mode == "single" or dist.get_rank() == 1:
        for p in model.parameters():
            p.grad.fill_(torch.nan)
    optimizer.step()
    assert optimizer.skipped == 1
    resumed = member(groups(model), lr=1e-3, window=5, scope=scope, **options)
    resumed.load_state_dict(optimizer.state_dict())
    train(mode, model, resumed, 8, 14)
    return whole_parameters(model)


def on_each(cases):
    return {case: run("ddp", *case) for case in cases}


def test_a_member_on_two_ranks_is_one_process(recwarn):
    cases = [("tutorial", "group"), *((name, scope) for name in MEMBERS for scope in ("model", "parameter"))]
    try:
        expected = {case: run("single", *case) for case in cases}
    finally:
        RULES.pop("my_rmsprop", None)
    for found in on_ranks(2, on_each, cases):
        for case in cases:
            assert distance(found[case], expected[case]) < 1e-9, case
    recwarn.clear()  # of the step that was skipped
