"""
Lightning
=========

``configure_optimizers`` returns the whitened optimizer. Clipping, accumulation, schedules and checkpoints of Lightning
work as with any optimizer, because the class of the optimizer does not change.
"""

import tempfile

import lightning
import torch

from torch_ggt import whiten

EPOCHS = 3


class Regression(lightning.LightningModule):
    """A small network."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch, _):
        """The loss of a batch."""
        x, y = batch
        return (self.network(x) - y).square().mean()

    def configure_optimizers(self):
        """The only line that is new."""
        return whiten(torch.optim.AdamW(self.parameters(), lr=0.01))


# %%
# The data, and a trainer that says little.
x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=32)
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
module = Regression()
trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", gradient_clip_val=1.0, **quiet)
trainer.fit(module, loader)

# %%
# The window is in Lightning's checkpoint.
with tempfile.NamedTemporaryFile(suffix=".ckpt") as file:
    trainer.save_checkpoint(file.name)
    saved = torch.load(file.name, weights_only=False)
print(sorted(key for key in saved["optimizer_states"][0]["state"][0] if key.startswith("whiten_")))
print(f"steps: {trainer.global_step}; skipped: {trainer.optimizers[0].whitening.skipped}")
