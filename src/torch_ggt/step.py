"""One step, on one page. Every member of the family makes this step.

In the paper's symbols, with the file in which each verb is at work::

    v ← β₁ v + g                          gather     the row that may enter the window        rules, backends
    k = W v                               measure    one row of the Gram matrix K, float64    backends
    W ← v over its oldest row, K ← k      push       decay weights age by β₂                  backends, window
    c = [(M + δI)^½ + εI]⁻¹ a             solve      M = D K D = GᵀG, r × r                   solver
    u = G c                               expand     G = Wᵀ D                                 backends
    u ← moments of u, then its shape      average, finish                                     finish
    x ← x - η·s·u                         apply      s from adjust_lr_fn                      sinks

Data goes one way. A gradient that is not finite shows in k before anything is written, and the step is then not taken.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from torch_ggt.backends.cuda_graph import StepGraph
from torch_ggt.distributed.columns import Columns, existing_group
from torch_ggt.finish import finished
from torch_ggt.memory import check_host_rows
from torch_ggt.options import OPTIONS, check, check_agreement, check_flag
from torch_ggt.parameters import Group, not_a_model, warn
from torch_ggt.sinks import Gradients, Parameters
from torch_ggt.state import checks, saved
from torch_ggt.state.block import Block, nonfinite_message
from torch_ggt.state.live import LiveState

__all__ = ["FullMatrixOptimizer", "advance"]

# Relative accuracy of the Cholesky solver, by the dtype of the rows it will be multiplied with.
_TOLERANCE = {torch.float64: 1e-11}
_DEFAULT_TOLERANCE = 1e-8
# Below this jitter, nearly collinear rows come with coefficients that are too large for sums in float32.
_SAFE_JITTER = 1e-6
# No step is longer than this before lr: gradients near the end of float32 must not carry the parameters beyond it.
_LONGEST = 1e18

_SKIPPED = (
    "GGT skipped a step because a gradient was not finite; parameters and state are unchanged. optimizer.skipped "
    "counts such steps; nonfinite='raise' names the parameter."
)
_SKIPPED_BY_FINISH = (
    "GGT skipped a step because the function that is the finish of a param group made a number that is not finite; the "
    "parameters of its full matrix are unchanged. optimizer.skipped counts such steps."
)
_NAN_BY_FINISH = (
    "torch_ggt: the function that is the finish of a param group made a number that is not finite. No parameter of "
    "its full matrix was changed; the window holds the gradient. nonfinite='skip' skips and counts such steps."
)


def advance(blocks: list[Block], columns: Columns, refused: Callable[..., bool]) -> None:
    """The step itself: from the gradients to the sink. On a GPU nothing of it depends on what the host sees.

    Args:
        blocks: the matrices that have a gradient.
        columns: where their columns are.
        refused: function(blocks, taken): counts a step that is not taken; True ends the step here.
    """
    for block in blocks:
        block.rule.gather(block)
    for block in blocks:
        block.sums = block.window.measure(block.row).sums
    taken = judged(blocks, columns.sum(blocks))
    if refused(blocks, taken):
        return
    for block in blocks:
        own = taken.to(block.row.device)
        newest = push(block, own)
        c = solve(block, block.rule.target(block, newest))
        if block.descends and block.longest is None and block.backend.descend(block, c, own):
            continue  # u was made and applied in one pass
        expand(block, c, own)
        if block.finishes:
            own = finished(block, own, refused)
        block.sink.apply(block, own)
    if not columns.alone:
        columns.share(blocks)


def judged(blocks: list[Block], taken: Tensor) -> Tensor:
    """``taken``, unless a learning rate that lives on a device is negative or not finite: its host cannot see it."""
    for block in blocks:
        for group, _, _ in block.runs:
            rate = group["lr"]
            if isinstance(rate, Tensor) and not rate.is_cpu:
                taken = taken & ((rate >= 0) & (rate < torch.inf)).reshape(()).to(taken.device)
    return taken


def push(block: Block, taken: Tensor) -> Tensor:
    """Write the row over the oldest one, where ``taken``; e_newest, shape (..., r)."""
    accept = taken if block.active is None else taken & block.active
    if not block.rule.takes_zeros:
        accept = accept & (block.sums[..., -1] > 0)
    ages = block.rule.ages(block.options)
    newest = block.newest = block.backend.push(block.window, block.row, block.sums, ages, accept, block.carry)
    if block.pending:
        block.backend.commit(block.pending, taken)
    return newest


def solve(block: Block, a: Tensor) -> Tensor:
    """c = [(M + δI)^½ + εI]⁻¹ a, M shrunk; with the paper's interpolation with SGD and the factor of adjust_lr_fn."""
    options = block.options
    block.how = {"jitter": options["jitter"], "solver": options["solver"], "shrinkage": options["shrinkage"]}
    block.how["tolerance"] = _TOLERANCE.get(block.window.rows.dtype, _DEFAULT_TOLERANCE)
    if block.rule.solve is None:
        c = block.backend.coefficients(block.window, a, eps=options["eps"], **block.how)
    else:
        c = block.rule.solve(block, a)
    # Without jitter, rounding decides how long the step is in directions in which the window is nearly singular.
    bounded = options["jitter"] == 0 and options["sgd_scale"] == 0 and block.rule.solve is None
    block.longest = a.norm(dim=-1) if bounded else None
    if options["sgd_scale"] != 0:
        c = c + options["sgd_scale"] * a
    scale = options["adjust_lr_fn"]
    if scale == "keep_norm":
        length = block.window.squared_norm(a)
        longer = (length / block.window.squared_norm(c)).sqrt_()
        c = c.mul_(longer.nan_to_num_(0.0)[..., None])  # 0/0 where no row was taken
        block.longest = length.sqrt_() if bounded else None
    elif scale != "original":
        mean = scale == "mean" or block.all_finish  # a finish sees to the length itself
        factor = block.window.decay.square().sum(-1, keepdim=True).sqrt_() if mean else block.rms_scale
        c = c.mul_(factor)
        block.longest = block.longest * factor.squeeze(-1) if block.longest is not None else None
    if options["sgd_scale"] != 0 or scale == "keep_norm":  # these promise no length
        c = c * (_LONGEST / block.window.squared_norm(c).sqrt_()).clamp_(max=1.0).nan_to_num_(0.0)[..., None]
    block.kept = None
    if block.window.format.coded:  # what rounding has cut off stays in the step
        c, block.kept = block.window.keep_whole_row(c, block.newest)
    return c


