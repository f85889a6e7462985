"""GGT as a torch optimizer: it checks, gathers, calls and scatters. Start reading here.

One step, in the paper's symbols (each line is one call below)::

    v ← β₁ v + g                          gather     the gradients of a block as one flat vector
    k = W v                               measure    one row of the Gram K, float64
    W ← v over its oldest row, K ← k      push       decay weights age by β₂
    c = [(M + δI)^½ + εI]⁻¹ e_newest      solve      M = D K D = GᵀG, r × r
    x ← x - η·s·G c                       scatter    G = Wᵀ D; s from adjust_lr_fn
"""

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from torch_ggt import checkpoint
from torch_ggt.attach import attach, stale
from torch_ggt.block import Block, Candidate, make_blocks
from torch_ggt.members import Group, describe
from torch_ggt.options import check_agreement, check_options
from torch_ggt.sharding import Claim, Local, Sharding, check_group, choose, reduce_step
from torch_ggt.step_graph import StepGraph
from torch_ggt.window import GramRow

if TYPE_CHECKING:  # a build of torch without distributed has none
    from torch.distributed import ProcessGroup

__all__ = ["GGT"]

# Relative accuracy of the Cholesky solver, by the dtype of the rows it will be multiplied with.
_TOLERANCE = {torch.float64: 1e-11}
_DEFAULT_TOLERANCE = 1e-8


