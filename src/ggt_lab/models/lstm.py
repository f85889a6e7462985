"""Recurrent language models, by characters and by words.

Inputs are codes (length, batch) and the hidden state after the text before. Outputs are logits (length, batch,
vocabulary) of the next token, and the new hidden state, a tuple of tensors. For truncated back-propagation through time
the caller detaches the state between calls.
"""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CharLSTM3", "DropConnectLSTM", "Hidden", "WordLSTM", "locked_dropout"]

Hidden = tuple[Tensor, ...]


class CharLSTM3(nn.Module):
    """Three layers of LSTM: the paper's "about 5 M parameters" for characters.

    With embedding e, width h and vocabulary V: V·e + 4h(e + h + 2) + 2·4h(2h + 2) + (h + 1)V parameters, which is
    5,299,450 for the defaults and V = 50.

    Args:
        vocabulary: number of different tokens.
        embedding: the size of the vector of a token.
        width: the width of every layer.
        dropout: the probability between the layers, in training. The layers are then three calls and not one: the
            dropout of cuDNN makes the host wait after a seed was set, and cannot be captured in a CUDA graph.
        dropout_output: the probability for the output of the last layer.
        weight_drop: the probability for the recurrent weights, see `DropConnectLSTM`.

    Example:
        >>> model = CharLSTM3(vocabulary=50, embedding=8, width=16)
        >>> logits, hidden = model(torch.zeros(7, 2, dtype=torch.int64))
        >>> logits.shape, [part.shape for part in hidden]
        (torch.Size([7, 2, 50]), [torch.Size([3, 2, 16]), torch.Size([3, 2, 16])])
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 128,
        width: int = 500,
        dropout: float = 0.0,
        dropout_output: float = 0.0,
        weight_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        if dropout or weight_drop:
            self.layers = nn.ModuleList(DropConnectLSTM(size, width, weight_drop) for size in (embedding, width, width))
        else:
            self.layers = nn.ModuleList([nn.LSTM(embedding, width, num_layers=3)])
        self.dropout_between = nn.Dropout(dropout)
        self.dropout_output = nn.Dropout(dropout_output)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, codes: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """Logits, and the state (h, c), each (3, batch, width)."""
        x = self.embed(codes)
        before = [None] * len(self.layers) if hidden is None else _by_layer(hidden, len(self.layers))
        after = []
        for index, (layer, given) in enumerate(zip(self.layers, before, strict=True)):
            x, state = layer(self.dropout_between(x) if index else x, given)
            after.append(state)
        return self.out(self.dropout_output(x)), tuple(torch.cat(parts) for parts in zip(*after, strict=True))


def _by_layer(hidden: Hidden, layers: int) -> list[Hidden]:
    return list(zip(*(part.chunk(layers) for part in hidden), strict=True))


def locked_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Variational dropout: one mask (batch, features) for all time steps of x (length, batch, features)."""
    if not training or probability == 0.0:
        return x
    return x * functional.dropout(torch.ones_like(x[:1]), probability)


class DropConnectLSTM(nn.LSTM):
    """One layer of LSTM with weight drop (Merity et al. 2018): one dropout mask on the recurrent weights per call."""

    def __init__(self, inputs: int, width: int, weight_drop: float = 0.0) -> None:
        super().__init__(inputs, width)
        self.weight_drop = weight_drop

    def forward(  # type: ignore[override]
        self, x: Tensor, hidden: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As `torch.nn.LSTM`."""
        if not self.training or self.weight_drop == 0.0:
            output, (h, c) = super().forward(x, hidden)
            return output, (h, c)
        inputs, recurrent, *biases = self.all_weights[0]
        weights: list[Tensor] = [inputs, functional.dropout(recurrent, self.weight_drop), *biases]
        # cuDNN wants all weights in one block of memory, in this order.
        flat = torch.split(torch.cat([weight.flatten() for weight in weights]), [weight.numel() for weight in weights])
        views = [part.view_as(weight) for part, weight in zip(flat, weights, strict=True)]
        state = hidden or (x.new_zeros(1, x.shape[1], self.hidden_size),) * 2
        output, h, c = torch.lstm(x, state, views, True, 1, 0.0, True, False, False)
        return output, (h, c)


class WordLSTM(nn.Module):
    """A word-level LSTM after AWD-LSTM (Merity et al. 2018): output weights tied to the embedding, locked dropout.

    It has dropout of whole words in the embedding, locked dropout of the input, between layers and of the output, and
    weight drop of the recurrent matrices. It does not have activation regularization, random lengths of
    back-propagation, averaged SGD, and fine-tuning. With the defaults and a vocabulary of 10,000 it has 24,221,600
    parameters, as AWD-LSTM has.

    Args:
        vocabulary: the number of different words.
        embedding: the size of the vector of a word. The last layer has this width, for the tying.
        width: the width of the layers before the last.
        layers: the number of layers, with the last.
        dropout: the dropout of the output.
        dropout_between: the dropout between layers.
        dropout_input: the dropout of the embedded words.
        dropout_words: the dropout of whole words, wherever they occur.
        weight_drop: the dropout of the recurrent weights.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 400,
        width: int = 1150,
        layers: int = 3,
        *,
        dropout: float = 0.4,
        dropout_between: float = 0.25,
        dropout_input: float = 0.4,
        dropout_words: float = 0.1,
        weight_drop: float = 0.5,
    ) -> None:
        super().__init__()
        self.dropout, self.dropout_between, self.dropout_input = dropout, dropout_between, dropout_input
        self.dropout_words = dropout_words
        self.embed = nn.Embedding(vocabulary, embedding)
        widths = [embedding, *[width] * (layers - 1), embedding]
        self.layers = nn.ModuleList(
            DropConnectLSTM(inputs, outputs, weight_drop) for inputs, outputs in itertools.pairwise(widths)
        )
        self.out_bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, codes: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """Logits, and the state (h, c, h, c, …), each (1, batch, width of its layer)."""
        x = locked_dropout(functional.embedding(codes, self._words()), self.dropout_input, self.training)
        after: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x, state = layer(x, hidden[2 * number : 2 * number + 2] if hidden is not None else None)
            after.extend(state)
            last = number == len(self.layers) - 1
            x = locked_dropout(x, self.dropout if last else self.dropout_between, self.training)
        return functional.linear(x, self.embed.weight, self.out_bias), tuple(after)

    def _words(self) -> Tensor:
        """The embedding with whole rows dropped out."""
        weight = self.embed.weight
        if not self.training or self.dropout_words == 0.0:
            return weight
        return weight * functional.dropout(torch.ones_like(weight[:, :1]), self.dropout_words)
