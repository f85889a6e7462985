"""
2. A character LSTM
===================

An LSTM reads the language reference that comes with Python, and predicts the next character. Batches are small, so
gradients are noisy. The figure shows how much whitening gives under noise.
"""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from torch import nn

from torch_ggt import whiten

STEPS = 150

# %%
# The text as numbers below 128, and batches that depend on the step alone.
text = torch.frombuffer(bytearray("\n".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()


def batch(step, lines=16, length=40):
    """Characters, and the characters that follow them."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - length - 1, (lines,), generator=generator)
    rows = torch.stack([text[start : start + length + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


class Chars(nn.Module):
    """Embedding, LSTM, linear head."""

    def __init__(self, width=64):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, width), nn.Linear(width, 128)
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, characters):
        """Logits (lines, 128, characters)."""
        return self.head(self.lstm(self.embedding(characters))[0]).transpose(1, 2)


# %%
# Train twice, with one learning rate. Clipping comes before ``step``, as always: the clipped gradient is whitened.
curves = {}
for name, front in {"AdamW": lambda optimizer: optimizer, "whiten(AdamW)": whiten}.items():
    torch.manual_seed(0)
    model = Chars()
    optimizer = front(torch.optim.AdamW(model.parameters(), lr=0.01))
    losses = curves[name] = []
    for step in range(STEPS):
        characters, following = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(characters), following)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    print(f"{name:14} mean loss of the last 20 steps: {sum(losses[-20:]) / len(losses[-20:]):.3f}")

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for name, losses in curves.items():
    axes.plot(losses, label=name)
axes.set(xlabel="step", ylabel="loss of the batch", title="Character LSTM, learning rate 0.01")
axes.legend()
plt.show()
