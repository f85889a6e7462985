"""A decoder-only Transformer for characters. The paper names no architecture; this is the usual one.

We chose normalization before attention and before the feed-forward part, learned positions, GELU, a feed-forward width
of four times the width of the model, and an output layer that is not tied. Weights start from a normal distribution.
Its deviation is 0.02, and 0.02/√(2·layers) for weights that write into the residual stream. Biases start from zero.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CharTransformer"]


class _Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class _Layer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = _Attention(width, heads, dropout)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norms[0](x)))
        result: Tensor = x + self.drop(self.narrow(functional.gelu(self.widen(self.norms[1](x)))))
        return result


class CharTransformer(nn.Module):
    """Predicts the next token from the ones before it.

    With width w, L layers, vocabulary V and context C: L(12w² + 13w) + (2V + C + 2)w + V parameters, which is
    10,784,306 for the defaults and V = 50.

    Args:
        vocabulary: number of different tokens.
        context: the longest sequence.
        layers: number of attention and feed-forward pairs.
        width: the width of the residual stream.
        heads: the number of attention heads; it must divide the width.
        dropout: the dropout of embedded tokens, of attention weights and before the residual stream.

    Example:
        >>> model = CharTransformer(vocabulary=50, context=16, layers=2, width=8, heads=2)
        >>> model(torch.zeros(3, 16, dtype=torch.int64)).shape
        torch.Size([3, 16, 50])
    """

    def __init__(
        self,
        vocabulary: int,
        context: int = 256,
        layers: int = 6,
        width: int = 384,
        heads: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads must divide the width; got width {width} and {heads} heads")
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                into_stream = name.endswith(("attention.out.weight", "narrow.weight"))
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * layers) if into_stream else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, codes: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ``codes`` (batch, length)."""
        length = codes.shape[1]
        context = self.positions.num_embeddings
        if length > context:
            raise ValueError(f"a sequence of {length} tokens is longer than the context of {context}")
        x = self.drop(self.tokens(codes) + self.positions(torch.arange(length, device=codes.device)))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.out(self.norm(x))
        return logits
