"""What the examples on several ranks share: what they can be told, the process group, and a part of each batch.

The text is the language reference that comes with Python, so that nothing has to be downloaded.
"""

import argparse
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from chars_model import CONTEXT
from torch import Tensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

BATCH = 16  # lines in a batch of all ranks together


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