def expand(block: Block, c: Tensor, taken: Tensor) -> None:
    """u = G c, and κ v where some of it is kept: flat, over the row v that is no longer needed."""
    window, wide = block.window, block.options["jitter"] < _SAFE_JITTER
    weights, gram = window.decay * c, window.gram
    step = block.backend.expand(window.rows, weights, gram, block.row, window.borders, wide=wide, kept=block.kept)
    if block.longest is not None:
        window.shorten(step, block.longest, block.columns.total)
    if block.rule.follow is not None:
        block.zero_missing()  # a parameter without a gradient makes no step
        block.row.copy_(block.rule.follow(block, step, taken))


class FullMatrixOptimizer(Optimizer):
    """What all members have in common: the step, its options, its state. A member is a rule; see `torch_ggt.rules`.

    Args:
        params: parameters, named parameters, or param groups.
        process_group: the ranks over which the window of plain parameters is split, "world" for all of them, or None.
        cuda_graph: make a CUDA graph of the step.
        **options: of the table `torch_ggt.options.OPTIONS`; what is left out has its default.
    """

    sink: Parameters | Gradients = Parameters()
    """Where the steps of this member go."""
    warns = True
    """Whether the first step that is skipped gives a warning."""

    def __init__(
        self,
        params: ParamsT,
        *,
        process_group: Any = None,  # noqa: ANN401 - a ProcessGroup
        cuda_graph: bool = False,
        **options: Any,  # noqa: ANN401 - see options.py
    ) -> None:
        check_flag("cuda_graph", cuda_graph)
        if process_group is not None:
            process_group = existing_group(process_group)
        unknown = options.keys() - OPTIONS.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__}: unknown options {sorted(unknown)}; there are {sorted(OPTIONS)}")
        self._live = LiveState(process_group, self.sink)
        self._graph = StepGraph(cuda_graph)
        self._warned = False
        self._consolidated: dict[str, Any] | None = None
        defaults = {name: options.get(name, option.default) for name, option in OPTIONS.items()}
        check(defaults)
        super().__init__(not_a_model(params), {**defaults, checks.FORMAT_KEY: checks.FORMAT_VERSION})

    def add_param_group(self, param_group: Group) -> None:
        """Add a param group, in mid-run too: its columns start as zeros, which changes nothing for the others."""
        super().add_param_group(param_group)
        try:
            check(self.param_groups[-1])
            check_agreement(self.param_groups)
            check_host_rows(self.param_groups[-1], graph=self._graph.wanted, split=self.process_group is not None)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

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
        if torch.compiler.is_compiling():  # a compiled program breaks its graph here
            return torch.compiler.disable(self._step)(closure)  # type: ignore[no-any-return, no-untyped-call]
        return self._step(closure)

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._consolidated = None
        blocks = self._live.ready(self.param_groups, self.state)
        for block in blocks:
            if block.lends_row:
                block.take_row()
        try:
            if blocks and not (self._graph.wanted and self._replayed(blocks)):
                advance(blocks, self._live.columns, self._refused)
        finally:
            for block in blocks:
                if block.lends_row:
                    block.give_row_back()
        return loss

    def _replayed(self, blocks: list[Block]) -> bool:
        """Make the step by a CUDA graph, if there is one for it."""
        idle = [block for block in self._live.blocks if block.allotted and block not in blocks]

        def make_step() -> None:
            advance(blocks, self._live.columns, self._refused)

        return self._graph.replay(self.param_groups, blocks, idle, make_step)

    def _refused(self, blocks: list[Block], taken: Tensor, *, finishing: bool = False) -> bool:
        """Count, warn of, or raise for a step that is not taken; whether the host knows that it is not."""
        options, host_sees = blocks[0].options, blocks[0].backend.sees_numbers
        raises = options["nonfinite"] == "raise" and not any(group["capturable"] for group in self.param_groups)
        if host_sees or raises:
            if bool(taken):
                return False
            if raises:
                raise RuntimeError(_NAN_BY_FINISH if finishing else nonfinite_message(blocks))
        self._live.count_skipped(~taken)
        if host_sees and self.warns and not self._warned:
            self._warned = True
            warn(_SKIPPED_BY_FINISH if finishing else _SKIPPED)
        return host_sees

    # ---- looking ---------------------------------------------------------------------------------------------------

    @property
    def skipped(self) -> int:
        """How many steps were skipped because a gradient was not finite."""
        return max((int(entry["skipped"]) for entry in self.state.values() if "skipped" in entry), default=0)

    @property
    def process_group(self) -> Any:  # noqa: ANN401 - a ProcessGroup
        """The ranks over which the window of plain parameters is split, or None."""
        return self._live.process_group

    @torch.no_grad()
    def spectrum(self) -> list[Tensor]:
        """The singular values of the window G, descending, float64: one tensor for each matrix, of the filled rows.

        With ``scope="model"`` the list has one element. Its squares are the nonzero eigenvalues of the paper's GGᵀ.
        """
        return [
            window.singular_values()[: int(window.count)]
            for block in self.attached_blocks()
            for window in block.window.matrices()
        ]

    def attached_blocks(self) -> list[Block]:
        """The blocks that have a window, for tools that look inside, such as the recorder of spectra."""
        return self._live.attached(self.param_groups, self.state)

    # ---- saving and loading ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: per-parameter state and param groups, as in every torch optimizer.

        On a CPU, and where a window is split over ranks, all of it is a copy; on one GPU all of it refers to the live
        tensors. Where a window is split, windows and momentum are DTensors, and ``ggt_part`` says whose part this is.
        """
        return self.state_dict_of(None)

    def state_dict_of(self, parameters: Iterable[Tensor] | None) -> dict[str, Any]:
        """`state_dict` with the state of some parameters only, for a front-end that saves it in parts; None: of all."""
        if self._consolidated is not None:
            return self._consolidated
        chosen = None if parameters is None else {id(parameter) for parameter in parameters}

        def present(_: Optimizer, packed: dict[str, Any]) -> dict[str, Any]:
            groups = self._live.made_with(self.param_groups)
            return saved.snapshot(packed, groups, self._live.columns_of(self.param_groups), chosen)

        self._live.settle(self.param_groups, self.state)
        handle = self.register_state_dict_post_hook(present, prepend=True)  # inside the user's hooks
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Put the parts of all ranks together on rank ``to``; every rank must call this.

        Afterwards, until the next step, ``state_dict()`` on that rank is the whole state, in plain tensors on the CPU:
        it loads on any number of ranks. ``torch.distributed.optim.ZeroRedundancyOptimizer`` has this method, too.
        """
        columns = self._live.columns_of(self.param_groups)
        if not 0 <= to < columns.ranks:
            raise ValueError(f"torch_ggt: to must be a rank from 0 to {columns.ranks - 1}, got to={to!r}")
        self._consolidated = None
        if not columns.alone:
            self._consolidated = saved.consolidated(self.state_dict(), keep=columns.rank == to)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; windows, Gram matrices and counters keep their dtypes.

        Options come from the saved param groups, as in every torch optimizer. ``window``, ``window_dtype``,
        ``history``, ``scope`` and ``finish`` must agree with the saved ones. A state that is refused (ValueError)
        leaves state, options and parameters as they were.
        """

        def before(_: Optimizer, incoming: dict[str, Any]) -> dict[str, Any]:
            self.check_state_dict(incoming)
            return saved.carry(incoming, self.param_groups)

        def after(_: Optimizer) -> None:
            saved.complete(self.state, self.param_groups)
            self._live.adopt(self.param_groups, self.state)  # copies now: nothing shares memory with the caller

        if not isinstance(state_dict, dict):
            raise TypeError(f"torch_ggt: load_state_dict takes a state_dict(), got a {type(state_dict).__name__}")
        kept = self.state, self.param_groups
        # Ours run closest to torch's own loading, inside the user's hooks.
        handles = (
            self.register_load_state_dict_pre_hook(before),
            self.register_load_state_dict_post_hook(after, prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        except BaseException:
            self.state, self.param_groups = kept
            raise
        finally:
            for handle in handles:
                handle.remove()
        self._consolidated = None

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError unless `load_state_dict` would take ``state_dict``; every rank must call this."""
        columns = self._live.columns_of(self.param_groups)
        columns.agree(lambda: checks.check_loadable(state_dict, self.param_groups, columns))
        checks.check_rows(state_dict, self.param_groups, columns)

    def __getstate__(self) -> dict[str, Any]:
        # Plain pickle would write the whole flat window once for each view of it.
        self._live.settle(self.param_groups, self.state)
        compact = {
            parameter: {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}
            for parameter, entry in self.state.items()
        }
        part = self._live.columns.rank, self._live.columns.ranks
        return {**super().__getstate__(), "state": defaultdict(dict, compact), "part": part}

    def __setstate__(self, state: dict[str, Any]) -> None:
        part = state.pop("part", None)
        super().__setstate__(state)
        if not hasattr(self, "_live"):  # unpickled; torch calls this for every load_state_dict, too
            self._live = LiveState(sink=self.sink)
            self._live.part = part if self.state else None
            self._graph = StepGraph(False)
            saved.complete(self.state, self.param_groups)  # a pickle of an older version lacks some options
        self._warned, self._consolidated = False, None

    def __deepcopy__(self, memo: dict[int, Any]) -> "FullMatrixOptimizer":
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        self._live.settle(self.param_groups, self.state)
        # Not through our __getstate__: deepcopy keeps views together, and needs no extra copy of the window.
        twin.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        twin._live = LiveState(self._live.process_group, self.sink)
        twin._graph = StepGraph(self._graph.wanted)
        return twin
