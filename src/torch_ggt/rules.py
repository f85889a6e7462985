r"""What enters the window, how its weights age, and which vector is preconditioned: the members of the family.

A rule says four things, and all else is inherited (scopes, state, checkpoints, skipping, kernels, ranks):

=============  =======================================================================================================
``gather``     the vector v that enters the window, from the gradients g and the rule's own buffers
``ages``       (β₁, β₂): every step multiplies the momentum weights of the window by β₁ and its decay weights by β₂
``target``     the coefficients a of the vector G a that is preconditioned; G = Wᵀ D holds the decayed rows as columns
``buffers``    names of flat vectors that the rule remembers; each is saved as a tensor for each parameter
=============  =======================================================================================================

Few rules need more than that. They may say

=============  =======================================================================================================
``windows``    names of further windows (the updates of Adadelta); `follow` may measure and push there
``numbers``    names of numbers that the rule remembers of each matrix (the steps that NAdam has counted)
``solve``      the r × r function, if it is not [(M + δI)^½ + εI]⁻¹
``follow``     what becomes of the flat step before it is finished (the momentum of RMSprop)
=============  =======================================================================================================

To add a member, write a rule and give it a name in `RULES`: docs/architecture.md shows one in 30 lines.
"""

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = [
    "RULES",
    "Gradient",
    "GrowingSum",
    "LookAhead",
    "MeanSquare",
    "MeanSquareMomentum",
    "Momentum",
    "Newest",
    "RatioOfRoots",
    "Rule",
]


class Block(Protocol):
    """What a rule sees of the matrices that make a step together."""

    options: dict[str, Any]
    window: Any
    windows: dict[str, Any]
    columns: Any
    row: Tensor
    row_views: list[Tensor]
    parameters: list[Tensor]
    buffers: dict[str, tuple[Tensor, list[Tensor]]]
    numbers: dict[str, Tensor]
    active: Tensor | None
    complete: bool
    how: dict[str, Any]
    backend: Any
    """``backend.gather(block)`` sets row ← g. With ``buffer`` b: row ← g + β b, and so does b if the step is taken."""
    finishes: bool
    """Whether the step is finished before it is applied: by each of its param groups, or by some of them."""

    def zero_missing(self) -> None: ...


class Rule:
    """The base of all rules: gradients in the window, and the newest row preconditioned."""

    buffers: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    takes_zeros = True
    """Whether a row of zeros enters a window that holds rows already."""
    numbers: tuple[str, ...] = ()
    """Each is a float64 tensor with one element for each matrix, zero at first. It is saved with the matrix."""
    finish_averages = False
    """Whether a finish averages the step with β₁: for a rule that puts no momentum into the step if there is one."""

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

    solve: Any = None
    """function(block, a) → c, or None for c = [(M + δI)^½ + εI]⁻¹ a. ``block.how`` says how accurate c must be."""

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
    """Raw gradients are in the window (Algorithm 1 as printed); momentum is truncated to the window.

    Where the step is finished, the newest gradient alone is preconditioned, and the finish averages what comes out.
    """

    finish_averages = True

    def check(self, options: Mapping[str, Any]) -> None:
        """β₁ ≤ β₂, without a finish."""
        beta1, beta2 = options["betas"]
        if beta1 > beta2 and options["finish"] == "none":
            raise ValueError(
                f"torch_ggt: history='gradient' needs β₁ ≤ β₂, got betas={options['betas']!r}: momentum truncated to "
                "the window would weigh its oldest rows the most. Lower β₁, raise β₂, or use history='momentum'."
            )

    def target(self, block: Block, newest: Tensor) -> Tensor:
        """Σ β₁^age w_i over the rows; where no row was taken, nothing."""
        if block.finishes:
            return newest
        window, options = block.window, block.options
        taken = newest.any(-1, keepdim=True)
        momentum: Tensor = window.momentum_coefficients() * taken
        return newest + options["betas"][0] * momentum if options["nesterov"] else momentum


class Newest(Rule):
    """Raw gradients are in the window, and the newest one is preconditioned: moments, if any, come after.

    A gradient of zeros is what tools send that only want an optimizer to make its state. It does not enter.
    """

    takes_zeros = False


# ---- the relatives, with the weights of their diagonal namesakes in torch.optim --------------------------------------


