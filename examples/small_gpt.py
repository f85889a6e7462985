"""
3. A small GPT
==============

A transformer over characters, with three optimizers: AdamW; Muon for hidden matrices with AdamW for the rest; and GGT
with the polar finish, which is the whole-model matrix first and Muon's step second.
"""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from torch import nn

from torch_ggt import GGT, param_groups

STEPS, CONTEXT, WIDTH = 150, 32, 48
text = torch.frombuffer(bytearray("\n".join(topics.values()), "ascii", "replace"), dtype=torch.uint8).long()


class GPT(nn.Module):
    """Embeddings, two blocks with causal attention, a head."""

    def __init__(self):
        super().__init__()
        self.characters, self.positions = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, characters):
        """Logits (lines, 128, characters)."""
        x = self.characters(characters) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.head(x).transpose(1, 2)


# %%
# ``param_groups`` tells hidden matrices from embeddings, heads, norms and biases, and gives each its finish.
def muon_and_adamw(model):
    """Hidden matrices by Muon, the rest by AdamW."""
    hidden = [p for name, p in model.named_parameters() if p.dim() == 2 and name.startswith("blocks")]
    rest = [p for p in model.parameters() if all(p is not q for q in hidden)]
    muon = torch.optim.Muon(hidden, lr=0.01, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=0.01)]


OPTIMIZERS = {
    "AdamW": lambda model: [torch.optim.AdamW(model.parameters(), lr=0.01)],
    "Muon and AdamW": muon_and_adamw,
    "GGT, polar finish": lambda model: [GGT(param_groups(model), lr=0.01)],
}

# %%
curves = {}
for name, make in OPTIMIZERS.items():
    torch.manual_seed(0)
    model = GPT()
    optimizers, losses = make(model), curves.setdefault(name, [])
    for _ in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT - 1, (16,))
        rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(rows[:, :-1]), rows[:, 1:])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    plt.plot(losses, label=name)
    print(f"{name:18} mean loss of the last 20 steps: {sum(losses[-20:]) / len(losses[-20:]):.3f}")
size = sum(parameter.numel() for parameter in model.parameters())
plt.gca().set(xlabel="step", ylabel="loss of the batch", title=f"A GPT of {size:,} parameters")
plt.legend()
plt.show()
