"""The relatives of GGT: RMSprop, NAdam, Adadelta and AdaGrad with the full matrix.

torch.optim has optimizers with these names (it writes Adagrad). They divide each coordinate by its own root mean
square: they use the diagonal of the second-moment matrix V. The optimizers here are the full-matrix forms. Their
weights, bias corrections and ε are those of torch.optim, and V is the whole matrix, summed over a window of the last
gradients. docs/relatives.md has the formulas.

>>> from torch_ggt import RMSprop
>>> optimizer = RMSprop(torch.nn.Linear(2, 1).parameters(), lr=1e-2, window=10)
"""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from torch_ggt.step import FullMatrixOptimizer

__all__ = ["AdaGrad", "Adadelta", "NAdam", "RMSprop"]

_NOT_SHARED = {"betas", "history", "momentum_decay", "nesterov", "sgd_scale"}


class _Relative(FullMatrixOptimizer):
    """What the relatives have in common: which options they share with GGT.

    Args:
        params: parameters, named parameters, or param groups.
        given: what a user has given beside the options of the member.
        **own: what the member says.
    """

    def __init__(self, params: ParamsT, given: dict[str, Any], **own: Any) -> None:  # noqa: ANN401 - see options.py
        refused = given.keys() & {*_NOT_SHARED, *own}
        if refused:
            raise TypeError(
                f"{type(self).__name__}: it has no option {', '.join(sorted(refused))}. Beside the options in its "
                "signature it takes those of GGT that say how a window is kept, such as window, scope and jitter."
            )
        super().__init__(params, **{"adjust_lr_fn": "original", **given, **own})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a param group; its rule is that of the member."""
        if param_group.get("history", self.defaults["history"]) != self.defaults["history"]:
            raise ValueError(f"{type(self).__name__}: a param group cannot have history={param_group['history']!r}")
        super().add_param_group(param_group)


def _fraction(member: str, name: str, value: Any, *, or_zero: bool = False) -> float:  # noqa: ANN401 - of a user
    """A number between 0 and 1, or the text of one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not (0 < number < 1 or (or_zero and number == 0)):
        raise ValueError(f"{member}: {name} must lie in {'[' if or_zero else '('}0, 1), got {name}={value!r}")
    return number


class RMSprop(_Relative):
    r"""RMSprop with the full matrix: a running mean of g gᵀ.

    .. math:: V \leftarrow \alpha V + (1-\alpha)\,g g^\top,\quad u = [V^{1/2} + \varepsilon I]^{-1} g,\quad
              b \leftarrow \mu b + u,\quad x \leftarrow x - \eta\,b

    V is cut off after ``window`` gradients. The length of u is at most :math:`1/\sqrt{1-\alpha}`.

    Args:
        params: parameters, named parameters, or param groups.
        lr: learning rate η.
        alpha: α, in (0, 1).
        eps: ε ≥ 0, added to the root.
        weight_decay: decoupled, as in AdamW.
        momentum: μ of the steps, in [0, 1). 0 keeps no buffer, and then μ cannot be raised later. In the param groups
            ``betas`` is (momentum, alpha).
        **options: ``window`` (20), ``window_dtype``, ``scope``, ``finish``, ``jitter``, ``adjust_lr_fn`` ("original"),
            ``solver``, ``nonfinite``, ``maximize``, ``capturable``, ``cuda_graph``, ``process_group``: as in `GGT`.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = RMSprop(model.parameters(), lr=1e-2, momentum=0.9)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> optimizer.step()

    torch.optim.RMSprop is the diagonal form. It also has ``centered``, which this form has not.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        **options: Any,  # noqa: ANN401 - see options.py
    ) -> None:
        betas = _fraction("RMSprop", "momentum", momentum, or_zero=True), _fraction("RMSprop", "alpha", alpha)
        history = "rmsprop_momentum" if betas[0] > 0 else "rmsprop"
        super().__init__(params, options, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, history=history)


class NAdam(_Relative):
    r"""NAdam with the full matrix: Adam whose momentum looks one step ahead.

    .. math:: m \leftarrow \beta_1 m + (1-\beta_1) g,\quad
              \hat V = \frac{\sum \beta_2^{age} g g^\top}{\sum \beta_2^{age}},\quad
              \mu_t = \beta_1\bigl(1 - \tfrac12\,0.96^{t\psi}\bigr)
    .. math:: x \leftarrow x - \eta\,[\hat V^{1/2} + \varepsilon I]^{-1}
              \Bigl(\frac{1-\mu_t}{1-\prod_{s\le t}\mu_s}\,g + \frac{\mu_{t+1}}{1-\prod_{s\le t+1}\mu_s}\,m\Bigr)

    Both sums run over the gradients in the window. While the window is not full, :math:`\hat V` is the bias-corrected
    second moment of Adam.

    Args:
        params: parameters, named parameters, or param groups.
        lr: learning rate η.
        betas: (β₁, β₂): momentum, in [0, 1); decay of the mean of g gᵀ, in (0, 1]. β₁ is at most √β₂.
        eps: ε ≥ 0, added to the root.
        weight_decay: decoupled, as in AdamW.
        momentum_decay: ψ ≥ 0 of the schedule μ_t.
        **options: ``window`` (20), ``window_dtype``, ``scope``, ``finish``, ``jitter``, ``adjust_lr_fn`` ("original"),
            ``solver``, ``nonfinite``, ``maximize``, ``capturable``, ``cuda_graph``, ``process_group``: as in `GGT`.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = NAdam(model.parameters(), lr=2e-3, window=50)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> optimizer.step()

    torch.optim.NAdam is the diagonal form.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        **options: Any,  # noqa: ANN401 - see options.py
    ) -> None:
        own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay}
        super().__init__(params, options, history="nadam", **own)