class GrowingSum(Rule):
    """V ← V + g gᵀ (AdaGrad). A full window starts anew: the hard window of the paper's Algorithm 3."""

    def check(self, options: Mapping[str, Any]) -> None:
        """No momentum, no decay, and no shrinkage that is read off the rows."""
        _check_no_momentum("AdaGrad", options)
        if options["betas"][1] != 1:
            raise ValueError(f"AdaGrad: its sum does not decay, so betas[1] must be 1, got betas={options['betas']!r}")
        if options["shrinkage"] == "auto":
            raise ValueError(
                "AdaGrad: shrinkage='auto' measures the noise among all rows, and would count those from before a new "
                "start; use a number from 0 to 1"
            )

    def target(self, block: Block, newest: Tensor) -> Tensor:
        """g. When the ring begins again at its first slot, all rows before have no weight."""
        decay = block.window.decay
        decay.copy_(torch.where(newest[..., :1] > 0, newest, decay))
        return newest


class MeanSquare(Rule):
    """V ← α V + (1 - α) g gᵀ, and g is preconditioned (RMSprop); betas = (0, α)."""

    member, mean = "RMSprop", "alpha"
    remedy = ", or make the optimizer with momentum > 0"

    def check(self, options: Mapping[str, Any]) -> None:
        """α < 1, and no momentum."""
        if options["betas"][1] == 1:
            raise ValueError(f"{self.member}: {self.mean} must be below 1, or the mean square stays zero")
        if not self.buffers:
            _check_no_momentum(self.member, options, self.remedy)

    def gather(self, block: Block) -> None:
        """√(1 - α)·g."""
        super().gather(block)
        block.row.mul_((1 - block.options["betas"][1]) ** 0.5)

    def ages(self, options: Mapping[str, Any]) -> tuple[float, float]:
        """√α, because V ages by α."""
        alpha: float = options["betas"][1]
        return 0.0, alpha**0.5

    def target(self, block: Block, newest: Tensor) -> Tensor:
        """g."""
        weight: float = (1 - block.options["betas"][1]) ** 0.5
        return newest / weight


class MeanSquareMomentum(MeanSquare):
    """As `MeanSquare`, and then b ← μ b + u is the step; betas = (μ, α)."""

    buffers = ("momentum_buffer",)

    def follow(self, block: Block, step: Tensor, taken: Tensor) -> Tensor:
        """b. The buffer of a parameter without a gradient stays."""
        flat, views = block.buffers["momentum_buffer"]
        step.add_(flat, alpha=block.options["betas"][0])
        pairs = [(flat, step)]
        if not block.complete:
            trios = zip(views, block.row_views, block.parameters, strict=True)
            pairs = [(view, row) for view, row, parameter in trios if parameter.grad is not None]
        block.backend.commit(pairs, taken)
        return step * taken


class RatioOfRoots(MeanSquare):
    """u = (S + εI)^½ (V + εI)^(-½) g (Adadelta): V is a mean square of gradients, S of the steps u before.

    p = (V + εI)^(-½) g is in the span of the gradients. It is not in the span of the steps, the columns of H with
    S = H Hᵀ. For every function f and every p, f(S) p = f(0) p + H h(HᵀH) Hᵀ p with h(x) = (f(x) - f(0))/x. The root
    f(x) = √(x + ε) has h(x) = 1/(√(x + ε) + √ε), which is the function of the solver once more:

        u = √ε p + H [(HᵀH + εI)^½ + √ε I]⁻¹ Hᵀ p

    Both terms are positive semi-definite, so that nothing cancels. They cost three more passes: Hᵀ p, H c, and the Gram
    row of u as it is stored. The jitter is added inside both square roots.
    """

    member, mean, remedy = "Adadelta", "rho", ""
    windows = ("updates",)

    def check(self, options: Mapping[str, Any]) -> None:
        """ρ < 1, ε > 0, and no momentum."""
        super().check(options)
        if options["eps"] == 0:
            raise ValueError("Adadelta: eps must be positive, got eps=0: its steps grow from √eps, and would stay zero")

    def solve(self, block: Block, a: Tensor) -> Tensor:
        """(M + εI)^(-½) a."""
        c: Tensor = block.backend.coefficients(block.window, a, eps=0.0, shift=block.options["eps"], **block.how)
        return c

    def follow(self, block: Block, step: Tensor, taken: Tensor) -> Tensor:
        """u for p; then √(1 - ρ) u enters the window of the steps."""
        eps, (_, rho) = block.options["eps"], block.options["betas"]
        updates, backend, columns = block.windows["updates"], block.backend, block.columns
        projected = updates.decay * columns.total(updates.products(step))
        c = backend.coefficients(updates, projected, eps=eps**0.5, shift=eps, **block.how)
        step.mul_(eps**0.5).add_(updates.expand(c, torch.zeros_like(step)))
        block.zero_missing()
        row = (1 - rho) ** 0.5 * step
        accept = taken if block.active is None else taken & block.active
        backend.push(updates, row, columns.total(updates.measure(row).sums), (0.0, rho**0.5), accept, None)
        return step


