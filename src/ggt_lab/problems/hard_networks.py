"""Small problems that are hard for first-order methods: a deep autoencoder, a plain RNN, a matrix factorization."""

import functools
import itertools
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ggt_lab.problems.registry import register

__all__ = ["AddingProblem", "CurvesAutoencoder", "Factorization", "curve_images"]


def curve_images(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Images (count, size²) of random cubic Bézier curves, with grey values in [0, 1].

    Four control points are drawn evenly from the unit square. A pixel is exp(-(distance to the curve in pixels)²), with
    the distance to the nearest of 24 points of the curve.
    """
    control = torch.rand(count, 4, 2, generator=generator)
    t = torch.linspace(0, 1, 24)
    weights = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], dim=1)
    curves = weights @ control * (size - 1)
    axis = torch.arange(size, dtype=torch.float32)
    pixels = torch.cartesian_prod(axis, axis)
    return torch.exp(-torch.cdist(curves, pixels.expand(count, -1, -1)).amin(dim=1).square())


@functools.cache
def _all_images(size: int) -> Tensor:
    return curve_images(3000, size, torch.Generator().manual_seed(0))


@register("curves")
class CurvesAutoencoder:
    """A deep autoencoder on images of random curves, after CURVES of Hinton and Salakhutdinov (2006).

    Images have 12 × 12 pixels. The layers have 144-96-48-24-12-6-12-24-48-96-144 units: tanh inside, a linear code of
    six numbers, a logistic output. A curve has eight numbers, so that the error cannot be zero. The loss is the squared
    error of an image, summed over pixels. 2000 images to train on, 500 to tune on, 500 to test; one set for all seeds.
    """

    steps = 600
    metric = "test_loss"
    batch, size = 200, 12
    widths = (144, 96, 48, 24, 12, 6, 12, 24, 48, 96, 144)

    def __init__(self, seed: int, device: torch.device) -> None:
        images = _all_images(self.size).to(device)
        self.images, self._aside, self._test = torch.split_with_sizes(images, [2000, 500, 500])
        self._batches = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(itertools.pairwise(self.widths)):
            layer = nn.Linear(before, after)
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
            is_code = number == len(self.widths) // 2 - 1
            layers += [layer] if is_code or number == len(self.widths) - 2 else [layer, nn.Tanh()]
        self.model = nn.Sequential(*layers, nn.Sigmoid()).to(device)

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.model.parameters()

    def _error(self, images: Tensor) -> Tensor:
        error: Tensor = (self.model(images) - images).square().sum(1).mean()
        return error

    def loss(self) -> Tensor:
        index = torch.randint(0, len(self.images), (self.batch,), generator=self._batches)
        return self._error(self.images[index.to(self.images.device)])

    def evaluate(self) -> dict[str, float]:
        parts = {"loss": self.images, "validation_loss": self._aside, "test_loss": self._test}
        return {name: self._error(images).item() for name, images in parts.items()}


@register("adding")
class AddingProblem:
    """The adding problem of Hochreiter and Schmidhuber (1997), for a plain tanh RNN of 32 units.

    A sequence has 30 pairs of a number from [0, 1] and a mark. Two marks are one, in the first and in the second half
    of the sequence, and the target is the sum of the two numbers. Whoever always answers 1 has an error of 1/6. Each
    batch is new. The hidden matrix starts orthogonal. Errors are means over 1000 sequences; those for tuning differ
    from those for the report.
    """

    steps = 600
    metric = "test_loss"
    batch, length, width = 50, 30, 32

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._aside, self._test = (self._draw(1000, torch.Generator().manual_seed(10 * seed + k)) for k in (1, 2))
        self._batches = torch.Generator().manual_seed(10 * seed)
        torch.manual_seed(seed)
        self.recurrent = nn.RNN(2, self.width, batch_first=True)
        self.out = nn.Linear(self.width, 1)
        nn.init.orthogonal_(self.recurrent.get_parameter("weight_hh_l0"))
        self.recurrent.to(device)
        self.out.to(device)

    def _draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sequences (count, length, 2) and their targets (count)."""
        numbers = torch.rand(count, self.length, generator=generator)
        half = self.length // 2
        places = torch.randint(0, half, (count, 2), generator=generator) + torch.tensor([0, half])
        marks = torch.zeros(count, self.length).scatter_(1, places, 1.0)
        return torch.stack([numbers, marks], dim=2).to(self._device), (numbers * marks).sum(1).to(self._device)

    def parameters(self) -> Iterable[nn.Parameter]:
        return itertools.chain(self.recurrent.parameters(), self.out.parameters())

    def _error(self, sequences: Tensor, targets: Tensor) -> Tensor:
        states: Tensor = self.recurrent(sequences)[0]
        return functional.mse_loss(self.out(states[:, -1])[:, 0], targets)

    def loss(self) -> Tensor:
        return self._error(*self._draw(self.batch, self._batches))

    def evaluate(self) -> dict[str, float]:
        return {"validation_loss": self._error(*self._aside).item(), "test_loss": self._error(*self._test).item()}


@register("factorization")
class Factorization:
    """Two factors of a 32 × 32 matrix with condition number 1e4: ‖L·R - A‖²/‖A‖², all of it in every step.

    The singular values of A go evenly from 1 to 1e-4 on a logarithmic scale; the seed draws its singular vectors. The
    factors are square, so that the infimum is zero. They start from a normal distribution with deviation 1/√32.
    """

    steps = 1000
    metric = "loss"
    size, condition = 32, 1e4

    def __init__(self, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal() -> Tensor:
            return torch.randn(self.size, self.size, generator=generator)

        values = torch.logspace(0, -math.log10(self.condition), self.size)
        left, right = (torch.linalg.qr(normal())[0] for _ in range(2))
        self.target = (left * values @ right.T).to(device)
        self.left, self.right = (nn.Parameter((normal() / math.sqrt(self.size)).to(device)) for _ in range(2))

    def parameters(self) -> Iterable[nn.Parameter]:
        return [self.left, self.right]

    def loss(self) -> Tensor:
        error: Tensor = (self.left @ self.right - self.target).square().sum() / self.target.square().sum()
        return error

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.loss().item()}
