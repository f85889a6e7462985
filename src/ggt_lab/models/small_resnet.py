"""A small residual network for CIFAR-10."""

import itertools

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["SmallResNet"]


class _Block(nn.Module):
    """x + convolution(convolution(x)), with batch normalization; a 1 × 1 convolution where the size changes."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inside = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inside)) + self.skip(x))


class SmallResNet(nn.Module):
    """A convolution, then pairs of blocks with w, 2w and 4w channels, the mean over pixels, and a linear layer.

    Args:
        width: w.
        blocks: the number of blocks with equal channels.

    Example:
        >>> import torch
        >>> SmallResNet(width=4, blocks=1)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        channels = [width, *(width * 2**level for level in range(3) for _ in range(blocks))]
        self.blocks = nn.Sequential(*(_Block(a, b) for a, b in itertools.pairwise(channels)))
        self.out = nn.Linear(4 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, 10) of images (batch, 3, height, width)."""
        logits: Tensor = self.out(self.blocks(self.stem(images)).mean((2, 3)))
        return logits
