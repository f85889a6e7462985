"""A small causal transformer over characters, for the examples on several ranks."""

from torch import Tensor, nn

CONTEXT = 64  # characters


class CharModel(nn.Module):
    """A causal transformer over bytes: embedding, blocks, a linear head."""

    def __init__(self, width: int = 64, blocks: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, 128)

    def forward(self, text: Tensor) -> Tensor:
        """Logits (batch · characters, 128) of the next character."""
        x = self.characters(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(0, 1))


class Block(nn.Module):
    """Attention and a perceptron, each beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, characters, width) to the same."""
        q, k, v = self.attention(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.between(x))
