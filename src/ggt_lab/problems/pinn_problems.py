"""Differential equations solved by small networks (physics-informed neural networks), with all points in every batch.

The loss is the mean squared residual of the equation at points of its domain, plus the mean squared violation of the
initial and boundary values. ``error`` is ‖u - u*‖/‖u*‖ on a grid, where u* is the exact solution; training never sees
it. The seed draws the points, once for the whole run, and the start of the network. No step has noise in its gradient.
"""

import functools
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ggt_lab.models.tanh_network import TanhNetwork
from ggt_lab.problems.registry import register

__all__ = ["AllenCahn", "Burgers", "Convection", "Poisson", "allen_cahn_solution", "burgers_solution"]


class _Equation:
    """What the equations share: the network, the points, and the error.

    ``inputs`` is the jet (k, points, coordinates) of the network's inputs: first the ``interior`` points inside the
    domain, then the points of the initial and boundary values. ``known`` holds the numbers of the equation at points.
    """

    steps = 2000
    metric = "error"
    interior = 1024
    second = True

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        inputs, known = self.points()
        grid, exact = self.solution()
        self.inputs, self.known, self.exact = inputs.to(device), known.to(device), exact.to(device)
        self._grid = grid[None].to(device)
        torch.manual_seed(seed)
        self.network = TanhNetwork(inputs.shape[2]).to(device)

    def points(self) -> tuple[Tensor, Tensor]:
        """``inputs`` and ``known``."""
        raise NotImplementedError

    def solution(self) -> tuple[Tensor, Tensor]:
        """The grid (n, coordinates), in the coordinates of the network, and the exact solution (n) there."""
        raise NotImplementedError

    def loss_of(self, jet: Tensor) -> Tensor:
        """The loss, from the jet (k, points) of the network's output."""
        raise NotImplementedError

    def spread(self, count: int, dimensions: int, draw: int) -> Tensor:
        """Points (count, dimensions) that fill (-1, 1) evenly: a scrambled Sobol sequence, one for each ``draw``."""
        sequence = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=10 * self._seed + draw)  # type: ignore[no-untyped-call]
        return 2 * sequence.draw(count) - 1

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.network.parameters()

    def loss(self) -> Tensor:
        return self.loss_of(self.network(self.inputs, second=self.second))

    def evaluate(self) -> dict[str, float]:
        """The loss of training, and the relative error on the grid."""
        error = (self.network(self._grid)[0] - self.exact).norm() / self.exact.norm()
        return {"loss": self.loss().item(), "error": error.item()}


@register("pinn-poisson")
class Poisson(_Equation):
    """u″ = f on (0, 1), where u = sin(2πx) + 0.1·sin(10πx) has two scales: the small wave dominates f.

    The input of the network is 2x - 1. The residual is divided by the root mean square of f.
    """

    interior = 256
    waves = ((1.0, 2 * math.pi), (0.1, 10 * math.pi))

    def points(self) -> tuple[Tensor, Tensor]:
        inside = self.spread(self.interior, 1, 0)
        every = torch.cat([inside, torch.tensor([[-1.0], [1.0]])])
        f = sum((-a * w**2 * torch.sin(w * (inside[:, 0] + 1) / 2) for a, w in self.waves), torch.zeros(()))
        return torch.stack([every, torch.full_like(every, 2.0), torch.zeros_like(every)]), f

    def solution(self) -> tuple[Tensor, Tensor]:
        x = torch.linspace(0, 1, 1001)
        return 2 * x[:, None] - 1, sum((a * torch.sin(w * x) for a, w in self.waves), torch.zeros(()))

    def loss_of(self, jet: Tensor) -> Tensor:
        residual = (jet[2, : self.interior] - self.known).square().mean() / self.known.square().mean()
        return residual + jet[0, self.interior :].square().mean()


