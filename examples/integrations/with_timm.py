"""
timm's optimizer factory
========================

timm makes optimizers by name. ``whiten`` takes what the factory returns: with timm's groups, its layer decay, and its
rule that vectors have no weight decay. ``GGT`` can be given a name in timm's registry.
"""

import torch
from timm.optim import OptimInfo, create_optimizer_v2
from timm.optim._optim_factory import default_registry

from torch_ggt import GGT, whiten

STEPS = 10
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10))
images, classes = torch.randn(16, 3, 8, 8), torch.randint(10, (16,))
model(images)

# %%
# An optimizer of the factory, whitened.
whitened = whiten(create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05))
print([(len(group["params"]), group["weight_decay"]) for group in whitened.param_groups])

# %%
# GGT by name.
default_registry.register(OptimInfo(name="ggt", opt_class=GGT, description="full-matrix", has_betas=True))
by_name = create_optimizer_v2(model, opt="ggt", lr=1e-3, weight_decay=0.05, history="gradient", finish="adam")

# %%
for name, optimizer in {"whiten(adamw)": whitened, "ggt": by_name}.items():
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
    print(f"{name}: loss {loss.item():.3f}")
