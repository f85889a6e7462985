"""The training loop of the examples on several ranks, with checkpoints that any number of ranks can read."""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from chars_ranks import batches
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from torch_ggt import GGT


def save(folder: Path, step: int, model: nn.Module, optimizer: GGT) -> None:
    """Write the state before ``step``, each rank its own part; the file .metadata comes last and makes it complete."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder / f"step-{step:06}")


def resume(folder: Path, model: nn.Module, optimizer: GGT) -> int:
    """Load the last complete checkpoint, of however many ranks; the step to go on with."""
    complete = sorted(file.parent for file in folder.glob("step-*/.metadata"))
    if not complete:
        return 0
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=complete[-1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(complete[-1].name.removeprefix("step-"))


def train(model: nn.Module, optimizer: GGT, options: argparse.Namespace, device: torch.device) -> float:
    """All steps from the last checkpoint on; the loss of the last, averaged over the ranks."""
    first = resume(options.save, model, optimizer) if options.save else 0
    loss: Any = torch.tensor(float("nan"))
    for step, text, following in batches(first, options.steps, device):
        loss = nn.functional.cross_entropy(model(text), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = step + 1 == options.steps
        if last or step % 20 == 0:
            average = loss.detach() / dist.get_world_size()
            dist.all_reduce(average)
            loss = float(average)
            if dist.get_rank() == 0:
                print(f"step {step:4}  loss {loss:.4f}", flush=True)
        if options.save and (last or (step + 1) % options.every == 0):
            save(options.save, step + 1, model, optimizer)
    return float(loss)
