"""
4. A differential equation, solved
==================================

A physics-informed network solves u″ = f on (0, 1), where u = sin(2πx) + 0.1·sin(10πx). Every step sees all points, so
no gradient has noise, and the loss is badly conditioned: the full matrix has most to offer here.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import nn

from torch_ggt import whiten

STEPS = 1000

# %%
# The equation. The residual is divided by the mean square of f.
x = torch.linspace(0, 1, 128)[:, None].requires_grad_()
with torch.no_grad():
    exact = torch.sin(2 * math.pi * x) + 0.1 * torch.sin(10 * math.pi * x)
    f = -((2 * math.pi) ** 2) * torch.sin(2 * math.pi * x) - 0.1 * (10 * math.pi) ** 2 * torch.sin(10 * math.pi * x)


def loss_of(model):
    """The mean squared residual, and the values at both ends."""
    u = model(2 * x - 1)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    return (curvature - f).square().mean() / f.square().mean() + u[0].square().sum() + u[-1].square().sum()


# %%
# AdamW alone and whitened, with one learning rate and one cosine schedule. The options are for gradients without noise.
OPTIMIZERS = {
    "AdamW": lambda optimizer: optimizer,
    "whiten(AdamW)": lambda optimizer: whiten(optimizer, window=50, shrinkage=0.0, keep_norm=False),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(x.detach(), exact, color="0.7", linewidth=5, label="exact")
for name, front in OPTIMIZERS.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = front(torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    errors = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            solution = model(2 * x - 1)
            errors.append(((solution - exact).norm() / exact.norm()).item())
    print(f"{name:14} relative error after {STEPS} steps: {errors[-1]:.1e}")
    left.plot(x.detach(), solution, label=name)
    right.semilogy(errors, label=name)

# %%
left.set(xlabel="x", ylabel="u", title="Solutions")
right.set(xlabel="step", ylabel="relative error", title="Error")
left.legend()
right.legend()
plt.show()