@register("pinn-convection")
class Convection(_Equation):
    """u_t + 30·u_x = 0 for 0 < t < 1, periodic on 0 < x < 2π, from sin x; the solution is sin(x - 30t).

    The solution that is zero after a short time has almost no residual, and training often ends there. The inputs of
    the network are x/π - 1 and 2t - 1. One derivative is enough: u does not change along the direction (30, 1).
    """

    second = False
    interior, start, side = 2048, 128, 64
    speed = 30.0

    def points(self) -> tuple[Tensor, Tensor]:
        x0, t = self.spread(self.start, 1, 1), self.spread(self.side, 1, 2)
        one = torch.ones_like
        edges = [torch.cat([x0, -one(x0)], 1), torch.cat([-one(t), t], 1), torch.cat([one(t), t], 1)]
        every = torch.cat([self.spread(self.interior, 2, 0), *edges])
        along = torch.tensor([self.speed / math.pi, 2.0]).expand_as(every)
        return torch.stack([every, along]), torch.sin(math.pi * (x0[:, 0] + 1))

    def solution(self) -> tuple[Tensor, Tensor]:
        x, t = torch.meshgrid(torch.linspace(-1, 1, 65)[:-1], torch.linspace(-1, 1, 51), indexing="ij")
        phase = math.pi * (x + 1) - self.speed * (t + 1) / 2
        return torch.stack([x.flatten(), t.flatten()], dim=1), torch.sin(phase).flatten()

    def loss_of(self, jet: Tensor) -> Tensor:
        parts = torch.split_with_sizes(jet[0], [self.interior, self.start, self.side, self.side])
        residual, start = jet[1, : self.interior].square().mean(), (parts[1] - self.known).square().mean()
        return residual + start + (parts[2] - parts[3]).square().mean()


@register("pinn-burgers")
class Burgers(_Equation):
    """u_t + u·u_x = ν·u_xx with ν = 0.01/π, for 0 < t < 1 and -1 < x < 1, from -sin πx, with u = 0 at both ends.

    A shock forms at x = 0. The metric is the loss: few of the points lie in the shock, so that the error says as much
    about the points as about the optimizer. The inputs of the network are x and 2t - 1.
    """

    metric = "loss"
    start, side = 96, 32
    viscosity = 0.01 / math.pi

    def points(self) -> tuple[Tensor, Tensor]:
        x0, t = self.spread(self.start, 1, 1), self.spread(self.side, 1, 2)
        one = torch.ones_like
        edges = [torch.cat([x0, -one(x0)], 1), torch.cat([-one(t), t], 1), torch.cat([one(t), t], 1)]
        every = torch.cat([self.spread(self.interior, 2, 0), *edges])
        along_t, along_x = (torch.tensor(direction).expand_as(every) for direction in ((0.0, 2.0), (1.0, 0.0)))
        known = torch.cat([-torch.sin(math.pi * x0[:, 0]), torch.zeros(2 * self.side)])
        return torch.stack([every, along_t, along_x, torch.zeros_like(every)]), known

    def solution(self) -> tuple[Tensor, Tensor]:
        x, t = np.linspace(-1, 1, 129), np.linspace(0, 1, 26)
        grid = torch.tensor([(place, 2 * time - 1) for time in t for place in x], dtype=torch.float32)
        return grid, torch.tensor(burgers_solution(tuple(x), tuple(t)), dtype=torch.float32).flatten()

    def loss_of(self, jet: Tensor) -> Tensor:
        u, u_t, u_x, u_xx = torch.unbind(jet[:, : self.interior])
        residual = u_t + u * u_x - self.viscosity * u_xx
        return residual.square().mean() + (jet[0, self.interior :] - self.known).square().mean()


