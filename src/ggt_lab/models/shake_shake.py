"""Shake-Shake 26 2×32d (Gastaldi 2017), after the author's code: the paper's 3-branch residual network for CIFAR-10.

    x ↦ skip(x) + α·branch₁(x) + (1 − α)·branch₂(x),   α uniform on [0, 1], one per image.

In the backward pass β stands in place of α, drawn independently ("Shake-Shake-Image"). In evaluation both are 1/2.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

__all__ = ["ShakeBlock", "ShakeShake26", "ShiftedSkip", "shake"]


class _Shake(torch.autograd.Function):
    @staticmethod
    def forward(first: Tensor, second: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        return torch.lerp(second, first, alpha)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch gives it no type
        (beta,) = ctx.saved_tensors
        to_first = beta * gradient
        return to_first, gradient - to_first, None, None


def shake(first: Tensor, second: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """α·first + (1 − α)·second. The backward pass takes β in place of α.

    Args:
        first: the output of one branch (batch, …).
        second: the output of the other branch.
        alpha: α, of a shape that broadcasts against the outputs.
        beta: β, of such a shape too.

    Example:
        >>> x = torch.tensor([1.0], requires_grad=True)
        >>> y = shake(x, torch.zeros(1), torch.tensor([0.25]), torch.tensor([0.75]))
        >>> y.item(), torch.autograd.grad(y, x)[0].item()
        (0.25, 0.75)
    """
    mixed: Tensor = _Shake.apply(first, second, alpha, beta)  # type: ignore[no-untyped-call]
    return mixed


class ShiftedSkip(nn.Module):
    """The skip connection where the width changes: two paths that see different pixels, side by side.

    ReLU; then every stride-th pixel, and every stride-th pixel of the image shifted right and down by one; a 1 × 1
    convolution to half of the channels for each; batch normalization of both together.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.straight = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.shifted = nn.Conv2d(inputs, outputs - outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, side, side) to (batch, outputs, side/stride, side/stride)."""
        x = x.relu()
        moved = functional.pad(x, (1, -1, 1, -1))
        step = self.stride
        paths = [self.straight(x[:, :, ::step, ::step]), self.shifted(moved[:, :, ::step, ::step])]
        normed: Tensor = self.norm(torch.cat(paths, 1))
        return normed


def _branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outputs),
    )


class ShakeBlock(nn.Module):
    """Two residual branches, mixed at random, beside a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _branch(inputs, outputs, stride), _branch(inputs, outputs, stride)
        self.skip = nn.Identity() if inputs == outputs else ShiftedSkip(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's sum; random in training."""
        first, second = self.first(x), self.second(x)
        if self.training:
            # Both are drawn here, so that the backward pass draws no random numbers.
            alpha, beta = torch.rand(2, x.shape[0], 1, 1, 1, dtype=x.dtype, device=x.device)
            mixed = shake(first, second, alpha, beta)
        else:
            mixed = torch.lerp(first, second, 0.5)
        summed: Tensor = self.skip(x) + mixed
        return summed


class ShakeShake26(nn.Module):
    """26 layers: a convolution to 16 channels, 3 stages of ``blocks`` shake blocks, and a linear classifier.

    Widths are base, 2·base and 4·base; base = 32 is "2×32d", with 2,923,162 parameters. Convolutions start from a
    normal distribution of variance 2/(9·outputs), as in the author's code.

    Args:
        base: width of the first stage.
        blocks: per stage; 4 make 26 layers.
        classes: outputs.
    """

    def __init__(self, base: int = 32, blocks: int = 4, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)]
        inputs = 16
        for stage in range(3):
            outputs = base * 2**stage
            for block in range(blocks):
                layers.append(ShakeBlock(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
                inputs = outputs
        self.features = nn.Sequential(*layers, nn.ReLU())
        self.classify = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels)))
        nn.init.zeros_(self.classify.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, 32, 32)."""
        logits: Tensor = self.classify(self.features(images).mean((2, 3)))
        return logits
