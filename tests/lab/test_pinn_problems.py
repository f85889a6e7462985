"""Equations solved by networks: derivatives against autograd, solutions against SciPy, losses of exact solutions."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from ggt_lab.models.tanh_network import TanhNetwork, tanh_of_jet
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class
from ggt_lab.problems.pinn_problems import Burgers, allen_cahn_solution, burgers_solution
from ggt_lab.runs.short_run import train

CPU = torch.device("cpu")


class SmallBurgers(Burgers):
    """With fewer points, for the sake of time."""

    interior, start, side = 64, 16, 8


def jet_by_autograd(function, inputs, second):
    """The jet of a function of (points, coordinates), by backward passes of autograd."""
    points = inputs[0].clone().requires_grad_()

    def along(values, direction):
        (gradient,) = torch.autograd.grad(values.sum(), points, create_graph=True)
        return (gradient * direction).sum(1)

    value = function(points)
    jet = [value, *(along(value, direction) for direction in (inputs[1:-1] if second else inputs[1:]))]
    if second:
        jet.append(along(jet[-1], inputs[-2]))
    return torch.stack(jet).detach()


@pytest.mark.parametrize(("directions", "second"), [(1, False), (1, True), (2, True)])
def test_derivatives_with_respect_to_inputs(directions, second):
    torch.manual_seed(0)
    network = TanhNetwork(2, width=5, depth=2).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    inputs = torch.randn(1 + directions + second, 7, 2, dtype=torch.float64)
    if second:
        inputs[-1] = 0

    def plain(x):
        for layer in network.layers[:-1]:
            x = torch.tanh(layer(x))
        return network.layers[-1](x)[:, 0]

    torch.testing.assert_close(network(inputs, second=second).detach(), jet_by_autograd(plain, inputs, second))
    jet = torch.randn(1 + directions + second, 4, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, b: tanh_of_jet(z, b, second=second), (jet, bias))


def test_burgers_solution_against_a_spectral_method():
    """The formula of Cole and Hopf against Fourier series in space and SciPy in time."""
    viscosity, n = 0.02, 256
    x = np.arange(n) / n * 2 - 1
    wave = 1j * np.pi * np.fft.fftfreq(n, 1 / n)

    def change(_, u):
        spectrum = np.fft.fft(u)
        return np.fft.ifft(viscosity * wave**2 * spectrum - wave * np.fft.fft(u * u / 2)).real

    times = (0.0, 0.3, 0.7, 1.0)
    found = solve_ivp(change, (0, 1), -np.sin(np.pi * x), t_eval=times, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(burgers_solution(tuple(x), times, viscosity), found.y.T, atol=1e-5)


def test_burgers_solution_at_the_viscosity_of_the_problem():
    """Against the trapezoidal rule on a fine grid."""
    x, t = (-0.7, -0.05, -0.003, 0.0, 0.2, 1.0), (0.1, 0.5, 1.0)
    eta = np.linspace(-1.5, 1.5, 200001)
    for row, time in zip(burgers_solution(x, t), t, strict=True):
        for value, place in zip(row, x, strict=True):
            exponent = -np.cos(np.pi * (place - eta)) / (2 * np.pi * Burgers.viscosity)
            exponent -= eta**2 / (4 * Burgers.viscosity * time)
            density = np.exp(exponent - exponent.max())
            expected = -(np.sin(np.pi * (place - eta)) * density).sum() / density.sum()
            assert value == pytest.approx(expected, abs=1e-6)


def exact_poisson(z):
    x = (z[:, 0] + 1) / 2
    return torch.sin(2 * math.pi * x) + 0.1 * torch.sin(10 * math.pi * x)


def exact_convection(z):
    return torch.sin(math.pi * (z[:, 0] + 1) - 30 * (z[:, 1] + 1) / 2)


@pytest.mark.parametrize(("name", "exact"), [("pinn-poisson", exact_poisson), ("pinn-convection", exact_convection)])
def test_the_exact_solution_has_no_loss(name, exact):
    problem = problem_class(name)(0, CPU)
    jet = jet_by_autograd(exact, problem.inputs.double(), problem.second)
    assert problem.loss_of(jet.float()).item() < 1e-8
    torch.testing.assert_close(exact(problem._grid[0].double()).float(), problem.exact, atol=1e-5, rtol=0)
    assert problem.loss_of(0 * jet.float()).item() > 0.1


def test_the_exact_solution_of_burgers_has_no_loss():
    """With derivatives by differences."""
    problem, h = SmallBurgers(0, CPU), 1e-4
    jet = []
    for x, time in problem.inputs[0].double().tolist():
        t = max((time + 1) / 2, 2 * h)
        now = burgers_solution.__wrapped__((x - h, x, x + h), (t - h, t, t + h))
        slope, change = now[1, 2] - now[1, 0], now[2, 1] - now[0, 1]
        jet.append([now[1, 1], change / (2 * h), slope / (2 * h), (now[1, 2] - 2 * now[1, 1] + now[1, 0]) / h**2])
    assert problem.loss_of(torch.tensor(jet).T.float()).item() < 1e-4
    assert problem.loss_of(torch.zeros(4, len(jet))).item() > 0.1


def test_error_and_training():
    """The error of the network that is zero is one; training lowers loss and error."""
    problem = problem_class("pinn-poisson")(0, CPU)
    with torch.no_grad():
        for parameter in problem.network.layers[-1].parameters():
            parameter.zero_()
        assert problem.evaluate()["error"] == pytest.approx(1)
    outcome = train(SmallBurgers(0, CPU), optimizer_factory("Adam"), 0.01, steps=150, evaluations=1)
    for number in ("loss", "error"):
        assert outcome.curve[-1][number] < 0.7 * outcome.curve[0][number]


def test_allen_cahn_solution_against_scipy():
    """Finite differences on another grid, in SciPy's time steps, against Fourier series in Runge and Kutta's."""
    n = 400
    x = 2 * np.arange(n) / n - 1

    def change(_, u):
        second = (np.roll(u, 1) - 2 * u + np.roll(u, -1)) * (n / 2) ** 2
        return 1e-4 * second + 5 * (u - u**3)

    found = solve_ivp(change, (0, 1), x**2 * np.cos(np.pi * x), t_eval=(0.2, 0.6, 1.0), rtol=1e-7, atol=1e-9)
    ours = allen_cahn_solution()
    assert ours.shape == (26, 512)
    for column, row in zip(found.y.T, ours[[5, 15, 25]], strict=True):
        np.testing.assert_allclose(row[::128], column[::100], atol=2e-3)  # both grids have these four places


def test_constant_solutions_of_allen_cahn_have_no_residual():
    """u = ±1 solves the equation; only the initial values are then missed."""
    problem = problem_class("pinn-allen-cahn")(0, CPU)
    jet = torch.zeros(4, problem.inputs.shape[1])
    jet[0] = 1
    missed = (1 - problem.known).square().mean()
    assert problem.loss_of(jet).item() == pytest.approx(100 * missed.item(), rel=1e-5)
    start = problem.inputs[0, problem.interior : problem.interior + problem.start, 0]
    torch.testing.assert_close(problem.known, start**2 * torch.cos(math.pi * start))
    jet[1, : problem.interior] = 0.5  # u_t alone
    assert problem.loss_of(jet).item() == pytest.approx(100 * missed.item() + 0.25, rel=1e-5)
