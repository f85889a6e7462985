r"""Any optimizer, full-matrix: its gradients are whitened by the window before it uses them.

>>> model = torch.nn.Linear(3, 1)
>>> optimizer = whiten(torch.optim.AdamW(model.parameters(), lr=1e-3))
>>> type(optimizer).__name__
'AdamW'

`whiten` returns the optimizer it was given. A hook in front of its ``step`` replaces every gradient g by

.. math:: u = s\,[((1 - q)\,G G^\top + q\,t I + \delta I)^{1/2} + \varepsilon I]^{-1} g,

where the columns of G are the last r gradients of the whole model, g among them, t is the sum of squares of G, and q is
the dial ``shrinkage``. With ``keep_norm=True`` (the default for SGD) s gives u the length of g; with False (the default
for AdamW, Muon and their kin) the length of u is near one.

The state of the window travels in the ``state_dict`` of the optimizer. `Whitening` is the step without an optimizer.
"""

import difflib
import inspect
from typing import Any, TypeVar, overload

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from torch_ggt.front_end import PREFIX, FrontEnd, attach, groups_of
from torch_ggt.memory import Memory, memory_of
from torch_ggt.options import OPTIONS, check_flag, window_decay
from torch_ggt.parameters import Group
from torch_ggt.sinks import Gradients
from torch_ggt.step import FullMatrixOptimizer

__all__ = ["Whitening", "whiten"]


class Whitening(FullMatrixOptimizer):
    r"""Whiten gradients in place, for people who write their own loop: call it after ``backward()``.

    .. math:: g \leftarrow s\,[((1 - q)\,G G^\top + q\,t I + \delta I)^{1/2} + \varepsilon I]^{-1} g

    The columns of G are the last r gradients, g among them; t is the sum of squares of G, q is ``shrinkage``, and s
    keeps the length of g unless ``keep_norm`` is False. A gradient that is None stays None. If a gradient is not
    finite, all gradients stay as they are, nothing enters the window, and `skipped` counts it. A gradient that is zero
    in every element does not enter the window. Rows of an embedding that were not looked up have a gradient of zero;
    after whitening they have the (mostly small) gradients that older rows of the window had there.

    It is an Optimizer in the sense of torch: ``state_dict``, ``load_state_dict``, ``add_param_group``,
    ``torch.distributed.checkpoint`` and `spectrum` work as they do for GGT.

    Args:
        params: parameters, named parameters, or param groups.
        window: r, how many past gradients the matrix is made of.
        decay: β₂, in (0, 1]: every row weighs β₂ once for each step of age. With 1 the window alone forgets.
        shrinkage: the dial q between whitened (0) and raw (1): the matrix is (1 - q)·GᵀG + q·tr(GᵀG)·I. "auto" reads
            q off the window: what the other rows do not explain of a row is noise.
        jitter: δ = jitter·tr(GᵀG)/r, the numerical safeguard.
        eps: ε ≥ 0, absolute.
        keep_norm: the whitened gradient has the length of the raw one, so that clipping, coupled weight decay and the
            learning rate of SGD keep their meaning. False: GGᵀ is divided by the number of rows, and the length is
            near one, whatever the scale of the loss.
        window_dtype: torch.float32, torch.bfloat16, torch.float64, or the name of one; or "int8" or "int4". With
            "@host" after the name the rows are in host memory. See docs/row_formats.md.
        scope: one full matrix for the whole "model", for each param "group", or for each "parameter".
        solver: "eigh", "cholesky", or "auto".
        process_group: for models that are alike on several ranks (DDP): the ranks over which the window is split, or
            "world" for all ranks.
        cuda_graph: as in `GGT`. Rows of integers and rows in host memory make their steps without a graph.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> whitening = Whitening(model.parameters(), window=10)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> whitening()
    """

    sink = Gradients()
    warns = False  # what is not finite is left to the optimizer that comes after, as it would have been

    def __init__(
        self,
        params: ParamsT,
        window: int = 20,
        *,
        decay: float = 1.0,
        shrinkage: float | str = "auto",
        jitter: float = 1e-6,
        eps: float = 0.0,
        keep_norm: bool = True,
        window_dtype: torch.dtype | str | None = None,
        scope: str = "model",
        solver: str = "auto",
        process_group: Any = None,  # noqa: ANN401 - a ProcessGroup
        cuda_graph: bool = False,
    ) -> None:
        check_flag("keep_norm", keep_norm)
        super().__init__(
            params,
            window=window,
            betas=(0.0, window_decay("decay", decay)),
            shrinkage=shrinkage,
            jitter=jitter,
            eps=eps,
            adjust_lr_fn="keep_norm" if keep_norm else "mean",
            window_dtype=window_dtype,
            scope=scope,
            solver=solver,
            history="newest",
            process_group=process_group,
            cuda_graph=cuda_graph,
        )

    def add_param_group(self, param_group: Group) -> None:
        """Add a param group. What it says of a step (maximize, finish, …) is for the optimizer that comes after."""
        ours = {"window", "window_dtype", "scope", "eps", "jitter", "shrinkage", "solver"}
        super().add_param_group({k: v for k, v in param_group.items() if k in ours or k not in OPTIONS})

    @classmethod
    def memory(
        cls,
        model: Any,  # noqa: ANN401 - see GGT.memory
        *,
        window: int = 20,
        window_dtype: torch.dtype | str | None = None,
        scope: str = "model",
        ranks: int = 1,
    ) -> Memory:
        """The bytes of the state of this front-end, as `GGT.memory` counts them; the optimizer behind it has its own.

        Example:
            >>> print(Whitening.memory(5_300_032, window=7, window_dtype="int8"))
            5,300,032 parameters; bytes in all, and for each:
            window    39.4 MB      7.44
            row           0 B      0.00
            buffers       0 B      0.00
            small       528 B      0.00
            total     39.4 MB      7.44
            peak      60.6 MB     11.44
        """
        options = {"window": window, "window_dtype": window_dtype, "scope": scope, "history": "newest"}
        return memory_of(model, ranks=ranks, sink=cls.sink, finish="none", **options)

    def __call__(self) -> None:
        """Whiten the gradients of all parameters: as ``step()``, with its hooks."""
        self.step()


