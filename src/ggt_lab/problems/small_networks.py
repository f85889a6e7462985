"""Small networks on data that every machine has: scikit-learn's digits, and the source of Python's standard library."""

import argparse
import inspect
import json
import textwrap
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.problems.registry import register

__all__ = ["CharLSTM", "Digits", "DigitsSplit", "StdlibChars"]


@register("digits")
class Digits:
    """Classify 8 × 8 digits with a small convolutional network; 1437 images to train on, 360 to test."""

    steps = 400
    metric = "loss"
    batch = 64
    validation = 0
    """How many images of the training set are set aside to tune on."""

    def __init__(self, seed: int, device: torch.device) -> None:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - a machine may not have it, and it is slow to import

        data = load_digits()
        images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
        labels = torch.tensor(data.target, dtype=torch.int64)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))  # one split for all seeds
        test, aside, train = torch.split_with_sizes(order, [360, self.validation, len(order) - 360 - self.validation])
        self.images, self.labels = images[train].to(device), labels[train].to(device)
        self.test_images, self.test_labels = images[test].to(device), labels[test].to(device)
        self._aside = images[aside].to(device), labels[aside].to(device)
        self._batches = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 10)).to(device)

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.model.parameters()

    def loss(self) -> Tensor:
        index = torch.randint(0, len(self.labels), (self.batch,), generator=self._batches).to(self.labels.device)
        return functional.cross_entropy(self.model(self.images[index]), self.labels[index])

    def evaluate(self) -> dict[str, float]:
        logits = self.model(self.test_images)
        numbers = {
            "loss": functional.cross_entropy(self.model(self.images), self.labels).item(),
            "test_loss": functional.cross_entropy(logits, self.test_labels).item(),
            "test_accuracy": (logits.argmax(1) == self.test_labels).float().mean().item(),
        }
        if self.validation:
            images, labels = self._aside
            numbers["validation_loss"] = functional.cross_entropy(self.model(images), labels).item()
        return numbers


@register("digits-split")
class DigitsSplit(Digits):
    """The digits in three parts: 1150 images to train on, 287 to tune on, 360 to test."""

    metric = "test_loss"
    validation = 287


class CharLSTM(nn.Module):
    """Two layers of LSTM that predict the next character."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 24)
        self.lstm = nn.LSTM(24, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, codes: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the next character at every position of ``codes`` (batch, length)."""
        logits: Tensor = self.out(self.lstm(self.embed(codes))[0])
        return logits


@register("stdlib-chars")
class StdlibChars:
    """A character LSTM on the source of a few modules of Python's standard library, its last tenth for validation."""

    steps = 300
    metric = "loss"
    batch, length = 32, 32

    def __init__(self, seed: int, device: torch.device) -> None:
        text = "".join(inspect.getsource(module) for module in (json, textwrap, argparse))
        codes = {character: code for code, character in enumerate(sorted(set(text)))}
        stream = torch.tensor([codes[character] for character in text]).to(device)
        boundary = int(0.9 * len(stream))
        self.train, self.validation = stream[:boundary], stream[boundary:]
        self._batches = torch.Generator().manual_seed(seed)
        self._offsets = torch.arange(self.length + 1, device=device)
        torch.manual_seed(seed)
        self.model = CharLSTM(len(codes)).to(device)

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.model.parameters()

    def loss(self) -> Tensor:
        last = len(self.train) - self.length
        starts = torch.randint(0, last, (self.batch, 1), generator=self._batches).to(self.train.device)
        return self._loss_of(self.train[starts + self._offsets])

    def evaluate(self) -> dict[str, float]:
        """The mean loss per character of validation text, in nats."""
        starts = torch.arange(0, len(self.validation) - self.length, self.length, device=self.validation.device)
        return {"loss": self._loss_of(self.validation[starts[:, None] + self._offsets]).item()}

    def _loss_of(self, sequences: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())