class Adadelta(_Relative):
    r"""Adadelta with the full matrix: a ratio of two roots, so that the step has the unit of the parameters.

    .. math:: V \leftarrow \rho V + (1-\rho)\,g g^\top,\quad
              u = (S + \varepsilon I)^{1/2}\,(V + \varepsilon I)^{-1/2}\,g,\quad
              S \leftarrow \rho S + (1-\rho)\,u u^\top,\quad x \leftarrow x - \eta\,u

    V is cut off after ``window`` gradients, and S after ``window`` steps. There are two windows, so the memory is twice
    that of GGT. The two matrices do not commute: unlike the diagonal form, u may point uphill.

    Args:
        params: parameters, named parameters, or param groups.
        lr: learning rate η.
        rho: ρ, in (0, 1). In the param groups ``betas`` is (0, rho).
        eps: ε > 0, added to both matrices inside the root.
        weight_decay: decoupled, as in AdamW.
        **options: ``window`` (20), ``window_dtype``, ``scope``, ``finish``, ``jitter``, ``solver``, ``nonfinite``,
            ``maximize``, ``capturable``, ``cuda_graph``, ``process_group``: as in `GGT`.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = Adadelta(model.parameters(), window=10)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> optimizer.step()

    torch.optim.Adadelta is the diagonal form.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        **options: Any,  # noqa: ANN401 - see options.py
    ) -> None:
        own = {"lr": lr, "betas": (0.0, _fraction("Adadelta", "rho", rho)), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options, history="adadelta", adjust_lr_fn="original", **own)


class AdaGrad(_Relative):
    r"""AdaGrad with the full matrix: the sum of all g gᵀ, started anew every ``window`` steps.

    .. math:: V \leftarrow V + g g^\top,\quad x \leftarrow x - \eta\,[V^{1/2} + \varepsilon I]^{-1} g

    A window as long as the run is AdaGrad itself. A shorter window is the hard window of Algorithm 3 of the paper: when
    it is full, V starts again from zero. ``GGT(params, betas=(0, 1), finish="none", shrinkage=0.0)`` forgets the oldest
    gradient instead. The length of a step is at most lr.

    Args:
        params: parameters, named parameters, or param groups.
        lr: learning rate η.
        eps: ε ≥ 0, added to the root.
        weight_decay: decoupled, as in AdamW.
        **options: ``window`` (20), ``window_dtype``, ``scope``, ``finish``, ``jitter``, ``adjust_lr_fn`` ("original"),
            ``solver``, ``nonfinite``, ``maximize``, ``capturable``, ``cuda_graph``, ``process_group``: as in `GGT`.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = AdaGrad(model.parameters(), lr=1e-2, window=100)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> optimizer.step()

    torch.optim.Adagrad is the diagonal form. Its ``lr_decay`` is the work of a scheduler here.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        **options: Any,  # noqa: ANN401 - see options.py
    ) -> None:
        own = {"lr": lr, "betas": (0.0, 1.0), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options, history="adagrad", **own)