class GGT(Optimizer):
    r"""Full-matrix adaptive optimization: Adam with the whole second-moment matrix instead of its diagonal.

    .. math:: x_{t+1} = x_t - \eta\,s\,[(G_t G_t^\top + \delta I)^{1/2} + \varepsilon I]^{-1} v_t,

    where the columns of G are the last r momentum vectors (or gradients), each times β₂ per step of age. The step is
    exact and costs two passes over the window. Its length, before lr and the factor s of ``adjust_lr_fn``, is at most
    one, whatever the scale of the loss (with history="gradient": at most the length of its momentum weights).

    Args:
        params: parameters, named parameters, or param groups. ``lr``, ``weight_decay`` and ``maximize`` may differ
            between groups; with ``scope="model"`` the other options may not.
        lr: learning rate η, a float or a 1-element tensor.
        betas: (β₁, β₂): momentum, in [0, 1); decay of the window per step of age, in (0, 1]. With β₂ = 1 the window
            alone forgets.
        eps: ε ≥ 0, absolute as in the paper.
        weight_decay: decoupled, as in AdamW.
        window: r, how many past steps the matrix is made of. The window takes ``window`` times the memory of the
            trainable parameters.
        window_dtype: torch.float32, torch.bfloat16 (half the memory and time) or torch.float64. None: float64 if a
            parameter is, else float32.
        history: what the window stores: "momentum" (the paper's tweak), or "gradient" (its Algorithm 1 as printed;
            momentum is then truncated to the window and needs β₁ ≤ β₂).
        scope: one full matrix for the whole "model" (the paper), one per param "group", or one per "parameter".
        sgd_scale: ≥ 0, adds sgd_scale·v to the preconditioned step: the paper's interpolation with SGD. It gives up
            the bound on the step's length and the invariance to the scale of the loss.
        jitter: δ = jitter·tr(GᵀG)/r, the paper's numerical safeguard: 0, or from 1e-10 to 1. After a
            gradient spike of relative size S the steps are short, about min(1, √(window/jitter)/S), until it has left
            the window.
        nesterov: precondition the look-ahead g + β₁v.
        adjust_lr_fn: "match_rms_adamw" multiplies the step by 0.2·√d, so that learning rates tuned for AdamW carry
            over; "original" is the paper's step.
        solver: "eigh", "cholesky" (needs jitter > 0), or "auto": eigh on a CPU, cholesky elsewhere.
        nonfinite: a NaN or Inf in a gradient: "skip" leaves everything as it was and counts it in `skipped`; "raise"
            names the first offending parameter (this synchronizes with the device at each step; inside torch.compile
            and CUDA graphs, where the host cannot look, it skips, too).
        maximize: maximize the objective.
        capturable: no checks on the host, for CUDA graph capture. All state lives on the device either way.
        cuda_graph: on one GPU, make a CUDA graph of the step after a few steps, and start it with one call: for small
            models, and hosts that are slower than the device. Where a step cannot be one (``nonfinite="raise"``,
            ``solver="eigh"``, no Triton, parameters without a gradient) it is made as without. Not saved with the
            state.
        process_group: for models that are alike on several ranks (DDP): the ranks over which the window and the
            work of a step are split. DTensors (FSDP2, tensor parallel) are split already and need none; see
            docs/distributed.md.

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
        weight_decay: float = 0.0,
        *,
        window: int = 20,
        window_dtype: torch.dtype | None = None,
        history: str = "momentum",
        scope: str = "model",
        sgd_scale: float = 0.0,
        jitter: float = 1e-6,
        nesterov: bool = False,
        adjust_lr_fn: str = "match_rms_adamw",
        solver: str = "auto",
        nonfinite: str = "skip",
        maximize: bool = False,
        capturable: bool = False,
        cuda_graph: bool = False,
        process_group: "ProcessGroup | None" = None,
    ) -> None:
        if not isinstance(cuda_graph, bool):
            raise TypeError(f"GGT: cuda_graph must be True or False, got cuda_graph={cuda_graph!r}")
        if process_group is not None:
            check_group(process_group)
        self._process_group = process_group
        self._sharding: Sharding = Local()
        self._matrices: list[list[Block]] = []
        self._blocks_made_for: list[tuple[int, list[int]]] = []
        # What all ranks know of each other: how many sums a step adds up, and the pattern of gradients.
        self._agreed: tuple[int, list[tuple[bool, torch.dtype]] | None] = (0, None)
        self._warned = False
        self._graph = StepGraph(cuda_graph)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "window": window,
            "window_dtype": window_dtype,
            "history": history,
            "scope": scope,
            "sgd_scale": sgd_scale,
            "jitter": jitter,
            "nesterov": nesterov,
            "adjust_lr_fn": adjust_lr_fn,
            "solver": solver,
            "nonfinite": nonfinite,
            "maximize": maximize,
            "capturable": capturable,
            checkpoint.FORMAT_KEY: checkpoint.FORMAT_VERSION,
        }
        check_options(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """Add a param group, in mid-run too: its columns start as zeros, which changes nothing for the others."""
        if isinstance(param_group, dict):
            complete = {**self.defaults, **param_group}
            check_options(complete)
            check_agreement([*self.param_groups, complete])
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one optimization step.

        Args:
            closure: reevaluates the model and returns the loss; called once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        self._init_group()
        if not self._graph.wanted or not self._replay():
            self._make_step()
        return loss

    @property
    def skipped(self) -> int:
        """How many steps were skipped because a gradient was not finite."""
        return max((int(entry["skipped"]) for entry in self.state.values() if "skipped" in entry), default=0)

    @torch.no_grad()
    def spectrum(self) -> list[Tensor]:
        """The singular values of the window G, descending, float64: one tensor per full matrix, of the filled rows.

        With ``scope="model"`` the list has one element. Its squares are the nonzero eigenvalues of the paper's GGᵀ.
        """
        return [
            window.singular_values()[: int(window.count)]
            for block in self.attached_blocks()
            for window in block.window.matrices()
        ]

    def attached_blocks(self) -> list[Block]:
        """The blocks that have a window, for tools that look inside, such as the spectrum's recorder.

        One for each matrix: of one that is spread over several devices, the first device's.
        """
        self._partition()
        self._attach(self._matrices, allot=False)
        first_shards = [next((block for block in matrix if block.allotted), None) for matrix in self._matrices]
        return [block for block in first_shards if block is not None]

    # ---- saving and loading ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: per-parameter state and param groups, as in every torch optimizer.

        On a CPU windows are copies, one after the other; elsewhere they are views of the flat window, and torch.save
        writes that once. Where a window is split over ranks, the entries are DTensors.
        """
        plain: dict[str, Any] = super().state_dict()
        return {**plain, "state": checkpoint.in_one_piece(plain["state"])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; windows, Grams and counters keep their dtypes.

        Options come from the saved param groups, as in every torch optimizer. ``window``, ``window_dtype``,
        ``history`` and ``scope`` must agree with the saved ones: ValueError otherwise, and nothing is changed. Rows
        that do not belong to their Gram matrix are a ValueError, too, which leaves the optimizer without state.
        """

        def before(_: Optimizer, incoming: dict[str, Any]) -> dict[str, Any]:
            def check() -> Claim:
                checkpoint.check_loadable(incoming, self.param_groups)
                return Claim(checkpoint.summary(incoming))

            self._partition()
            self._sharding.agree(check)
            return checkpoint.carry(incoming)

        def after(_: Optimizer) -> None:
            for entry in self.state.values():
                checkpoint.unpack(entry)
            self._partition()
            # Copies now, so that nothing aliases the caller's tensors.
            try:
                self._attach(self._matrices, allot=False, loaded=True)
            except ValueError:
                self.state.clear()  # the old state is gone: there is not always memory for two windows
                raise

        # Ours run closest to torch's own loading, inside the user's hooks.
        handles = (
            self.register_load_state_dict_pre_hook(before),
            self.register_load_state_dict_post_hook(after, prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        # Plain pickle would write the whole flat window once per view of it.
        plain: dict[str, Any] = super().__getstate__()
        compact = {
            parameter: {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}
            for parameter, entry in self.state.items()
        }
        return {**plain, "state": defaultdict(dict, compact)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A group belongs to its process and is not saved; torch calls this for every load_state_dict, too.
        self._process_group = getattr(self, "_process_group", None)
        self._sharding, self._matrices, self._blocks_made_for = Local(), [], []
        self._agreed = (0, None)
        self._warned = False
        self._graph = StepGraph(self._graph.wanted if hasattr(self, "_graph") else False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "GGT":
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        # Not through our __getstate__: deepcopy keeps views together, and needs no extra copy of the window.
        twin.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        twin._process_group = self._process_group
        twin._graph.wanted = self._graph.wanted
        return twin

    # ---- blocks ----------------------------------------------------------------------------------------------------

    def _partition(self) -> None:
        """Make the blocks, and make them again when param groups or their parameters were added or replaced."""
        made_for = [(id(group), [id(p) for p in group["params"]]) for group in self.param_groups]
        if made_for != self._blocks_made_for:
            parameters = [p for group in self.param_groups for p in group["params"]]
            self._sharding = choose(self._process_group, parameters)
            self._matrices = make_blocks(self.param_groups, self._sharding)
            self._blocks_made_for = made_for

    def _init_group(self) -> None:
        """Put the state of every block with a gradient in place, and check it.

        torch.compile knows a method of this name and runs it once, outside of the graph, when it traces a step.
        """
        self._partition()
        length, pattern = self._agreed
        with self._sharding.attempt(length, self._home()):
            check_agreement(self.param_groups)
            matrices = self._with_gradient()
            news = bool(stale(matrices, self.state, allot=True))
            news = news or (not self._sharding.alone and pattern != self._pattern())
            if not news:
                _check(matrices)
        if news:
            self._sharding.gather_all(length, self._home())
            self._attach(matrices, allot=True, ask=True)
            with self._sharding.attempt(self._agreed[0], self._home()):
                _check(matrices)

    def _attach(self, matrices: list[list[Block]], *, allot: bool, ask: bool = False, loaded: bool = False) -> None:
        """`attach`, and what all ranks know of each other after it."""
        if attach(matrices, self.state, self._sharding, allot=allot, ask=ask, loaded=loaded):
            shards = [next((block for block in matrix if block.allotted), None) for matrix in self._matrices]
            length = sum(block.window.decay[..., 0].numel() * (block.window.size + 1) for block in shards if block)
            self._agreed = length, self._pattern() if allot else None

    def _pattern(self) -> list[tuple[bool, torch.dtype]]:
        """Which parameters have a gradient, and their dtypes."""
        return [(p.grad is not None, p.dtype) for group in self.param_groups for p in group["params"]]

    def _replay(self) -> bool:
        """Make the step by a graph, if there is one for it."""
        active = [block for matrix in self._with_gradient() for block in matrix if block.allotted]
        attached = [block for matrix in self._matrices for block in matrix if block.allotted]
        idle = [block for block in attached if block not in active]
        return self._graph.replay(self.param_groups, active, idle, self._make_step)

    def _with_gradient(self) -> list[list[Block]]:
        """The matrices that have a gradient, each as its blocks, one per device."""
        return [matrix for matrix in self._matrices if any(block.has_gradient() for block in matrix)]

    def _home(self) -> torch.device:
        """Where ranks meet that have no sums to show."""
        device: torch.device = next(p for group in self.param_groups for p in group["params"]).device
        return device

    def _make_step(self) -> None:
        """All that a step does with gradients and state; on one GPU, nothing of it depends on the host."""
        blocks, candidates, check_others = self._measure()
        taken = _all_finite(candidates)
        if not torch.compiler.is_compiling():
            self._report(blocks, taken, check_others)
        for block, candidate in zip(blocks, candidates, strict=True):
            _advance(block, candidate, taken[block.skipped.device])
        if not self._sharding.alone:
            self._sharding.share([p for block in blocks for _, p in block.allotted if p.grad is not None])
        self._count_skipped(taken)

    def _measure(self) -> tuple[list[Block], list[Candidate], Callable[[], None]]:
        """v ← β₁ v + g and k = W v for every matrix: the one thing that the shards of a window must tell each other.

        Returns:
            the blocks that make a step, their rows, and a check whether all ranks were there.
        """
        matrices = [[block for block in matrix if block.allotted] for matrix in self._with_gradient()]
        with self._sharding.attempt(self._agreed[0], self._home()):
            grouped = [[(block, _gather(block)) for block in matrix] for matrix in matrices]
            partials = [[block.window.partial(candidate.row) for block, candidate in matrix] for matrix in grouped]
        length = sum(matrix[0].numel() for matrix in partials)
        if length < self._agreed[0] and not self._sharding.alone:  # the others without a gradient, to the agreed length
            rest = torch.zeros(self._agreed[0] - length, dtype=torch.float64, device=self._home())
            partials.append([rest])
        sums, check_others = reduce_step(self._sharding, partials, self._home())
        for matrix, totals in zip(grouped, sums, strict=False):
            for (_, candidate), total in zip(matrix, totals, strict=True):
                candidate.gram_row = GramRow(total)
        pairs = [pair for matrix in grouped for pair in matrix]
        return [block for block, _ in pairs], [candidate for _, candidate in pairs], check_others

    def _count_skipped(self, taken: dict[torch.device, Tensor]) -> None:
        """In every block, with a gradient or without: a step is skipped by all together."""
        for block in (block for matrix in self._matrices for block in matrix):
            if block.allotted and taken:
                flag = taken.get(block.skipped.device, next(iter(taken.values())))
                block.skipped.add_(~flag.to(block.skipped.device))

    def _report(self, blocks: list[Block], taken: dict[torch.device, Tensor], check_others: Callable[[], None]) -> None:
        """Raise or warn where the host may look: always on a CPU, on a GPU only if asked to raise."""
        capturable = any(group["capturable"] for group in self.param_groups)
        wants_error = self.param_groups[0]["nonfinite"] == "raise" and not capturable
        if wants_error or self._home().type == "cpu":
            check_others()
        for device, flag in taken.items():
            if (device.type != "cpu" and not wants_error) or bool(flag):
                continue
            if wants_error:
                raise RuntimeError(_nonfinite_message(blocks))
            if not self._warned:
                self._warned = True
                warnings.warn(
                    "GGT skipped a step because a gradient was not finite; parameters and state are unchanged. "
                    "optimizer.skipped counts such steps; nonfinite='raise' names the parameter.",
                    stacklevel=6,
                )
            return


def _gather(block: Block) -> Candidate:
    beta1, _ = block.options["betas"]
    return block.gather(beta1=beta1, nesterov=block.options["nesterov"])


def _all_finite(candidates: list[Candidate]) -> dict[torch.device, Tensor]:
    """Whether this step is taken, on every device that asks: decided before anything is written, for all blocks alike.

    The square of a row is not finite exactly if an element of it is not (or its square overflows float64).
    """
    squares = [candidate.gram_row.square for candidate in candidates]
    largest = [square.amax() if square.dim() else square for square in squares]  # NaN, if there is one
    if not largest:
        return {}
    home = largest[0].device
    overall = torch.stack([square.to(home) for square in largest]).amax() if len(largest) > 1 else largest[0]
    verdict = overall < math.inf
    return {device: verdict.to(device) for device in dict.fromkeys(square.device for square in largest)}


def _advance(block: Block, candidate: Candidate, taken: Tensor) -> None:
    """One block's step, where ``taken``; everything stays as it was where not."""
    options, window = block.options, block.window
    beta1, _ = options["betas"]
    accept = taken if candidate.active is None else taken & candidate.active
    newest = window.push(
        candidate.row, candidate.gram_row, betas=options["betas"], accept=accept, carry=candidate.carry
    )
    candidate.commit_momentum(taken)

    # The vector to precondition is v = G a: the newest row itself, or the truncated momentum of the rows.
    a = newest
    if options["history"] == "gradient":
        momentum = window.momentum_coefficients() * accept[..., None]
        a = newest + beta1 * momentum if options["nesterov"] else momentum
    c = window.coefficients(
        a,
        eps=options["eps"],
        jitter=options["jitter"],
        solver=options["solver"],
        tolerance=_TOLERANCE.get(window.rows.dtype, _DEFAULT_TOLERANCE),
    )
    if options["sgd_scale"] != 0:
        c = c + options["sgd_scale"] * a
    if options["adjust_lr_fn"] == "match_rms_adamw":
        c = c * block.rms_scale[..., None]
    block.scatter(c, taken, candidate.kernels)


def _check(matrices: list[list[Block]]) -> None:
    for block in (block for matrix in matrices for block in matrix):
        if block.allotted:
            block.check()


def _nonfinite_message(blocks: list[Block]) -> str:
    for block in blocks:
        offender = block.nonfinite_gradient()
        if offender is not None:
            return (
                f"GGT: the gradient of {describe(*offender)} is not finite. Nothing was changed. "
                "nonfinite='skip' skips and counts such steps."
            )
    if blocks and not blocks[0].sharding.alone:
        return (
            "GGT: a gradient is not finite on another rank, which names it, or a sum of squares overflows float64. "
            "Nothing was changed."
        )
    return (
        "GGT: every gradient is finite, but the row overflows the window's dtype or its square overflows float64. "
        "Nothing was changed; scale the loss down."
    )
