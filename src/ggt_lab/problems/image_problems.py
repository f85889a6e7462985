"""CIFAR-10 as problems: the paper's residual network (C1) and VGG-19 without batch normalization (A1)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.data import (
    Crops,
    Images,
    channel_statistics,
    crop_and_flip,
    draw_crops,
    load_cifar10,
    normalize,
    pad_images,
    synthetic_images,
)
from ggt_lab.models import VGG19, ShakeShake26
from ggt_lab.models.vgg import CONVOLUTIONS
from ggt_lab.problems.deep_problem import DeepProblem, in_parts, register_with_tiny

__all__ = ["Cifar10", "Cifar10VGG", "ImageProblem"]


class ImageProblem(DeepProblem):
    """Classify CIFAR-10, augmented by 4-pixel zero padding, random crops and flips. All of it happens on the device.

    `evaluate` gives ``test_loss``, ``test_accuracy``, ``test_error`` and ``train_loss``. The last images of an epoch
    that do not fill a batch are left out; they are other images in each epoch. With ``channels_last`` images have the
    memory layout that tensor cores want; parameters keep theirs. With ``validation`` the last so many training images
    are set aside to tune on, and `evaluate` gives their ``validation_loss``.
    """

    metric = "test_loss"
    batch = 128
    evaluation_batch = 1000
    validation = 0
    autocast = channels_last = True
    _order: Tensor
    _crops: Crops

    def _read(self) -> Images:
        return synthetic_images(train=64, test=32) if self.synthetic else load_cifar10()

    def _load(self) -> None:
        data = self._read()
        kept = len(data.train_labels) - self.validation
        images = torch.from_numpy(data.train_images).to(self.device)
        labels = torch.from_numpy(data.train_labels).long().to(self.device)
        self.padded, self.labels = pad_images(images[:kept]), labels[:kept]
        self._aside = images[kept:], labels[kept:]
        self.test_images = torch.from_numpy(data.test_images).to(self.device)
        self.test_labels = torch.from_numpy(data.test_labels).long().to(self.device)
        self._statistics = channel_statistics(self.device)
        self.steps_per_epoch = len(self.labels) // self.batch

    def _start_epoch(self, generator: torch.Generator) -> None:
        count = len(self.labels)
        self._order = torch.randperm(count, generator=generator).to(self.device)
        self._crops = draw_crops(count, generator).to(self.device)

    def _inputs_of(self, position: int) -> tuple[Tensor, ...]:
        part = slice(position * self.batch, (position + 1) * self.batch)
        index = self._order[part]
        return self._laid_out(crop_and_flip(self.padded, index, self._crops[part])), self.labels[index]

    def _loss_of(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        images, labels = inputs
        return functional.cross_entropy(self.model(images), labels), ()

    def _laid_out(self, images: Tensor) -> Tensor:
        """Normalized images, in the memory layout for the model."""
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        return normalize(images, *self._statistics).contiguous(memory_format=order)

    def _evaluate(self) -> dict[str, float]:
        loss, accuracy = self._score(self.test_images, self.test_labels)
        numbers = {"test_loss": loss, "test_accuracy": accuracy, "test_error": 1 - accuracy}
        return {**numbers, "validation_loss": self._score(*self._aside)[0]} if self.validation else numbers

    def _score(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """The mean loss and the accuracy on images that are not augmented."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        for some, classes in in_parts(self.evaluation_batch, images, labels):
            logits = self.model(self._laid_out(some))
            total += functional.cross_entropy(logits, classes, reduction="sum")
            right += (logits.argmax(1) == classes).sum()
        return total.item() / len(labels), right.item() / len(labels)


@register_with_tiny("cifar10")
class Cifar10(ImageProblem):
    """Claim C1: Shake-Shake 26 2×32d, batches of 128. The paper leaves the number of epochs open.

    A step has more than a thousand small kernels. Compiled and captured, it takes a small part of the time.
    """

    head = "classify.weight"
    epochs = 30
    base, blocks = 32, 4
    captured = compiled = True
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 16, "base": 4, "blocks": 1}

    def _make_model(self) -> nn.Module:
        return ShakeShake26(self.base, self.blocks)


@register_with_tiny("cifar10-vgg")
class Cifar10VGG(ImageProblem):
    """Claim A1: VGG-19 without batch normalization."""

    epochs = 30
    dropout = 0.5
    shrink = 1
    captured = compiled = True
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 16, "shrink": 16}

    def _make_model(self) -> nn.Module:
        groups = [[channels // self.shrink for channels in group] for group in CONVOLUTIONS]
        return VGG19(groups, hidden=512 // self.shrink, dropout=self.dropout)