# With one of these options an optimizer divides by the size of past gradients, or takes their polar factor or signs.
_OWN_LENGTH = ("betas", "rho", "beta2_decay", "ns_steps", "initial_accumulator_value", "matrix_eps", "etas")


_One = TypeVar("_One", bound=Optimizer)


@overload
def whiten(
    optimizer: _One,
    /,
    *,
    window: int = 20,
    keep_norm: bool | None = None,
    **options: Any,  # noqa: ANN401 - see Whitening
) -> _One: ...


@overload
def whiten(
    first: Optimizer,
    second: Optimizer,
    /,
    *others: Optimizer,
    window: int = 20,
    keep_norm: bool | None = None,
    **options: Any,  # noqa: ANN401 - see Whitening
) -> tuple[Optimizer, ...]: ...


def whiten(
    *optimizers: Optimizer,
    window: int = 20,
    keep_norm: bool | None = None,
    **options: Any,
) -> Any:
    """Make an optimizer full-matrix: its gradients are whitened before it uses them.

    The optimizer keeps its class, its learning rate, its schedulers and its own state. Several optimizers share one
    window over all their parameters: give them in one call, and step each of them once in a round. Two models that
    train in turns (a GAN) need a window each: call `whiten` once for each of them. ``optimizer.whitening`` is the
    `Whitening` that works for it.

    Gradients are whitened when ``step`` begins: after clipping, after unscaling, and after the closure if ``step`` is
    given one. The state of the window is in the optimizer's ``state_dict``.

    Args:
        *optimizers: one or several optimizers.
        window: r, how many past gradients the matrix is made of.
        keep_norm: the whitened gradient has the length of the raw one. None: True if an optimizer makes steps in
            proportion to its gradients (SGD), and False if all see to the length of their steps themselves (Adam and
            its kin, Muon), for which docs/defaults.md found the whitened length better.
        **options: of `Whitening`.

    Returns:
        the optimizer, or the tuple of optimizers, that was given.

    Raises:
        ValueError: an optimizer is whitened already, has a window of its own, or evaluates a closure several times; or
            two optimizers have a parameter in common.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> muon = torch.optim.Muon([model.weight], lr=1e-2)
        >>> adamw = torch.optim.AdamW([model.bias], lr=1e-3)
        >>> muon, adamw = whiten(muon, adamw, window=50)
        >>> model(torch.randn(8, 3)).square().mean().backward()
        >>> muon.step(), adamw.step()
        (None, None)
    """
    for optimizer in optimizers:
        _check_optimizer(optimizer)
    if not optimizers:
        raise TypeError("whiten: give one optimizer or several, e.g. whiten(torch.optim.AdamW(model.parameters()))")
    for name in options:
        _check_name(name)
    everyone = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    if len(set(map(id, everyone))) < len(everyone):
        raise ValueError("whiten: two param groups have a parameter in common; each parameter needs one optimizer")
    if keep_norm is None:
        keep_norm = not all(_sees_to_its_length(optimizer) for optimizer in optimizers)
    front = FrontEnd(Whitening(groups_of(optimizers), window, keep_norm=keep_norm, **options), optimizers)
    for optimizer in optimizers:
        attach(optimizer, front)
        optimizer.whitening = front.whitening  # type: ignore[attr-defined]
    return optimizers[0] if len(optimizers) == 1 else optimizers