@register("pinn-allen-cahn")
class AllenCahn(_Equation):
    """u_t = 0.0001·u_xx + 5·(u - u³) for 0 < t < 1, periodic on -1 < x < 1, from x²·cos πx.

    u = 0 and u = ±1 have no residual, and steep fronts lie between them. The violation of the initial values counts a
    hundredfold, as is the habit for this equation. The metric is the loss: a network that has fitted the points may
    still have its fronts in the wrong place. The inputs of the network are x and 2t - 1.
    """

    metric = "loss"
    start, side = 128, 32
    diffusion, reaction, weight = 1e-4, 5.0, 100.0

    def points(self) -> tuple[Tensor, Tensor]:
        x0, t = self.spread(self.start, 1, 1), self.spread(self.side, 1, 2)
        one = torch.ones_like
        edges = [torch.cat([x0, -one(x0)], 1), torch.cat([-one(t), t], 1), torch.cat([one(t), t], 1)]
        every = torch.cat([self.spread(self.interior, 2, 0), *edges])
        along_t, along_x = (torch.tensor(direction).expand_as(every) for direction in ((0.0, 2.0), (1.0, 0.0)))
        known = x0[:, 0].square() * torch.cos(math.pi * x0[:, 0])
        return torch.stack([every, along_t, along_x, torch.zeros_like(every)]), known

    def solution(self) -> tuple[Tensor, Tensor]:
        x, times = np.arange(128) / 64 - 1, np.linspace(0, 1, 26)
        grid = torch.tensor([(place, 2 * time - 1) for time in times for place in x], dtype=torch.float32)
        return grid, torch.tensor(allen_cahn_solution()[:, ::4], dtype=torch.float32).flatten()

    def loss_of(self, jet: Tensor) -> Tensor:
        u, u_t, _, u_xx = torch.unbind(jet[:, : self.interior])
        residual = u_t - self.diffusion * u_xx - self.reaction * (u - u**3)
        start, left, right = torch.split(jet[:, self.interior :], [self.start, self.side, self.side], dim=1)
        periodic = (left[0] - right[0]).square().mean() + (left[2] - right[2]).square().mean()
        return residual.square().mean() + self.weight * (start[0] - self.known).square().mean() + periodic


@functools.cache
def allen_cahn_solution(nodes: int = 512, steps: int = 2000) -> npt.NDArray[np.float64]:
    """The solution at 26 even times (0 to 1) and at ``nodes`` even places of [-1, 1), by Fourier series.

    Time goes in Runge and Kutta's steps of fourth order; their number must be a multiple of 25.

    Example:
        >>> float(allen_cahn_solution()[0, 0])
        -1.0
    """
    x = 2 * np.arange(nodes) / nodes - 1
    squares = -((np.pi * np.fft.rfftfreq(nodes, 1 / nodes)) ** 2)

    def change(u: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        spread = np.fft.irfft(AllenCahn.diffusion * squares * np.fft.rfft(u), nodes)
        return np.asarray(spread + AllenCahn.reaction * (u - u**3))

    u, h = x**2 * np.cos(np.pi * x), 1 / steps
    kept = [u]
    for step in range(1, steps + 1):
        one = change(u)
        two = change(u + h / 2 * one)
        three = change(u + h / 2 * two)
        u = u + h / 6 * (one + 2 * two + 2 * three + change(u + h * three))
        if step % (steps // 25) == 0:
            kept.append(u)
    return np.array(kept)


@functools.cache
def burgers_solution(
    x: tuple[float, ...], t: tuple[float, ...], viscosity: float = Burgers.viscosity, nodes: int = 200
) -> npt.NDArray[np.float64]:
    """The solution (times, places) of Burgers' equation from -sin πx, by the formula of Cole and Hopf.

    u(x, t) = -∫ sin(πy) w(y) exp(-η²/(4νt)) dη / ∫ w(y) exp(-η²/(4νt)) dη, where y = x - η and w(y) =
    exp(-cos(πy)/(2πν)). The integrals are Gauss–Hermite sums.

    Example:
        >>> float(burgers_solution((0.5,), (0.0,))[0, 0])
        -1.0
    """
    places, times = np.asarray(x)[None, :, None], np.asarray(t)[:, None, None]
    roots, weights = np.polynomial.hermite.hermgauss(nodes)
    y = places - np.sqrt(4 * viscosity * times) * roots
    exponent = -np.cos(np.pi * y) / (2 * np.pi * viscosity)
    density = weights * np.exp(exponent - exponent.max(axis=2, keepdims=True))
    solution: npt.NDArray[np.float64] = -(np.sin(np.pi * y) * density).sum(axis=2) / density.sum(axis=2)
    return solution
