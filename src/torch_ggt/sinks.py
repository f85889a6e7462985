"""Where a step goes: into the parameters, or into their gradients for an optimizer that comes after.

Every sink has ``apply(block, taken)``, which takes the step from ``block.row_views``, one view for each parameter. Its
function ``changed(parameter)`` names the tensor that `apply` changes.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["Gradients", "Parameters"]


class Parameters:
    """p ← (1 - lr·weight_decay) p - lr·u, for every parameter with a gradient."""

    @staticmethod
    def changed(parameter: Tensor) -> Tensor:
        """The parameter itself."""
        return parameter

    def apply(self, block: Any, taken: Tensor) -> None:  # noqa: ANN401 - a Block, which stands above
        """Change the parameters; a step that was not taken is zero, and its weights do not decay."""
        values = block.parameters if block.all_here else block.values()
        for group, first, last in block.runs:
            parameters, updates = values[first:last], block.row_views[first:last]
            if not block.complete:
                chosen = [i for i, p in enumerate(block.parameters[first:last]) if p.grad is not None]
                parameters, updates = [parameters[i] for i in chosen], [updates[i] for i in chosen]
            if not parameters:
                continue
            lr, weight_decay = group["lr"], group["weight_decay"]
            lr = lr.reshape(()).to(taken.device) if isinstance(lr, Tensor) else lr
            if weight_decay != 0:
                torch._foreach_mul_(parameters, 1 - lr * weight_decay * taken.double())
            if isinstance(lr, Tensor):
                torch._foreach_mul_(updates, lr)
                torch._foreach_sub_(parameters, updates)
            else:
                torch._foreach_add_(parameters, updates, alpha=-lr)


class Gradients:
    """g ← u where the step is taken, in place and in the gradient's own dtype: for a front-end of an optimizer."""

    @staticmethod
    def changed(parameter: Tensor) -> Tensor:
        """The gradient of the parameter."""
        assert parameter.grad is not None
        return parameter.grad

    def apply(self, block: Any, taken: Tensor) -> None:  # noqa: ANN401 - a Block, which stands above
        """Change the gradients; those of a step that was not taken stay as they are."""
        pairs = [(g, u) for g, u in zip(block.gradients(), block.row_views, strict=True) if g is not None]
        if block.backend.sees_numbers:  # a step that is not taken has ended before
            torch._foreach_copy_([gradient for gradient, _ in pairs], [update for _, update in pairs])
            return
        for gradient, update in pairs:
            torch.where(taken, update.to(gradient.dtype), gradient, out=gradient)
