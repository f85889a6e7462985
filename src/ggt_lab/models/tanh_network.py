"""A tanh network that carries derivatives with respect to its inputs along, for differential equations.

A *jet* is a tensor (k, points, features): the value of a feature, its derivatives along k - 1 directions of the inputs,
and, where asked, the second derivative along the last of these directions. A layer maps a jet to a jet, so that one
forward pass gives all that a residual needs, and one backward pass its gradient.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["TanhNetwork", "tanh_of_jet"]


class TanhNetwork(nn.Module):
    """Layers of tanh units and a linear output, for jets.

    Args:
        inputs: the number of inputs.
        width: the number of units of a hidden layer.
        depth: the number of hidden layers.

    Example:
        >>> network = TanhNetwork(inputs=1)
        >>> points = torch.linspace(0, 1, 5)[:, None]
        >>> jet = torch.stack([points, torch.ones_like(points), torch.zeros_like(points)])
        >>> network(jet, second=True).shape  # u, u_x and u_xx at five points
        torch.Size([3, 5])
    """

    def __init__(self, inputs: int, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        sizes = [inputs, *[width] * depth, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for parameter in self.parameters():
            (nn.init.xavier_normal_ if parameter.dim() == 2 else nn.init.zeros_)(parameter)

    def forward(self, jet: Tensor, *, second: bool = False) -> Tensor:
        """The jet (k, points) of the output.

        Args:
            jet: the jet (k, points, inputs) of the inputs.
            second: whether the last entry of the jet is the second derivative along the direction before it.
        """
        *hidden, last = (layer for layer in self.layers if isinstance(layer, nn.Linear))
        for layer in hidden:
            jet = tanh_of_jet(jet @ layer.weight.T, layer.bias, second=second)
        output = (jet @ last.weight.T).squeeze(2)
        return torch.cat([output[:1] + last.bias, output[1:]])


def tanh_of_jet(jet: Tensor, bias: Tensor, *, second: bool = False) -> Tensor:
    """The jet of tanh(z + bias), from the jet of z.

    With a = tanh(z + bias) and s = 1 - a², the derivatives are s·z′ and s·z″ - 2·a·s·z′².
    """
    result: Tensor = _TanhOfJet.apply(jet, bias, second)  # type: ignore[no-untyped-call]
    return result


class _TanhOfJet(torch.autograd.Function):
    """`tanh_of_jet` with a backward pass by hand: autograd would store and read four times as many tensors."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, second: bool) -> Tensor:  # noqa: ANN401 - torch has no type for it
        a = torch.tanh(z[0] + bias)
        s = 1 - a * a
        y = z * s
        if second:
            y[-1].addcmul_(a * z[-2], y[-2], value=-2)
        y[0] = a
        ctx.save_for_backward(z, a, s)
        ctx.second = second
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        (of_y,) = gradients
        z, a, s = ctx.saved_tensors
        # d s / d z = -2·a·s and d (a·s) / d z = s·(1 - 3·a²).
        through_s = (of_y[1:] * z[1:]).sum(0).mul_(a)
        of_z = of_y * s
        if ctx.second:
            curved = of_y[-1] * z[-2]
            of_z[-2].addcmul_(a * s, curved, value=-4)
            through_s.addcmul_(curved * z[-2], 1 - 3 * a * a)
        of_z[0].addcmul_(through_s, s, value=-2)
        return of_z, of_z[0].sum(0), None
