"""torch_ggt: its options, their defaults, and what they mean. The step is in `step`, the rules are in `rules`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from torch_ggt.finish import name_of
from torch_ggt.memory import Memory, memory_of
from torch_ggt.step import FullMatrixOptimizer

if TYPE_CHECKING:  # a build of torch without distributed has none
    from torch.distributed import ProcessGroup

__all__ = ["GGT"]


class GGT(FullMatrixOptimizer):
    r"""Full-matrix adaptive optimization: the whole second-moment matrix of recent gradients instead of its diagonal.

    .. math:: u_t = s\,[(G_t G_t^\top + \delta I)^{1/2} + \varepsilon I]^{-1} g_t, \qquad
              x_{t+1} = x_t - \eta\,\mathrm{finish}(u_1, \ldots, u_t),

    where the columns of G are the last r gradients, each times β₂ for every step of age. u is exact and costs two
    passes over the window.

    **The defaults** whiten the gradient of the whole model, as far as the window shows signal and not noise, and then
    take Adam's two moments of u. Learning rate and weight decay are AdamW's: docs/defaults.md has the evidence.

    **The paper's optimizer** is ``GGT(params, lr, history="momentum", finish="none", shrinkage=0.0, weight_decay=0.0,
    adjust_lr_fn="original")``. Momentum v takes the place of g in the window and in the formula, and u itself is the
    step. Before lr and the factor s, its length is at most one, whatever the scale of the loss.

    Every option that a YAML file can hold may be a string or a number.

    Args:
        params: parameters, named parameters, or param groups. ``lr``, ``weight_decay``, ``maximize``, ``finish``,
            ``finish_beta`` and ``split`` may differ between groups; groups that share a matrix must agree on all other
            options.
        lr: learning rate η, a float or a 1-element tensor.
        betas: (β₁, β₂): momentum, in [0, 1); decay of the window for each step of age, in (0, 1]. With β₂ = 1 the
            window alone forgets.
        eps: ε ≥ 0, absolute as in the paper.
        weight_decay: decoupled, as in AdamW, and with AdamW's default.
        window: r, how many past steps the matrix is made of. The window takes ``window`` times the memory of the
            trainable parameters.
        window_dtype: torch.float32, torch.bfloat16 (half the memory and time), torch.float64, or the name of one. None:
            float64 if a parameter has that dtype, else float32. "int8" and "int4" store integers with a scale for each
            64 columns, in 1.06 and 0.56 bytes for each element; docs/row_formats.md says what they cost in quality.
        history: what the window stores: "gradient", or "momentum" (the paper's tweak). With "gradient" the finish
            averages the step with β₁. With "gradient" and finish="none" (the paper's Algorithm 1 as printed), momentum
            is truncated to the window and needs β₁ ≤ β₂. It is the name of a rule in `torch_ggt.rules.RULES`.
        scope: one full matrix for the whole "model" (the paper), one for each param "group", or one for each
            "parameter". It is the name of a function in `torch_ggt.scopes.SCOPES`.
        finish: what becomes of each tensor's step: "adam", "polar", "polar_exact", "polar_rows" (a name in
            `torch_ggt.finish.FINISHES`), "none" (the paper), or a function of a tensor that returns a tensor of its
            shape. A finish sees to the length of the step itself: lr is then the learning rate of AdamW, or of Muon
            with "match_rms_adamw". See docs/finishes.md.
        finish_beta: the decay of the running squares of a finish; None: 0.999 for "adam", 0.95 for "polar_rows".
        split: for "polar": each matrix is ``split`` equal blocks of rows, such as fused projections of attention.
        sgd_scale: ≥ 0, adds sgd_scale·v to the preconditioned step, before the factor of adjust_lr_fn: the paper's
            interpolation with SGD. It gives up the bound on the length of the step and the invariance to the scale of
            the loss.
        jitter: δ = jitter·tr(GᵀG)/r, the paper's numerical safeguard: 0, or from 1e-10 to 1. After a gradient spike of
            relative size S the steps are short, about min(1, √(window/jitter)/S), until it has left the window. Less
            than 1e-6 costs time on a CPU: rows of float32 are then added up in float64. With 0, a step that rounding
            makes too long is cut to the length that is promised, which needs its length over all ranks.
        shrinkage: q: whiten by (1 - q)·M + q·tr(M)·I instead of M = GᵀG. "auto" takes the share of noise in the window
            (`torch_ggt.shrinkage.noise_share`); 0 is the paper; 1 leaves the direction as it is.
        nesterov: take the look-ahead g + β₁v: before the matrix with momentum in the window, after it with gradients.
        adjust_lr_fn: "match_rms_adamw" multiplies the step by 0.2·√d, so that learning rates tuned for AdamW carry
            over; "original" is the paper's step; "mean" divides GGᵀ by the (decayed) number of rows; "keep_norm" gives
            the step the length of the vector that was preconditioned. With a finish, which sees to the length itself,
            "match_rms_adamw" is "mean".
        solver: "eigh", "cholesky" (needs jitter > 0), or "auto": eigh on a CPU, cholesky elsewhere.
        nonfinite: a NaN or Inf in a gradient: "skip" leaves everything as it was and counts it in `skipped`; "raise"
            names the first offending parameter. "raise" waits for the device at each step.
        maximize: maximize the objective.
        capturable: no checks on the host, for CUDA graph capture. All state lives on the device either way.
        cuda_graph: on one GPU, make a CUDA graph of the step after a few steps, and start it with one call: for small
            models, and hosts that are slower than the device. A step that cannot be a graph (``nonfinite="raise"``,
            ``solver="eigh"``, no Triton, a callable finish, parameters without a gradient) is made without one. Not
            saved with the state.
        process_group: for models that are alike on several ranks (DDP): the ranks over which the window and the
            work of a step are split, or "world" for all ranks. DTensors (FSDP2, tensor parallel) are split already and
            need none; see docs/distributed.md.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = GGT(model.parameters(), lr=1e-3)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> optimizer.step()

    Reference: Agarwal, Bullins, Chen, Hazan, Singh, Zhang, Zhang, *Efficient Full-Matrix Adaptive Regularization*,
    ICML 2019.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 1.0),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        window: int = 20,
        window_dtype: torch.dtype | str | None = None,
        history: str = "gradient",
        scope: str = "model",
        finish: str | Callable[[Tensor], Tensor] = "adam",
        finish_beta: float | None = None,
        split: int = 1,
        sgd_scale: float = 0.0,
        jitter: float = 1e-6,
        shrinkage: float | str = "auto",
        nesterov: bool = False,
        adjust_lr_fn: str = "match_rms_adamw",
        solver: str = "auto",
        nonfinite: str = "skip",
        maximize: bool = False,
        capturable: bool = False,
        cuda_graph: bool = False,
        process_group: "ProcessGroup | str | None" = None,
    ) -> None:
        options = {name: value for name, value in locals().items() if name not in ("self", "params", "__class__")}
        super().__init__(params, **options)
        if type(self) is GGT and finish != "adam" and all(group["finish"] != finish for group in self.param_groups):
            raise ValueError(
                f"torch_ggt: finish={name_of(finish)!r} has no effect, because every param group has a finish of its "
                f"own ({', '.join(sorted({name_of(group['finish']) for group in self.param_groups}))}). With the "
                "groups of param_groups, write param_groups(model, finish=…); or leave finish out"
            )

    @staticmethod
    def memory(
        model: nn.Module | ParamsT | int,
        *,
        window: int = 20,
        window_dtype: torch.dtype | str | None = None,
        history: str = "gradient",
        scope: str = "model",
        finish: str = "adam",
        ranks: int = 1,
    ) -> Memory:
        """The bytes of the state of this optimizer, before anything is allocated.

        They are counted as after a step in which every trainable parameter has a gradient. Parameters, gradients and
        the scratch memory of a step are not counted.

        Args:
            model: a model (the meta device will do), parameters, param groups, or a number of parameters.
            window: as in GGT, like the next four. What a param group says comes first.
            window_dtype: see ``window``.
            history: see ``window``.
            scope: see ``window``.
            finish: see ``window``.
            ranks: over how many ranks ``process_group`` splits the window. The bytes are those of the first rank, which
                has most. A DTensor is split already, and counts as on this rank.

        Example:
            >>> print(GGT.memory(5_300_000, window_dtype="bfloat16"))
            5,300,000 parameters; bytes in all, and for each:
            window     212 MB     40.00
            row       21.2 MB      4.00
            buffers   42.4 MB      8.00
            small     3.55 kB      0.00
            total      276 MB     52.00
        """
        options = {"window": window, "window_dtype": window_dtype, "history": history, "scope": scope, "finish": finish}
        return memory_of(model, ranks=ranks, **options)
