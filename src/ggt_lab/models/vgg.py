"""VGG-19 (Simonyan and Zisserman 2015) for CIFAR-10, without batch normalization: the paper's "vanilla" network.

The paper says "19-layer" and no more. We chose the 16 convolutions of configuration E with biases, and five
max-poolings, which turn a 32 × 32 image into 512 numbers. Three linear layers 512 → 512 → 512 → 10 follow, with dropout
1/2 before the first two: the usual classifier for images of this size. That makes 19 layers with weights.
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["CONVOLUTIONS", "VGG19"]

CONVOLUTIONS = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)
"""Channels of the convolutions; a max-pooling follows each group."""


class VGG19(nn.Module):
    """Convolutions 3 × 3 in five groups, each followed by max-pooling, and three linear layers.

    Σ (9·in + 1)·out over the convolutions and Σ (in + 1)·out over the linear layers: 20,554,826 parameters. Weights of
    the convolutions start from a normal distribution with variance 2/(9·outputs), biases from zero.

    Args:
        convolutions: the channels of the convolutions, in groups.
        hidden: the width of the two hidden linear layers.
        dropout: the probability of dropout before each hidden linear layer.
        classes: the number of outputs.
    """

    def __init__(
        self,
        convolutions: Sequence[Sequence[int]] = CONVOLUTIONS,
        hidden: int = 512,
        dropout: float = 0.5,
        classes: int = 10,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for group in convolutions:
            for outputs in group:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classify = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (9 * module.out_channels)))
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, 32, 32)."""
        logits: Tensor = self.classify(self.features(images))
        return logits
