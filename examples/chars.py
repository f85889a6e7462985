"""What both examples share: a text, a small transformer over its characters, batches, and checkpoints.

The text is the language reference that comes with Python, so that nothing has to be downloaded.
"""

import argparse
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from torch_ggt import GGT

CONTEXT, BATCH = 64, 16  # characters, and lines of them in a batch of all ranks together


class CharModel(nn.Module):
    """A causal transformer over bytes: embedding, blocks, a linear head."""

    def __init__(self, width: int = 64, blocks: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, 128)

    def forward(self, text: Tensor) -> Tensor:
        """Logits (batch · characters, 128) of the next character."""
        x = self.characters(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(0, 1))


class Block(nn.Module):
    """Attention and a perceptron, each beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, characters, width) to the same."""
        q, k, v = self.attention(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.between(x))


def arguments() -> argparse.ArgumentParser:
    """What both examples can be told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--window", type=int, default=20, help="rows of GGT's window")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--save", type=Path, help="folder of checkpoints; a run goes on from the last one in it")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    return parser


def start() -> torch.device:
    """Join the process group that torchrun describes; a GPU for each rank where there are enough, else the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if gpus else "gloo")
    if BATCH % dist.get_world_size():
        raise SystemExit(f"{dist.get_world_size()} ranks cannot share a batch of {BATCH}; take 1, 2, 4, 8 or 16")
    return device


def leave() -> None:
    """Leave the process group when all ranks are done, gloo's threads included.

    DTensor's caches keep a group alive after destroy_process_group, and a thread of gloo's that still drops a tensor
    while Python shuts down aborts the process: https://github.com/pytorch/pytorch/pull/179291.
    """
    dist.barrier()
    _clear_sharding_prop_cache()
    gc.collect()
    dist.destroy_process_group()


def batches(first: int, last: int, device: torch.device) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(step, characters, next characters), this rank's part: together all ranks see the same batch however many."""
    text = torch.frombuffer(bytearray("\n".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        lines = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
        mine = lines.chunk(dist.get_world_size())[dist.get_rank()].to(device)
        yield step, mine[:, :-1], mine[:, 1:]


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