def _check_optimizer(optimizer: Any) -> None:  # noqa: ANN401 - anything a user passes
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        hint = "make an optimizer first, as in whiten(torch.optim.AdamW(model.parameters(), lr=1e-3))"
        if isinstance(optimizer, type):
            name = f"the class {optimizer.__name__}"
            hint = f"make the optimizer first: {optimizer.__name__}(parameters)"
        elif isinstance(optimizer, list | tuple):
            hint = "write whiten(*optimizers) for several that share a window"
        elif isinstance(optimizer, int):
            hint = f"the number of rows is given by name: window={optimizer}"
        raise TypeError(f"whiten takes torch optimizers, got {name}; {hint}")
    if hasattr(optimizer, "whitening"):
        raise ValueError(f"whiten: this {name} is whitened already; make a new optimizer for another window")
    if isinstance(optimizer, FullMatrixOptimizer):
        raise ValueError(f"whiten: {name} has a full matrix of its own; use it as it is")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "whiten: LBFGS evaluates its closure several times in a step and compares the gradients, which whitening "
            "changes; use LBFGS alone, or whiten AdamW or Muon"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            "whiten: SparseAdam takes sparse gradients alone, and a full matrix needs dense ones; use it as it is, and "
            "whiten the optimizer of the other parameters"
        )
    if not hasattr(optimizer, "_optimizer_state_dict_post_hooks"):  # a wrapper that did not call Optimizer.__init__
        raise TypeError(f"whiten: {name} wraps an optimizer and has no hooks; whiten the optimizer inside it")
    entries = [entry for entry in optimizer.state.values() if isinstance(entry, dict)]
    if any(str(key).startswith(PREFIX) for entry in entries for key in entry):
        raise ValueError(
            f"whiten: this {name} has loaded the state of a whitened optimizer before it was whitened, and torch has "
            "rounded the window to the dtype of the parameters. Make a new optimizer, whiten it first, and then load "
            "the state. Nothing was changed."
        )


def _check_name(option: str) -> None:
    known = [name for name in inspect.signature(Whitening).parameters if name != "params"]
    if option not in known:
        close = difflib.get_close_matches(option, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}."
        raise TypeError(f"whiten has no option {option!r}; {hint} Options such as lr belong to the optimizer.")


def _sees_to_its_length(optimizer: Optimizer) -> bool:
    # Some packages keep their options in the param groups alone.
    return isinstance(optimizer, torch.optim.RMSprop) or all(
        any(name in group for name in _OWN_LENGTH) for group in optimizer.param_groups
    )
