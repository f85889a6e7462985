"""The paper's synthetic landscapes: logistic regression (S1), a polytope's analytic centre (S2), sparse noise (T3).

The settings are those of the paper: dimension 10, 1000 samples of an anisotropic Gaussian with σ²max/σ²min = 1e4. The
axes of the Gaussian are a random basis, for along the coordinate axes a diagonal method would equal a full-matrix one.
The paper leaves some settings open, and we chose: batches of 20 with replacement; a start at the origin, for the
polytope also near one of its vertices; a step that would leave the polytope is halved until it stays inside.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ggt_lab.problems.registry import register
from ggt_lab.theory import SparseNoise

__all__ = ["Barrier", "BarrierVertex", "Logistic", "SparseNoiseQuadratic"]

DIMENSION, SAMPLES, CONDITION, BATCH = 10, 1000, 1e4, 20


def anisotropic_gaussian(generator: torch.Generator) -> Tensor:
    """Samples (1000, 10) whose covariance has eigenvalues from 1 down to 1e-4, in a random basis."""
    deviations = torch.logspace(0, -0.5 * torch.tensor(CONDITION).log10().item(), DIMENSION, dtype=torch.float64)
    basis, _ = torch.linalg.qr(torch.randn(DIMENSION, DIMENSION, dtype=torch.float64, generator=generator))
    samples: Tensor = torch.randn(SAMPLES, DIMENSION, dtype=torch.float64, generator=generator) * deviations @ basis.T
    return samples


class _Synthetic:
    """Ten parameters, and a mean of terms that are sampled in batches."""

    steps = 500
    metric = "suboptimality"
    infimum = 0.0

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device
        self.samples = anisotropic_gaussian(self._generator).to(device)
        self.point = torch.nn.Parameter(torch.zeros(DIMENSION, dtype=torch.float64, device=device))

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        return [self.point]

    def terms(self, index: Tensor | slice) -> Tensor:
        """The losses of the chosen samples."""
        raise NotImplementedError

    def loss(self) -> Tensor:
        index = torch.randint(0, SAMPLES, (BATCH,), generator=self._generator).to(self._device)
        return self.terms(index).mean()

    def evaluate(self) -> dict[str, float]:
        loss = self.terms(slice(None)).mean().item()
        return {"suboptimality": loss - self.infimum, "loss": loss}


@register("logistic")
class Logistic(_Synthetic):
    """Logistic regression. A random hyperplane gives the labels, so that the infimum is 0 and is not attained."""

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__(seed, device)
        hyperplane = torch.randn(DIMENSION, dtype=torch.float64, generator=self._generator).to(device)
        self.signs = (self.samples @ hyperplane).sign()

    def terms(self, index: Tensor | slice) -> Tensor:
        return functional.softplus(-self.signs[index] * (self.samples[index] @ self.point))


@register("barrier")
class Barrier(_Synthetic):
    """The logarithmic barrier of a random polytope: -log(wᵀx_i + c_i), c_i uniform on [0, 1]."""

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__(seed, device)
        self.offsets = torch.rand(SAMPLES, dtype=torch.float64, generator=self._generator).to(device)
        self.infimum = _barrier_minimum(self.samples.cpu().numpy(), self.offsets.cpu().numpy())
        self._inside = self.point.detach().clone()

    def terms(self, index: Tensor | slice) -> Tensor:
        return -(self.samples[index] @ self.point + self.offsets[index]).log()

    def loss(self) -> Tensor:
        self._return_inside()
        return super().loss()

    def evaluate(self) -> dict[str, float]:
        self._return_inside()
        return super().evaluate()

    @torch.no_grad()
    def _return_inside(self) -> None:
        """Halve the last step until it ends inside the polytope; after 50 times undo it."""
        for _ in range(50):
            if bool((self.samples @ self.point + self.offsets > 0).all()):  # also False for NaN
                self._inside.copy_(self.point)
                return
            self.point.lerp_(self._inside, 0.5)
        # The point is not finite, or so close to a facet that rounding crosses it.
        self.point.copy_(self._inside)


@register("barrier-vertex")
class BarrierVertex(Barrier):
    """The barrier, with a start at 99 % of the way to a random vertex, from where curvature changes most."""

    def __init__(self, seed: int, device: torch.device) -> None:
        from scipy import optimize  # noqa: PLC0415 - a machine that trains may not have it

        super().__init__(seed, device)
        direction = torch.randn(DIMENSION, dtype=torch.float64, generator=self._generator).numpy()
        found = optimize.linprog(
            direction, A_ub=-self.samples.cpu().numpy(), b_ub=self.offsets.cpu().numpy(), bounds=(None, None)
        )
        with torch.no_grad():
            self.point.copy_(0.99 * torch.from_numpy(found.x))
        self._inside.copy_(self.point)


def _barrier_minimum(samples: NDArray[np.float64], offsets: NDArray[np.float64]) -> float:
    """The least mean of -log(wᵀx_i + c_i), by SciPy's Newton method with a trust region; correct to 1e-12."""
    from scipy import optimize  # noqa: PLC0415 - a machine that trains may not have it

    def value(w: NDArray[np.float64]) -> float:
        slack = samples @ w + offsets
        return float(-np.log(slack).mean()) if (slack > 0).all() else np.inf

    def gradient(w: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(-(samples / (samples @ w + offsets)[:, None]).mean(0))

    def hessian(w: NDArray[np.float64]) -> NDArray[np.float64]:
        scaled = samples / (samples @ w + offsets)[:, None]
        return np.asarray(scaled.T @ scaled / len(samples))

    start = np.zeros(samples.shape[1])
    found = optimize.minimize(
        value, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-7, "maxiter": 10_000}
    )
    return float(found.fun)


@register("sparse-noise")
class SparseNoiseQuadratic:
    """‖x‖² in 100 dimensions, seen through noise ±z from a random orthonormal basis. Starts at a basis vector."""

    steps = 1000
    metric = "loss"
    dimension = 100

    def __init__(self, seed: int, device: torch.device) -> None:
        self.oracle = SparseNoise(self.dimension, torch.Generator().manual_seed(seed))
        self.point = torch.nn.Parameter(self.oracle.basis[:, 0].clone().to(device))

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        return [self.point]

    def loss(self) -> Tensor:
        """A function whose gradient is the answer of the oracle."""
        return self.oracle.sample(self.point.detach().cpu()).to(self.point.device) @ self.point

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.point.detach().square().sum().item()}
