"""The augmentation of CIFAR-10, a batch at a time, on the device that holds the images.

Random numbers are drawn beforehand, so that equal draws give equal images on every device, and nothing here waits for
the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["MEAN", "STD", "Crops", "channel_statistics", "crop_and_flip", "draw_crops", "normalize", "pad_images"]

# Mean and deviation of each channel of CIFAR-10's training images, in units of 255.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Crops:
    """The place where each image is cut out of its padded form, and whether it is mirrored; tensors (count,)."""

    top: Tensor
    left: Tensor
    flip: Tensor

    def __getitem__(self, index: slice) -> "Crops":
        """The crops of some of the images."""
        return Crops(self.top[index], self.left[index], self.flip[index])

    def to(self, device: torch.device) -> "Crops":
        """The crops on a device."""
        return Crops(self.top.to(device), self.left.to(device), self.flip.to(device))


def draw_crops(count: int, generator: torch.Generator, pad: int = 4) -> Crops:
    """Uniform offsets in 0 … 2·pad and fair coins, on the device of the generator."""
    device = generator.device
    top, left = torch.randint(0, 2 * pad + 1, (2, count), generator=generator, device=device)
    return Crops(top, left, torch.randint(0, 2, (count,), generator=generator, device=device).bool())


def pad_images(images: Tensor, pad: int = 4) -> Tensor:
    """Images (count, channels, height, width) with zeros, which are black, around them."""
    return functional.pad(images, (pad, pad, pad, pad))


def crop_and_flip(padded: Tensor, index: Tensor, crops: Crops, size: int = 32) -> Tensor:
    """Cut images out of their padded forms and mirror some of them, in one gather.

    Args:
        padded: all images (count, channels, height, width), see `pad_images`.
        index: the images of the batch, (batch,).
        crops: the crop of each image of the batch.
        size: height and width of the result.

    Returns:
        Tensor (batch, channels, size, size).

    Example:
        >>> image = torch.arange(9.0).reshape(1, 1, 3, 3)
        >>> crops = Crops(torch.tensor([1]), torch.tensor([0]), torch.tensor([True]))
        >>> crop_and_flip(image, torch.tensor([0]), crops, size=2)[0, 0]
        tensor([[4., 3.],
                [7., 6.]])
    """
    along = torch.arange(size, device=padded.device)
    rows = crops.top[:, None] + along
    columns = crops.left[:, None] + torch.where(crops.flip[:, None], size - 1 - along, along)
    channels = torch.arange(padded.shape[1], device=padded.device)[:, None, None]
    return padded[index[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None, :]]


def channel_statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation of CIFAR-10's training images, (3, 1, 1) each, in bytes."""
    mean, std = (255 * torch.tensor(values, device=device).reshape(3, 1, 1) for values in (MEAN, STD))
    return mean, std


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes (batch, channels, height, width) to float32: (x − mean)/std, see `channel_statistics`."""
    return (images.float() - mean) / std
