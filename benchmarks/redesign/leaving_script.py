"""Training under DDP with a split window, as a user writes it: save, load, go on, leave. `leaving` runs this."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from trees import check_imported

import torch_ggt


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 7)).square().mean().backward()
        optimizer.step()


def main(folder):
    check_imported(torch_ggt)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 2))
    model = nn.parallel.DistributedDataParallel(model)

    optimizer = torch_ggt.GGT(model.parameters(), process_group=dist.group.WORLD)
    train(model, optimizer, 5)
    print("trained", flush=True)

    file_of_rank = f"{folder}/optimizer_{dist.get_rank()}.pt"
    torch.save(optimizer.state_dict(), file_of_rank)
    print("saved", flush=True)

    optimizer = torch_ggt.GGT(model.parameters(), process_group=dist.group.WORLD)
    optimizer.load_state_dict(torch.load(file_of_rank, weights_only=True))
    print("loaded", flush=True)

    train(model, optimizer, 5)
    print("trained again", flush=True)

    dist.destroy_process_group()
    print("left the group", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
