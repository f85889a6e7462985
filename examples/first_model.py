"""
1. A first model
================

A small network learns a function of two variables from 512 examples, with all examples in every batch. AdamW, the
whitened AdamW and GGT start from the same weights and have the same learning rate.
"""

import matplotlib.pyplot as plt
import torch

from torch_ggt import GGT, whiten

STEPS = 300

# %%
# The data and the model.
generator = torch.Generator().manual_seed(0)
x = 2 * torch.rand(512, 2, generator=generator) - 1
y = torch.sin(4 * x[:, :1]) * torch.cos(3 * x[:, 1:])


def new_model():
    """Every optimizer gets the same starting weights."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


# %%
# The swap is one line. ``whiten`` takes the optimizer that you have. ``GGT`` whitens and averages in one optimizer.
OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "whiten(AdamW)": lambda params: whiten(torch.optim.AdamW(params, lr=0.01)),
    "GGT": lambda params: GGT(params, lr=0.01),
}

# %%
# The loop is the loop of any optimizer of torch.
curves = {}
for name, make in OPTIMIZERS.items():
    model = new_model()
    optimizer = make(model.parameters())
    losses = curves[name] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{name:14} loss after {STEPS} steps: {losses[-1]:.2e}")

# %%
# All batches are equal here, so gradients have no noise. This is where whitening helps most.
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for name, losses in curves.items():
    axes.semilogy(losses, label=name)
axes.set(xlabel="step", ylabel="loss", title="A small network, full batches, learning rate 0.01")
axes.legend()
plt.show()