class LookAhead(Rule):
    """V̂ = Σ β₂^age g gᵀ/Σ β₂^age, and momentum that looks one step ahead is preconditioned (NAdam).

    With the schedule μ_t = β₁ (1 - ½·0.96^(t ψ)), where ψ is the option ``momentum_decay``, the vector is

        (1 - μ_t)/(1 - μ_1⋯μ_t) g + μ_{t+1}/(1 - μ_1⋯μ_{t+1}) m  with  m ← β₁ m + (1 - β₁) g.

    m is truncated to the window, as V̂ is, so that it stays in the span.
    """

    numbers = ("steps", "mu_correction")
    """t, and 1 - μ_1⋯μ_t."""

    def check(self, options: Mapping[str, Any]) -> None:
        """β₁ ≤ √β₂."""
        beta1, beta2 = options["betas"]
        if beta1**2 > beta2:
            raise ValueError(
                f"NAdam: β₁ must be at most √β₂, got betas={options['betas']!r}: momentum truncated to the window "
                "would weigh its oldest rows the most. Lower β₁, or raise β₂."
            )

    def ages(self, options: Mapping[str, Any]) -> tuple[float, float]:
        """(β₁, √β₂), because V̂ ages by β₂."""
        beta1, beta2 = options["betas"]
        return beta1, beta2**0.5

    def target(self, block: Block, newest: Tensor) -> Tensor:
        """The look-ahead; counts the step where a row was taken."""
        (beta1, _), decay = block.options["betas"], block.options["momentum_decay"]
        taken, momentum = newest.any(-1), block.window.momentum
        steps, correction = block.numbers["steps"], block.numbers["mu_correction"]
        steps.add_(taken)
        mu, ahead = (beta1 * (1 - 0.5 * 0.96 ** (t * decay)) for t in (steps, steps + 1))
        correction.copy_(torch.where(taken, 1 - (1 - correction) * mu, correction))
        momentum.copy_(torch.where(newest > 0, 1 - beta1, momentum))
        of_gradient, of_momentum = (1 - mu) / correction, ahead / (1 - (1 - correction) * ahead)
        a = of_gradient[..., None] * newest + of_momentum[..., None] * block.window.momentum_coefficients()
        return torch.where(taken[..., None], a, 0.0)

    def solve(self, block: Block, a: Tensor) -> Tensor:
        """The bias correction: the weights in the window, divided by their sum."""
        window = copy.copy(block.window)
        total = window.decay.square().sum(-1, keepdim=True).sqrt()
        total = torch.where(total > 0, total, 1.0)
        window.decay = window.decay / total
        c: Tensor = block.backend.coefficients(window, a * total, eps=block.options["eps"], **block.how)
        return c / total


def _check_no_momentum(member: str, options: Mapping[str, Any], remedy: str = "") -> None:
    if options["betas"][0] != 0:
        raise ValueError(
            f"{member}: this optimizer has no momentum, so betas[0] must be 0, got betas={options['betas']!r}. Give a "
            f"scheduler that cycles momentum cycle_momentum=False{remedy}."
        )


RULES: dict[str, Rule] = {
    "momentum": Momentum(),
    "gradient": Gradient(),
    "newest": Newest(),
    "adagrad": GrowingSum(),
    "rmsprop": MeanSquare(),
    "rmsprop_momentum": MeanSquareMomentum(),
    "adadelta": RatioOfRoots(),
    "nadam": LookAhead(),
}
"""The rules by the name that the option ``history`` gives them."""
