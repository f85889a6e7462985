"""Functions whose gradients an algorithm sees with noise."""

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Oracle", "Proximal", "SparseNoise"]


class Oracle(Protocol):
    """A function f of a vector, with exact values for the analyst and noisy gradients for the algorithm.

    σ-bounded means E‖noisy gradient - exact gradient‖² ≤ σ².
    """

    sigma: float

    def value(self, x: Tensor) -> Tensor:
        """f(x), shape ()."""
        ...

    def gradient(self, x: Tensor) -> Tensor:
        """∇f(x), exact, shape (d,)."""
        ...

    def sample(self, x: Tensor) -> Tensor:
        """A stochastic gradient at x, shape (d,), unbiased."""
        ...


class Proximal:
    """f_t(x) = f(x) + λ‖x - centre‖²: what each window of Algorithm 3 minimizes.

    Args:
        oracle: f.
        centre: x_t.
        strength: λ.
    """

    def __init__(self, oracle: Oracle, centre: Tensor, strength: float) -> None:
        self.oracle = oracle
        self.centre = centre
        self.strength = strength
        self.sigma = oracle.sigma  # the added term is deterministic

    def value(self, x: Tensor) -> Tensor:
        """f(x) + λ‖x - centre‖²."""
        return self.oracle.value(x) + self.strength * (x - self.centre).square().sum()

    def gradient(self, x: Tensor) -> Tensor:
        """∇f(x) + 2λ(x - centre)."""
        return self.oracle.gradient(x) + 2 * self.strength * (x - self.centre)

    def sample(self, x: Tensor) -> Tensor:
        """A stochastic gradient of f plus 2λ(x - centre)."""
        return self.oracle.sample(x) + 2 * self.strength * (x - self.centre)


class SparseNoise:
    """The paper's example: f(x) = ‖x‖² with noise ±z, where z is a random vector of an orthonormal basis; σ = 1.

    Args:
        dimension: d.
        generator: the source of all randomness, also of the basis.
        rotated: True draws a random basis. False takes the coordinate axes, along which full-matrix AdaGrad is (without
            the effect of ε) one-dimensional AdaGrad in each coordinate.

    Example:
        >>> oracle = SparseNoise(3, torch.Generator().manual_seed(0))
        >>> float(oracle.value(torch.ones(3, dtype=torch.float64)))
        3.0
    """

    sigma = 1.0

    def __init__(self, dimension: int, generator: torch.Generator, *, rotated: bool = True) -> None:
        self._generator = generator
        self.basis = torch.eye(dimension, dtype=torch.float64)
        if rotated:
            gaussian = torch.randn(dimension, dimension, dtype=torch.float64, generator=generator)
            self.basis, triangle = torch.linalg.qr(gaussian)
            self.basis = self.basis * triangle.diagonal().sign()  # uniform over the orthogonal group

    def value(self, x: Tensor) -> Tensor:
        """‖x‖²."""
        return x.square().sum()

    def gradient(self, x: Tensor) -> Tensor:
        """2x."""
        return 2 * x

    def sample(self, x: Tensor) -> Tensor:
        """2x ± z."""
        which = int(torch.randint(self.basis.shape[0], (), generator=self._generator))
        sign = 1 - 2 * int(torch.randint(2, (), generator=self._generator))
        return 2 * x + sign * self.basis[:, which]
