"""
Hugging Face Trainer
====================

``optimizers=(optimizer, None)`` hands the whitened optimizer to the Trainer, which makes the schedule itself.
"""

import tempfile

import torch
import transformers

from torch_ggt import whiten

STEPS = 20


class Regression(torch.nn.Module):
    """A network that returns its loss, as the Trainer wants it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, x, labels):
        """The loss, and what was predicted."""
        prediction = self.network(x)
        return {"loss": (prediction - labels).square().mean(), "logits": prediction}


# %%
x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
rows = [{"x": each, "labels": each.sin().sum(0, keepdim=True)} for each in x]
model = Regression()

# %%
# The only line that is new.
optimizer = whiten(torch.optim.AdamW(model.parameters(), lr=0.01))

# %%
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=32,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None))
    result = trainer.train()
print(f"steps: {result.global_step}; skipped: {optimizer.whitening.skipped}")
