"""
Accelerate
==========

``accelerator.prepare`` wraps the whitened optimizer like any other. Gradients are whitened when the wrapped optimizer
steps: after accumulation, and after clipping.
"""

import torch
from accelerate import Accelerator

from torch_ggt import whiten

EPOCHS = 3

# %%
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
x = torch.randn(256, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=32)

# %%
# The only line that is new.
optimizer = whiten(torch.optim.AdamW(model.parameters(), lr=0.01))

# %%
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, prepared, batches = accelerator.prepare(model, optimizer, loader)
for epoch in range(EPOCHS):
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            prepared.step()
            prepared.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.3f}; skipped: {optimizer.whitening.skipped}")
