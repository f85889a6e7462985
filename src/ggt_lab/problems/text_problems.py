"""The Penn Treebank as problems: characters by an LSTM (R1) and a Transformer (A2), words by an LSTM (R4)."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.data import Text, load_ptb_characters, load_ptb_words, synthetic_text
from ggt_lab.models import CharLSTM3, CharTransformer, Hidden, WordLSTM
from ggt_lab.problems.deep_problem import DeepProblem, in_parts, register_with_tiny

__all__ = [
    "PTBCharacters",
    "PTBCharactersTransformer",
    "PTBWords",
    "RecurrentProblem",
    "TextProblem",
    "WindowProblem",
    "perplexity",
]

_IGNORED = -100  # cross_entropy leaves this target out; the padding of the validation text has it


def perplexity(loss: float) -> float:
    """exp(loss); infinite where exp overflows, so that a diverged run does not raise."""
    return math.exp(loss) if loss < 700 else math.inf


class TextProblem(DeepProblem):
    """Predict the next token of a text.

    `evaluate` gives ``validation_perplexity``, ``validation_loss`` (the mean number of nats per token over the whole
    validation text), ``train_loss`` and ``train_perplexity``. Each epoch begins at another place of the text, goes
    around its end, and leaves out the tokens that do not fill a batch. With ``with_test`` there are also ``test_loss``
    and ``test_perplexity``.
    """

    metric = "validation_perplexity"
    length: int
    dropout: float = 0.0
    evaluation_batch = 32
    with_test = False

    def _read(self) -> Text:
        raise NotImplementedError

    def _load(self) -> None:
        text = self._read()
        self.vocabulary = len(text.vocabulary)
        self.train = torch.from_numpy(text.train).to(self.device)
        self.validation, self.test = (torch.from_numpy(part).to(self.device) for part in (text.valid, text.test))
        self.steps_per_epoch = len(self.train) // self.batch // self.length

    def _from_random_start(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The training text from a random start around its end, and the text shifted by one token."""
        start = int(torch.randint(0, len(self.train), (), generator=generator))
        return self.train.roll(-start), self.train.roll(-start - 1)

    def _losses_of(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """Sums of losses over parts of the padded validation text, see `_evaluate`."""
        raise NotImplementedError

    def _evaluate(self) -> dict[str, float]:
        loss = self._loss_on(self.validation)
        numbers = {"validation_perplexity": perplexity(loss), "validation_loss": loss}
        if self.with_test:
            test = self._loss_on(self.test)
            numbers |= {"test_perplexity": perplexity(test), "test_loss": test}
        return numbers

    def _loss_on(self, text: Tensor) -> float:
        """Predict every token of a text once, without the first."""
        count = len(text) - 1
        width = self._evaluation_width(count)
        missing = -count % width
        inputs = functional.pad(text[:-1].long(), (0, missing))
        targets = functional.pad(text[1:].long(), (0, missing), value=_IGNORED)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in self._losses_of(inputs.view(-1, width), targets.view(-1, width)):
            total += part
        return total.item() / count

    def _evaluation_width(self, count: int) -> int:
        """The length of the rows into which the validation text is cut."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        numbers = super().evaluate()
        if "train_loss" in numbers:
            numbers["train_perplexity"] = perplexity(numbers["train_loss"])
        return numbers

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "length": self.length}


class RecurrentProblem(TextProblem):
    """Truncated back-propagation through time: the text is read from ``batch`` places in parallel.

    The hidden state goes on from step to step and starts from zero in each epoch. For evaluation the validation text is
    cut into ``evaluation_batch`` parts, which are read in parallel. Each part first reads the last
    ``evaluation_context`` tokens of the part before it, and these are not counted. So the cuts cost no perplexity.
    """

    gradient_scale = 2.0**13
    evaluation_batch = 128
    evaluation_context = 100
    _inputs: Tensor
    _targets: Tensor
    _hidden: Hidden = ()

    def _start_epoch(self, generator: torch.Generator) -> None:
        rows = len(self.train) // self.batch
        self._inputs, self._targets = (
            text[: rows * self.batch].view(self.batch, rows).t().contiguous()
            for text in self._from_random_start(generator)
        )
        self._hidden = tuple(torch.zeros_like(tensor) for tensor in self._hidden)

    def _inputs_of(self, position: int) -> tuple[Tensor, ...]:
        part = slice(position * self.length, (position + 1) * self.length)
        return self._inputs[part].long(), self._targets[part].long(), *self._hidden

    def _loss_of(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        codes, targets, *hidden = inputs
        logits, after = self.model(codes, tuple(hidden) or None)  # in the very first step None stands for zeros
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss, tuple(tensor.detach() for tensor in after)

    def _carry(self, carried: tuple[Tensor, ...]) -> None:
        self._hidden = carried

    def _evaluation_width(self, count: int) -> int:
        return math.ceil(count / self.evaluation_batch)

    def _losses_of(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        hidden: Hidden | None = None
        before = inputs.roll(1, 0)[:, -self.evaluation_context :]
        inputs = torch.cat([before, inputs], 1)
        targets = torch.cat([torch.full_like(before, _IGNORED), targets], 1)
        for codes, after in in_parts(self.length, inputs.t(), targets.t()):
            logits, hidden = self.model(codes, hidden)
            yield functional.cross_entropy(
                logits.flatten(0, 1), after.flatten(), reduction="sum", ignore_index=_IGNORED
            )

    def state_dict(self) -> dict[str, Any]:
        mid_epoch = self.step % self.steps_per_epoch > 0
        return {**super().state_dict(), "hidden": [tensor.clone() for tensor in self._hidden] if mid_epoch else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._hidden = tuple(tensor.to(self.device, copy=True) for tensor in state["hidden"])


class WindowProblem(TextProblem):
    """Independent windows of ``length`` tokens, in random order.

    In evaluation the windows do not overlap, so that the first tokens of a window have little context.
    """

    _inputs: Tensor
    _targets: Tensor
    _order: Tensor

    def _start_epoch(self, generator: torch.Generator) -> None:
        windows = len(self.train) // self.length
        self._inputs, self._targets = (
            text[: windows * self.length].view(windows, self.length) for text in self._from_random_start(generator)
        )
        self._order = torch.randperm(windows, generator=generator).to(self.device)

    def _inputs_of(self, position: int) -> tuple[Tensor, ...]:
        index = self._order[position * self.batch : (position + 1) * self.batch]
        return self._inputs[index].long(), self._targets[index].long()

    def _loss_of(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        codes, targets = inputs
        return functional.cross_entropy(self.model(codes).flatten(0, 1), targets.flatten()), ()

    def _evaluation_width(self, count: int) -> int:
        return self.length

    def _losses_of(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        for codes, after in in_parts(self.evaluation_batch, inputs, targets):
            logits = self.model(codes).flatten(0, 1)
            yield functional.cross_entropy(logits, after.flatten(), reduction="sum", ignore_index=_IGNORED)


@register_with_tiny("ptb-chars")
class PTBCharacters(RecurrentProblem):
    """Claim R1: a 3-layer LSTM of 5.5 M parameters. The paper leaves batch, length and regularization open.

    GGT overfits sooner than the other optimizers, hence the drop of recurrent weights and the penalty. A step of width
    512 with autocast took half the time of a step of width 500 in float32; the host started both.
    """

    epochs, batch, length = 50, 896, 100
    embedding, width = 128, 512
    dropout, dropout_output, weight_drop, l2 = 0.2, 0.0, 0.3, 1e-5
    autocast = True
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 8, "length": 10, "embedding": 4, "width": 8}

    def _read(self) -> Text:
        return synthetic_text() if self.synthetic else load_ptb_characters()

    def _make_model(self) -> nn.Module:
        return CharLSTM3(
            self.vocabulary, self.embedding, self.width, self.dropout, self.dropout_output, self.weight_drop
        )


@register_with_tiny("ptb-words")
class PTBWords(RecurrentProblem):
    """Claim R4: a word-level LSTM after AWD-LSTM, with its dropouts.

    Two settings differ. Batches have 80 sequences; AWD-LSTM has 20. The width is 1152; AWD-LSTM has 1150, but matrix
    units want float16 rows whose length is a multiple of 8.
    """

    epochs, batch, length, dropout = 40, 80, 70, 0.4
    autocast = captured = True
    dropout_between, dropout_input, dropout_words, weight_drop = 0.25, 0.4, 0.1, 0.5
    embedding, width, layers = 400, 1152, 3
    evaluation_batch = 64
    tiny: ClassVar[Mapping[str, Any]] = {
        "epochs": 2,
        "batch": 8,
        "length": 10,
        "embedding": 6,
        "width": 8,
        "layers": 2,
    }

    def _read(self) -> Text:
        return synthetic_text(vocabulary=40) if self.synthetic else load_ptb_words()

    def _make_model(self) -> nn.Module:
        return WordLSTM(
            self.vocabulary,
            self.embedding,
            self.width,
            self.layers,
            dropout=self.dropout,
            dropout_between=self.dropout_between,
            dropout_input=self.dropout_input,
            dropout_words=self.dropout_words,
            weight_drop=self.weight_drop,
        )


@register_with_tiny("ptb-chars-transformer")
class PTBCharactersTransformer(WindowProblem):
    """Claim A2: a decoder-only Transformer of 10.8 M parameters. The paper names no architecture."""

    epochs, batch, length, dropout = 20, 64, 256, 0.1
    layers, width, heads = 6, 384, 6
    autocast = captured = compiled = True
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 8, "length": 16, "layers": 2, "width": 8, "heads": 2}

    def _read(self) -> Text:
        return synthetic_text() if self.synthetic else load_ptb_characters()

    def _make_model(self) -> nn.Module:
        return CharTransformer(self.vocabulary, self.length, self.layers, self.width, self.heads, self.dropout)
