"""
5. Is a full matrix worth it? Spectra and diagnosis
===================================================

`SpectrumRecorder` watches the gradients under any optimizer, and says in words what a full matrix could change. It
changes nothing about the training.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from torch_ggt import SpectrumRecorder

STEPS = 200

# %%
# Train as you always do. The recorder keeps a window of 20 gradients beside AdamW.
generator = torch.Generator().manual_seed(0)
x = torch.randn(1024, 16, generator=generator) * torch.logspace(0, -1.5, 16)
y = torch.tanh(x @ torch.randn(16, 1, generator=generator))


def train(batch_size):
    """The records and the diagnosis of one run."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    with SpectrumRecorder(optimizer, window=20, diagnose_every=10) as recorder:
        for _ in range(STEPS):
            chosen = torch.randperm(1024)[:batch_size]
            optimizer.zero_grad()
            (model(x[chosen]) - y[chosen]).square().mean().backward()
            optimizer.step()
        return recorder.records, recorder.diagnose()


# %%
# Full batches: gradients agree, and a few directions hold nearly everything.
quiet_records, quiet = train(1024)
print(quiet.summary)

# %%
# Batches of 8: noise reaches more directions. The summary says which share of a gradient the window does not explain.
noisy_records, noisy = train(8)
print(noisy.summary)

# %%
# The eigenvalues of the window over time, largest first. A wide band means that the full matrix rescales directions.
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for axes, records, name in zip(panels, (quiet_records, noisy_records), ("full batches", "batches of 8"), strict=True):
    full = [record for record in records if len(record.singular_values) == 20]
    values = np.stack([(record.singular_values**2).numpy() for record in full])
    shares = values / values.sum(axis=1, keepdims=True)
    axes.semilogy([record.step for record in full], np.maximum(shares, 1e-14), color="C0", linewidth=0.6)
    axes.set(xlabel="step", title=name)
panels[0].set(ylabel="eigenvalue, as a share of the sum")
plt.show()
