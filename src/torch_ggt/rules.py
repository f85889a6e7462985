r"""What enters the window, how its weights age, and which vector is preconditioned: the members of the family.

A rule says four things, and all else is inherited (scopes, state, checkpoints, skipping, kernels, ranks):

=============  =======================================================================================================
``gather``     the vector v that enters the window, from the gradients g and the rule's own buffers
``ages``       (β₁, β₂): every step multiplies the momentum weights of the window by β₁ and its decay weights by β₂
``target``     the coefficients a of the vector G a that is preconditioned; G = Wᵀ D holds the decayed rows as columns
``buffers``    names of flat vectors that the rule remembers; each is saved as a tensor for each parameter
=============  =======================================================================================================

A rule that needs a second window (the updates of Adadelta, say) names it in ``windows``; `follow` may then measure and
push there. To add a member, write a rule and give it a name in `RULES`: docs/architecture.md shows one in 30 lines.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

__all__ = ["RULES", "Gradient", "Momentum", "Newest", "Rule"]


class Block(Protocol):
    """What a rule sees of the matrices that make a step together."""

    options: dict[str, Any]
    window: Any
    backend: Any
    """``backend.gather(block)`` sets row ← g. With ``buffer`` b: row ← g + β b, and so does b if the step is taken."""


class Rule:
    """The base of all rules: gradients in the window, and the newest row preconditioned."""

    buffers: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    takes_zeros = True
    """Whether a row of zeros enters a window that holds rows already."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError for options with which the rule makes no sense."""

    def gather(self, block: Block) -> None:
        """Gather the vector that enters the window into ``block.row``. Writes no state."""
        block.backend.gather(block)

    def ages(self, options: Mapping[str, Any]) -> tuple[float, float]:
        """(β₁, β₂) of this step."""
        beta1, beta2 = options["betas"]
        return beta1, beta2

    def target(self, block: Block, newest: Tensor) -> Tensor:
        """The a for which G a is preconditioned.

        Args:
            block: after the row was pushed.
            newest: e_newest, float64, shape (..., r): one at the slot just written, zeros where no row was taken.
        """
        return newest

    follow: Any = None
    """function(block, step, taken) → step: what the rule makes of the flat step u, before it is finished; or None."""


class Momentum(Rule):
    """v ← β₁ v + g is in the window, and v is preconditioned: the paper's own tweak."""

    buffers = ("momentum_buffer",)

    def gather(self, block: Block) -> None:
        """v, or with nesterov the look-ahead g + β₁ v."""
        beta1, _ = block.options["betas"]
        block.backend.gather(block, buffer="momentum_buffer", beta=beta1, ahead=block.options["nesterov"])


class Gradient(Rule):
    """Raw gradients are in the window (Algorithm 1 as printed); momentum is truncated to the window."""

    def check(self, options: Mapping[str, Any]) -> None:
        """β₁ ≤ β₂."""
        beta1, beta2 = options["betas"]
        if beta1 > beta2:
            raise ValueError(
                f"GGT: history='gradient' needs β₁ ≤ β₂, got betas={options['betas']!r}: momentum truncated to the "
                "window would weigh its oldest rows the most. Lower β₁, raise β₂, or use history='momentum'."
            )

    def target(self, block: Block, newest: Tensor) -> Tensor:
        """Σ β₁^age w_i over the rows; where no row was taken, nothing."""
        window, options = block.window, block.options
        taken = newest.any(-1, keepdim=True)
        momentum: Tensor = window.momentum_coefficients() * taken
        return newest + options["betas"][0] * momentum if options["nesterov"] else momentum


class Newest(Rule):
    """Raw gradients are in the window, and the newest one is preconditioned: moments, if any, come after.

    A gradient of zeros is what tools send that only want an optimizer to make its state. It does not enter.
    """

    takes_zeros = False


RULES: dict[str, Rule] = {"momentum": Momentum(), "gradient": Gradient(), "newest": Newest()}
"""The rules by the name that the option ``history`` gives them."""
