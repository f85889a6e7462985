"""A character model with data parallel training: every rank has the model, and a part of GGT's window.

torchrun --nproc-per-node 2 examples/distributed/chars_ddp.py --save out/chars-ddp

Run it again with more --steps and it goes on where it was, on any number of ranks; chars_fsdp2.py reads the same
checkpoints.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from chars_loop import train
from chars_model import CharModel
from chars_ranks import arguments, leave, start
from torch import nn

from torch_ggt import GGT


def main(words: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
    options = arguments().parse_args(words)
    device = start()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(CharModel().to(device))
    # The one line that differs from one process: over which ranks the window is split.
    optimizer = GGT(model.parameters(), lr=options.lr, window=options.window, process_group=dist.group.WORLD)
    return train(model, optimizer, options, device)


if __name__ == "__main__":
    main()
    leave()
