"""A character model with fully sharded training (FSDP2): parameters, gradients and GGT's window are split alike.

torchrun --nproc-per-node 2 examples/distributed/chars_fsdp2.py --save out/chars-fsdp2

With --replicas 2 the ranks are two groups, in each of which the model is split (HSDP). Checkpoints go from any number
of ranks to any other, and from and to chars_ddp.py.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from chars_loop import train
from chars_model import CharModel
from chars_ranks import arguments, leave, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torch_ggt import GGT


def main(words: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
    parser = arguments()
    parser.add_argument("--replicas", type=int, default=1, help="groups of ranks that have a copy of the model each")
    options = parser.parse_args(words)
    device = start()
    ranks = dist.get_world_size()
    shape, names = (options.replicas, ranks // options.replicas), ("replica", "shard")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    mesh = mesh if options.replicas > 1 else mesh["shard"]
    torch.manual_seed(0)
    model = CharModel().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # Nothing differs from one process: the parameters are DTensors and tell how they are split.
    optimizer = GGT(model.parameters(), lr=options.lr, window=options.window)
    return train(model, optimizer, options, device)


if __name__ == "__main__":
    main()
    leave()
