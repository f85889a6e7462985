"""The paper's deep experiments as problems: images (C1, A1), characters (R1, A2), words (R4).

What a class fixes (batch, length, epochs, dropout, size of the model) are class attributes, so that a subclass is an
experiment with other settings. Every problem has a tiny variant, its name and ``-tiny``: the same code with the
attributes in ``tiny`` put over its own, on data made up on the spot.

Nothing random has a state: the order of an epoch is a function of (seed, epoch), the noise inside the model (dropout,
shakes) of (seed, step). So a run that is saved and loaded goes on as if it had not been interrupted. (One exception:
between the layers of an LSTM on CUDA, cuDNN draws dropout masks from a state of its own.) No step waits for the device.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.data import (
    Crops,
    Images,
    Text,
    channel_statistics,
    crop_and_flip,
    draw_crops,
    load_cifar10,
    load_ptb_characters,
    load_ptb_words,
    normalize,
    pad_images,
    synthetic_images,
    synthetic_text,
)
from ggt_lab.models import VGG19, CharLSTM3, CharTransformer, Hidden, ShakeShake26, WordLSTM
from ggt_lab.models.vgg import CONVOLUTIONS
from ggt_lab.problems.base import register

__all__ = [
    "Cifar10",
    "Cifar10VGG",
    "DeepProblem",
    "ImageProblem",
    "PTBCharacters",
    "PTBCharactersTransformer",
    "PTBWords",
    "RecurrentProblem",
    "WindowProblem",
    "register_with_tiny",
]

_ORDER, _NOISE = 1, 2
_IGNORED = -100  # the target that cross_entropy leaves out, for the padding of validation text
_C = TypeVar("_C", bound="type[DeepProblem]")


def register_with_tiny(name: str) -> Callable[[_C], _C]:
    """Class decorator: make a deep problem known by ``name``, and its tiny variant by ``name-tiny``."""

    def add(cls: _C) -> _C:
        register(name)(cls)
        register(f"{name}-tiny")(type(f"Tiny{cls.__name__}", (cls,), {**cls.tiny, "synthetic": True}))
        return cls

    return add


def derived_seed(seed: int, purpose: int, number: int) -> int:
    """A seed for one use of a run's seed; different uses get streams that have nothing to do with each other."""
    return int(np.random.SeedSequence((seed, purpose, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that overflows: a diverged run must not raise."""
    return math.exp(loss) if loss < 700 else math.inf


def _parts(size: int, first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both tensors, ``size`` rows at a time."""
    return zip(torch.split(first, size), torch.split(second, size), strict=True)


class DeepProblem:
    """What the deep problems share: epochs, noise by step, the running training loss, and exact resumption.

    Attributes:
        metric: which number of `evaluate` is to be small.
        epochs: how long a run is; ``steps`` is that times ``steps_per_epoch``.
        batch: sequences or images per step.
        autocast: on a GPU, compute the model in bfloat16; parameters and gradients stay float32.
        synthetic: made-up data in place of the real.
        tiny: what the tiny variant has in place of these attributes.
        steps_per_epoch: whole batches in the data; set when it is loaded.
        step: how many losses were taken.
    """

    metric: str
    epochs: int
    batch: int
    autocast: bool = False
    synthetic: bool = False
    tiny: ClassVar[Mapping[str, Any]] = {}

    model: nn.Module
    steps: int
    steps_per_epoch: int

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, torch.device(device)
        self.step = 0
        self._load()
        if self.steps_per_epoch < 1:
            raise ValueError(f"the data is less than one batch of {self.batch}; take a smaller batch or length")
        self.steps = self.epochs * self.steps_per_epoch
        torch.manual_seed(seed)
        self.model = self._make_model().to(self.device)
        self._losses = torch.zeros((), dtype=torch.float64, device=self.device)
        self._counted = 0

    def _load(self) -> None:
        """Put the data on the device, and set ``steps_per_epoch``."""
        raise NotImplementedError

    def _make_model(self) -> nn.Module:
        raise NotImplementedError

    def _start_epoch(self, generator: torch.Generator) -> None:
        """Lay out the data of an epoch; everything random from ``generator``."""
        raise NotImplementedError

    def _batch_loss(self, position: int) -> Tensor:
        """The loss of batch ``position`` of the epoch."""
        raise NotImplementedError

    def _evaluate(self) -> dict[str, float]:
        raise NotImplementedError

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.model.parameters()

    def loss(self) -> Tensor:
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if position == 0:
            self._start_epoch(self._order_of(epoch))
        if not self.model.training:
            self.model.train()
        torch.manual_seed(derived_seed(self.seed, _NOISE, self.step))
        with self._precision():
            loss = self._batch_loss(position)
        self._losses += loss.detach()
        self._counted += 1
        self.step += 1
        return loss

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Numbers of held-out data, and the mean training loss since the last evaluation, if there was a step."""
        self.model.eval()
        with self._precision():
            numbers = self._evaluate()
        if self._counted:
            numbers["train_loss"] = self._losses.item() / self._counted
        self._losses.zero_()
        self._counted = 0
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Everything that a fresh object of the same class and seed needs to go on; copies, so it may be kept."""
        return {
            "settings": self._settings(),
            "model": {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()},
            "step": self.step,
            "losses": self._losses.clone(),
            "counted": self._counted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the object that gave ``state`` was.

        Raises:
            ValueError: it was of another problem, seed or setting; nothing is changed then.
        """
        theirs, ours = state["settings"], self._settings()
        differing = [
            f"{key} ({theirs.get(key)!r} there, {ours[key]!r} here)" for key in ours if theirs.get(key) != ours[key]
        ]
        if differing:
            raise ValueError(f"the saved run is another one: it differs in {', '.join(differing)}")
        self.model.load_state_dict(state["model"])
        self.step, self._counted = state["step"], state["counted"]
        self._losses.copy_(state["losses"])
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if position:  # otherwise the next step starts an epoch anyway
            self._start_epoch(self._order_of(epoch))

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast and self.device.type == "cuda")

    def _order_of(self, epoch: int) -> torch.Generator:
        # On the CPU whatever the device, so that all devices see one order; it is copied over once an epoch.
        return torch.Generator().manual_seed(derived_seed(self.seed, _ORDER, epoch))

    def _settings(self) -> dict[str, Any]:
        """What must agree for a saved run to go on."""
        return {
            "problem": type(self).__name__,
            "seed": self.seed,
            "batch": self.batch,
            "autocast": self.autocast,
            "steps_per_epoch": self.steps_per_epoch,
        }


class ImageProblem(DeepProblem):
    """Classify CIFAR-10, augmented by 4-pixel zero padding, random crops and flips; all of it on the device.

    Evaluates to ``test_loss``, ``test_accuracy``, ``test_error`` and ``train_loss``. Batches at the end of an epoch
    that are not full are left out, other images each epoch.
    """

    metric = "test_loss"
    batch = 128
    evaluation_batch = 1000
    _order: Tensor
    _crops: Crops

    def _read(self) -> Images:
        return synthetic_images(train=64, test=32) if self.synthetic else load_cifar10()

    def _load(self) -> None:
        data = self._read()
        self.padded = pad_images(torch.from_numpy(data.train_images).to(self.device))
        self.labels = torch.from_numpy(data.train_labels).long().to(self.device)
        self.test_images = torch.from_numpy(data.test_images).to(self.device)
        self.test_labels = torch.from_numpy(data.test_labels).long().to(self.device)
        self._statistics = channel_statistics(self.device)
        self.steps_per_epoch = len(self.labels) // self.batch

    def _start_epoch(self, generator: torch.Generator) -> None:
        count = len(self.labels)
        self._order = torch.randperm(count, generator=generator).to(self.device)
        self._crops = draw_crops(count, generator).to(self.device)

    def _batch_loss(self, position: int) -> Tensor:
        part = slice(position * self.batch, (position + 1) * self.batch)
        index = self._order[part]
        images = crop_and_flip(self.padded, index, self._crops[part])
        return functional.cross_entropy(self.model(normalize(images, *self._statistics)), self.labels[index])

    def _evaluate(self) -> dict[str, float]:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        for images, labels in _parts(self.evaluation_batch, self.test_images, self.test_labels):
            logits = self.model(normalize(images, *self._statistics))
            total += functional.cross_entropy(logits, labels, reduction="sum")
            right += (logits.argmax(1) == labels).sum()
        count = len(self.test_labels)
        accuracy = right.item() / count
        return {"test_loss": total.item() / count, "test_accuracy": accuracy, "test_error": 1 - accuracy}


@register_with_tiny("cifar10")
class Cifar10(ImageProblem):
    """Claim C1: Shake-Shake 26 2×32d, batches of 128. The paper leaves the number of epochs open."""

    epochs = 30
    base, blocks = 32, 4
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 16, "base": 4, "blocks": 1}

    def _make_model(self) -> nn.Module:
        return ShakeShake26(self.base, self.blocks)


@register_with_tiny("cifar10-vgg")
class Cifar10VGG(ImageProblem):
    """Claim A1: VGG-19 without batch normalization."""

    epochs = 30
    dropout = 0.5
    shrink = 1
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 16, "shrink": 16}

    def _make_model(self) -> nn.Module:
        groups = [[channels // self.shrink for channels in group] for group in CONVOLUTIONS]
        return VGG19(groups, hidden=512 // self.shrink, dropout=self.dropout)


class TextProblem(DeepProblem):
    """Predict the next token of a text.

    Evaluates to ``validation_perplexity`` and ``validation_loss`` (the mean of nats per token over the whole validation
    text), ``train_loss`` and ``train_perplexity``. Each epoch goes through the text from another start, around its end,
    and leaves out what does not fill a batch.
    """

    metric = "validation_perplexity"
    length: int
    dropout: float = 0.0
    evaluation_batch = 32

    def _read(self) -> Text:
        raise NotImplementedError

    def _load(self) -> None:
        text = self._read()
        self.vocabulary = len(text.vocabulary)
        self.train = torch.from_numpy(text.train).to(self.device)
        self.validation = torch.from_numpy(text.valid).to(self.device)
        self.steps_per_epoch = len(self.train) // self.batch // self.length

    def _from_random_start(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The training text around its end from a random start, and the same one token later."""
        start = int(torch.randint(0, len(self.train), (), generator=generator))
        return self.train.roll(-start), self.train.roll(-start - 1)

    def _losses_of(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """Summed losses of parts of the padded validation text, see `_evaluate`."""
        raise NotImplementedError

    def _evaluate(self) -> dict[str, float]:
        """Every token of the validation text but the first is predicted, once."""
        count = len(self.validation) - 1
        width = self._evaluation_width(count)
        missing = -count % width
        inputs = functional.pad(self.validation[:-1].long(), (0, missing))
        targets = functional.pad(self.validation[1:].long(), (0, missing), value=_IGNORED)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in self._losses_of(inputs.view(-1, width), targets.view(-1, width)):
            total += part
        loss = total.item() / count
        return {"validation_perplexity": perplexity(loss), "validation_loss": loss}

    def _evaluation_width(self, count: int) -> int:
        """Into rows of which length the validation text is cut."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        numbers = super().evaluate()
        if "train_loss" in numbers:
            numbers["train_perplexity"] = perplexity(numbers["train_loss"])
        return numbers

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "length": self.length}


class RecurrentProblem(TextProblem):
    """Truncated back-propagation through time: ``batch`` places of the text, read on in parallel.

    The hidden state goes on from step to step and starts from zero with each epoch. In evaluation it goes on, too, in
    each of ``evaluation_batch`` pieces of the validation text, which first reads ``evaluation_context`` tokens of the
    piece before it (the first one, of the last) that are not counted: so many pieces at a time cost no perplexity.
    """

    evaluation_batch = 128
    evaluation_context = 100
    _inputs: Tensor
    _targets: Tensor
    _hidden: Hidden | None

    def _start_epoch(self, generator: torch.Generator) -> None:
        rows = len(self.train) // self.batch
        self._inputs, self._targets = (
            text[: rows * self.batch].view(self.batch, rows).t().contiguous()
            for text in self._from_random_start(generator)
        )
        self._hidden = None

    def _batch_loss(self, position: int) -> Tensor:
        part = slice(position * self.length, (position + 1) * self.length)
        logits, hidden = self.model(self._inputs[part].long(), self._hidden)
        self._hidden = tuple(tensor.detach() for tensor in hidden)
        return functional.cross_entropy(logits.flatten(0, 1), self._targets[part].long().flatten())

    def _evaluation_width(self, count: int) -> int:
        return math.ceil(count / self.evaluation_batch)

    def _losses_of(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        hidden: Hidden | None = None
        before = inputs.roll(1, 0)[:, -self.evaluation_context :]
        inputs = torch.cat([before, inputs], 1)
        targets = torch.cat([torch.full_like(before, _IGNORED), targets], 1)
        for codes, after in _parts(self.length, inputs.t(), targets.t()):
            logits, hidden = self.model(codes, hidden)
            yield functional.cross_entropy(
                logits.flatten(0, 1), after.flatten(), reduction="sum", ignore_index=_IGNORED
            )

    def state_dict(self) -> dict[str, Any]:
        mid_epoch = self.step % self.steps_per_epoch > 0
        hidden = self._hidden if mid_epoch else None
        return {**super().state_dict(), "hidden": None if hidden is None else [tensor.clone() for tensor in hidden]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        hidden = state["hidden"]
        self._hidden = None if hidden is None else tuple(tensor.to(self.device, copy=True) for tensor in hidden)


class WindowProblem(TextProblem):
    """Independent windows of ``length`` tokens, in random order.

    In evaluation the windows do not overlap: the first tokens of each are predicted from few before them.
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

    def _batch_loss(self, position: int) -> Tensor:
        index = self._order[position * self.batch : (position + 1) * self.batch]
        logits = self.model(self._inputs[index].long())
        return functional.cross_entropy(logits.flatten(0, 1), self._targets[index].long().flatten())

    def _evaluation_width(self, count: int) -> int:
        return self.length

    def _losses_of(self, inputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        for codes, after in _parts(self.evaluation_batch, inputs, targets):
            logits = self.model(codes).flatten(0, 1)
            yield functional.cross_entropy(logits, after.flatten(), reduction="sum", ignore_index=_IGNORED)


@register_with_tiny("ptb-chars")
class PTBCharacters(RecurrentProblem):
    """Claim R1: a 3-layer LSTM of 5.5 M parameters. The paper leaves batch, length and dropout open.

    With a dropout of 0.2 between the layers GGT overfits after 20 epochs, hence 0.5. A width of 512 in bfloat16 trains
    several times as fast on a GPU as one of 500 does.
    """

    epochs, batch, length, dropout = 50, 128, 100, 0.5
    embedding, width = 128, 512
    dropout_output = 0.0
    autocast = True
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 8, "length": 10, "embedding": 4, "width": 8}

    def _read(self) -> Text:
        return synthetic_text() if self.synthetic else load_ptb_characters()

    def _make_model(self) -> nn.Module:
        return CharLSTM3(self.vocabulary, self.embedding, self.width, self.dropout, self.dropout_output)


@register_with_tiny("ptb-words")
class PTBWords(RecurrentProblem):
    """Claim R4: a word-level LSTM after AWD-LSTM, with its dropouts."""

    epochs, batch, length, dropout = 40, 20, 70, 0.4
    dropout_between, dropout_input, dropout_words, weight_drop = 0.25, 0.4, 0.1, 0.5
    embedding, width, layers = 400, 1150, 3
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
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 8, "length": 16, "layers": 2, "width": 8, "heads": 2}

    def _read(self) -> Text:
        return synthetic_text() if self.synthetic else load_ptb_characters()

    def _make_model(self) -> nn.Module:
        return CharTransformer(self.vocabulary, self.length, self.layers, self.width, self.heads, self.dropout)
