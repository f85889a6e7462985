"""The member of the tutorial under DDP with a split window: ranks, skipping and state without another line."""

import re
from pathlib import Path

import torch
import torch.distributed as dist
from modes import Model, compute_gradients, distance, groups, train, whole_parameters
from ranks import on_ranks
from torch import nn

from torch_ggt.rules import RULES

PAGE = Path(__file__).parent.parent.parent / "docs" / "architecture.md"


def tutorial():
    """The class `RMSprop` of docs/architecture.md."""
    names = {}
    exec(re.search(r"```python member\n(.*?)```", PAGE.read_text(), re.DOTALL)[1], names)
    return names["RMSprop"]


def run(mode, scope):
    """The parameters after 14 steps of which one is skipped and the last six follow a save and a load."""
    torch.manual_seed(0)
    member, model, options = tutorial(), Model(scalar=True).double(), {}
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


def on_each(scopes):
    return {scope: run("ddp", scope) for scope in scopes}


def test_the_tutorials_member_on_two_ranks_is_one_process(recwarn):
    scopes = ("model", "group", "parameter")
    try:
        expected = {scope: run("single", scope) for scope in scopes}
    finally:
        RULES.pop("rmsprop", None)
    for found in on_ranks(2, on_each, scopes):
        assert all(distance(found[scope], expected[scope]) < 1e-9 for scope in scopes)
    recwarn.clear()  # of the step that was skipped
