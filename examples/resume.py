"""
6. Stop and go on, bit by bit
=============================

A run that is saved and loaded continues with the same bits as a run that was never stopped. The window of gradients is
in ``optimizer.state_dict()``, beside the optimizer's own state.
"""

import io

import matplotlib.pyplot as plt
import torch

from torch_ggt import whiten

STEPS, STOP = 60, 30


def start():
    """A model, its whitened optimizer, and its schedule."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = whiten(torch.optim.AdamW(model.parameters(), lr=0.01), window=10)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def train(model, optimizer, schedule, first, last):
    """Steps ``first`` to ``last``; the loss of each."""
    losses = []
    for step in range(first, last):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(x) - x.prod(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


# %%
# A run without a stop.
whole = start()
whole_losses = train(*whole, 0, STEPS)

# %%
# A run that is saved after half of its steps. Everything goes through a file, as ``weights_only=True`` allows.
stopped = start()
first_losses = train(*stopped, 0, STOP)
file = io.BytesIO()
torch.save([part.state_dict() for part in stopped], file)

# %%
# Another process would begin here: new objects, and the saved states.
file.seek(0)
again = start()
for part, state in zip(again, torch.load(file, weights_only=True), strict=True):
    part.load_state_dict(state)
last_losses = train(*again, STOP, STEPS)

# %%
# All bits agree.
assert first_losses + last_losses == whole_losses
assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), again[0].parameters(), strict=True))
print("bitwise equal")

# %%
plt.plot(whole_losses, color="0.7", linewidth=6, label="never stopped")
plt.plot(range(STOP), first_losses, label="until the stop")
plt.plot(range(STOP, STEPS), last_losses, label="after loading")
plt.gca().set(xlabel="step", ylabel="loss")
plt.legend()
plt.show()
