"""Full matrices: the parameters they span, their columns of a flat window, and the state under which both are saved.

A block is one matrix over many parameters, or, with scope="parameter", many matrices of one parameter each, which share
one flat window and make their steps together.

The optimizer's ``state`` is the truth. What is saved there per parameter are views of the flat tensors kept here, so
that torch's tools see ordinary per-parameter state; when a view was replaced (loading, unpickling, offloading), the
flat tensors are rebuilt from the state.

========================  =========================  =================================================================
state of                  key                        value
========================  =========================  =================================================================
every parameter           ``window``                 (r, *shape), the window's dtype: its columns of W
.                         ``momentum_buffer``        shape, float32 or float64; absent with history="gradient"
the matrix's first        ``gram``                   (r, r) float64: K
.                         ``decay``, ``momentum``    (r,) float64: age weights
.                         ``position``, ``count``    int64: ring position, rows filled
.                         ``skipped``                int64: steps skipped for a gradient that was not finite
========================  =========================  =================================================================

A complex parameter appears as its real and imaginary parts, with a last dimension of 2. Where columns are split over
ranks (`sharding`), a block has the columns of this rank alone, and the window and momentum in the state are DTensors of
the shapes above. A matrix over several devices of one process has a block on each; the matrix's own state is on the
device of the parameter that holds it, with a copy on the others that makes the same steps.
"""

import itertools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from torch_ggt import products
from torch_ggt.flatten import Layout
from torch_ggt.kernels import gpu_kernels
from torch_ggt.kernels.spans import ALIGNMENT, Spans
from torch_ggt.members import Group, State, check_dense, common_device, describe, partition
from torch_ggt.memory import allocate_window
from torch_ggt.pieces import Piece, whole
from torch_ggt.sharding import Local, Sharding
from torch_ggt.window import GramRow, Window

__all__ = ["WHOLE_BLOCK_KEYS", "Block", "Candidate", "make_blocks"]

WHOLE_BLOCK_KEYS = ("gram", "decay", "momentum", "position", "count", "skipped")
_WIDE = (torch.float64, torch.complex128)


class Block:
    """The parameters that share one full matrix, or one window of many.

    Args:
        members: (param group, parameter) pairs, in order. Columns are allotted at a parameter's first gradient, so
            frozen parameters cost nothing.
        separate: every parameter has a matrix of its own; all must be of one param group.
        sharding: which of their columns are here.
    """

    def __init__(
        self, members: list[tuple[Group, Tensor]], *, separate: bool = False, sharding: Sharding | None = None
    ) -> None:
        self.members = members
        self.separate = separate
        self.sharding = sharding or Local()
        self.options = members[0][0]
        """The param group that speaks for the whole block."""
        self.allotted: list[tuple[Group, Tensor]] = []
        self.window: Window
        self.skipped: Tensor
        self.rms_scale: Tensor
        """0.2·√(elements of the matrix), per matrix: the factor of adjust_lr_fn="match_rms_adamw"."""
        self._pieces: list[Piece] = []
        self._all_here = False  # whole parameters, of real numbers
        self._row: Tensor
        self._row_views: list[Tensor] = []
        self._momentum: Tensor | None = None
        self._momentum_views: list[Tensor] = []
        self._by_group: list[tuple[Group, list[int]]] = []
        self._entries: list[tuple[Tensor, dict[str, Any]]] = []  # of the state, by parameter
        self._published: list[tuple[dict[str, Any], str, Tensor]] = []  # what was put into them
        self._layout: Layout
        self._borders: tuple[int, ...]
        self._patterns: dict[tuple[bool, ...], Tensor] = {}
        self._gradients: Any = None  # addresses on a GPU
        self._values: Any = None

    @property
    def device(self) -> torch.device:
        """Of its flat tensors."""
        return self._row.device

    # ---- columns and state -----------------------------------------------------------------------------------------

    def has_gradient(self) -> bool:
        """Whether any parameter has a gradient to follow."""
        return any(parameter.grad is not None for _, parameter in self.members)

    def allotment(self, state: State, *, allot: bool) -> list[tuple[Group, Tensor]]:
        """The members that have columns, and with ``allot`` those that have a gradient and none yet."""
        return [
            (group, parameter)
            for group, parameter in self.members
            if (allot and parameter.grad is not None) or "window" in state.get(parameter, {})
        ]

    def is_current(self, allotted: list[tuple[Group, Tensor]], state: State) -> bool:
        """Whether the flat tensors are those of ``allotted``, and the state still holds the views of them."""
        # Lists, not generators: this is asked in every step, of every parameter.
        return (
            len(allotted) == len(self.allotted)
            and all([state.get(parameter) is entry for parameter, entry in self._entries])  # noqa: C419
            and all([entry.get(key) is tensor for entry, key, tensor in self._published])  # noqa: C419
        )

    def draft(
        self, allotted: list[tuple[Group, Tensor]], matrix: list[tuple[Group, Tensor]], state: State
    ) -> tuple[Window, Callable[[], None]]:
        """Flat tensors that hold what ``state`` says, and the call that puts them in place; nothing is changed before.

        Args:
            allotted: the members that have columns.
            matrix: the same of all devices over which the matrix is spread.
            state: the optimizer's state.
        """
        parameters = [p for _, p in allotted]
        device = common_device(parameters)
        pieces = [self.sharding.piece(p) for p in parameters]
        layout = Layout([piece.local(p) for p, piece in zip(parameters, pieces, strict=True)], ALIGNMENT)
        matrices = [[p] for p in parameters] if self.separate else [[p for _, p in matrix]]
        owners = [_owner(members, state) for members in matrices]
        stored = [state[p]["window"] for members in matrices for p in members if "window" in state[p]]
        dtype = stored[0].dtype if stored else self._row_dtype()
        grams = [state[owner]["gram"] for owner in owners if "gram" in state[owner]]
        size = grams[0].shape[0] if grams else self.options["window"]

        window = allocate_window(
            size,
            layout.columns,
            dtype,
            device,
            layout.borders if self.separate else None,
            sharding=self.sharding,
            replicas=[
                (right - left, self.sharding.replicas(p))
                for p, (left, right) in zip(parameters, itertools.pairwise(layout.borders), strict=True)
            ],
        )
        row = torch.zeros(layout.columns, dtype=torch.promote_types(dtype, torch.float32), device=device)
        momentum = torch.zeros_like(row) if self.options["history"] == "momentum" else None
        skipped = torch.zeros_like(window.count)
        numels = [sum(whole(p).numel for p in members) for members in matrices]

        published: list[tuple[Tensor, str, Tensor]] = []
        momentum_views = [] if momentum is None else layout.views(momentum)
        for key, views in (("window", layout.views(window.rows)), ("momentum_buffer", momentum_views)):
            for parameter, piece, view in zip(parameters, pieces, views, strict=False):
                if key in state[parameter]:
                    view.copy_(self.sharding.restore(piece, state[parameter][key]))
                published.append((parameter, key, piece.present(view)))
        for index, owner in enumerate(owners):
            for key in WHOLE_BLOCK_KEYS:
                tensor = skipped if key == "skipped" else getattr(window, key)
                tensor = tensor[index] if self.separate else tensor
                if key in state[owner]:
                    tensor.copy_(state[owner][key])
                if any(owner is p for p in parameters):
                    published.append((owner, key, tensor))

        def commit() -> None:
            for parameter, key, tensor in published:
                state[parameter][key] = tensor
            self.allotted = allotted
            self.window, self.skipped = window, skipped
            scales = 0.2 * torch.tensor(numels, dtype=torch.float64, device=device).sqrt()
            self.rms_scale = scales if self.separate else scales[0]
            self._pieces = pieces
            self._all_here = self.sharding.alone and not any(p.is_complex() for p in parameters)
            self._row, self._row_views = row, layout.views(row)
            self._momentum, self._momentum_views = momentum, momentum_views
            self._by_group = [
                (group, [i for i, member in enumerate(allotted) if member[0] is group])
                for group in {id(group): group for group, _ in allotted}.values()
            ]
            self._entries = [(p, state[p]) for p in parameters]
            self._published = [(state[p], key, tensor) for p, key, tensor in published]
            self._layout, self._borders = layout, tuple(layout.borders)
            self._patterns, self._gradients, self._values = {}, None, None

        return window, commit

    def forget(self) -> None:
        """Give up columns that the state no longer knows."""
        self.allotted, self._entries, self._published = [], [], []

    def _row_dtype(self) -> torch.dtype:
        if self.options["window_dtype"] is not None:
            dtype: torch.dtype = self.options["window_dtype"]
            return dtype
        return torch.float64 if any(p.dtype in _WIDE for _, p in self.members) else torch.float32

    def check(self) -> None:
        """Refuse what cannot be continued (changed options, moved parameters) or flattened (sparse gradients)."""
        history = "gradient" if self._momentum is None else "momentum"
        for key, made_with in (("window", self.window.size), ("history", history)):
            if self.options[key] != made_with:
                raise ValueError(
                    f"GGT: {key} was changed to {self.options[key]!r} in the param group, but the state was made with "
                    f"{key}={made_with!r}; make a new optimizer to change it"
                )
        device = self._row.device
        for group, parameter in self.allotted:
            if parameter.device != device:
                raise RuntimeError(
                    f"GGT: {describe(group, parameter)} is on {parameter.device}, but its optimizer state is on "
                    f"{device}. Move the model before the first step, or move both: save state_dict(), move the "
                    "parameters, make a new optimizer and load it."
                )
        check_dense(self.allotted)

    def nonfinite_gradient(self) -> tuple[Group, Tensor] | None:
        """The first parameter of which a gradient that is here is not finite; waits for the device."""
        for index, (group, parameter) in enumerate(self.allotted):
            if parameter.grad is not None and not bool(self._gradient(index).isfinite().all()):
                return group, parameter
        return None

    # ---- one step --------------------------------------------------------------------------------------------------

    def gather(self, *, beta1: float, nesterov: bool) -> "Candidate":
        """Flatten the gradients and add momentum: the row that would enter the window. Writes no state."""
        kernels = self._kernels()
        candidate = None if kernels is None else self._gather_by_kernel(kernels, beta1, nesterov)
        if candidate is None:
            candidate = self._gather_by_torch(beta1, nesterov)
        candidate.kernels = kernels
        return candidate

    def _gather_by_torch(self, beta1: float, nesterov: bool) -> "Candidate":
        targets, gradients, momenta, negated = [], [], [], []
        for index, (group, parameter) in enumerate(self.allotted):
            if parameter.grad is None:
                continue
            targets.append(self._row_views[index])
            gradients.append(self._gradient(index))
            if self._momentum is not None:
                momenta.append(self._momentum_views[index])
            if group["maximize"]:
                negated.append(self._row_views[index])
        complete = len(targets) == len(self.allotted)
        if not complete:
            self._row.zero_()
        torch._foreach_copy_(targets, gradients)
        if negated:
            torch._foreach_neg_(negated)
        active = None if complete or not self.separate else self._have_gradients()
        if self._momentum is None:
            return Candidate(self._row, active)
        if complete:  # one flat operation serves for all
            targets, momenta = [self._row], [self._momentum]
        if nesterov:
            updated = list(torch._foreach_add(targets, momenta, alpha=beta1))  # v ← g + β₁ v
            torch._foreach_add_(targets, updated, alpha=beta1)  # look ahead: g + β₁ v
        else:
            torch._foreach_add_(targets, momenta, alpha=beta1)
            updated = targets
        if complete:
            return Candidate(self._row, active, carry=(self._momentum, updated[0]))
        return Candidate(self._row, active, momenta=momenta, updated=updated)

    def _gradient(self, index: int) -> Tensor:
        """The part of a gradient that is here."""
        return self.sharding.gradient(self.allotted[index][1], self._pieces[index])

    def _value(self, index: int) -> Tensor:
        """The part of a parameter that is here, a view."""
        return self._pieces[index].local(self.allotted[index][1])

    def _have_gradients(self) -> Tensor:
        """Which matrices have a gradient, on the device; copied once for every pattern, and nothing waits for it."""
        pattern = tuple(parameter.grad is not None for _, parameter in self.allotted)
        if torch.compiler.is_compiling():
            return torch.tensor(pattern, device=self._row.device)
        if pattern not in self._patterns:
            flags = torch.tensor(pattern, pin_memory=self._row.is_cuda)
            self._patterns[pattern] = flags.to(self._row.device, non_blocking=True)
        return self._patterns[pattern]

    def scatter(self, coefficients: Tensor, taken: Tensor, kernels: ModuleType | None) -> None:
        """p ← (1 - lr·weight_decay) p - lr·G c for every parameter with a gradient; unchanged where not ``taken``.

        Args:
            coefficients: c.
            taken: bool, ().
            kernels: those of the `Candidate` that this step is made of.
        """
        if kernels is None or not self._scatter_by_kernel(kernels, coefficients, taken):
            self._scatter_by_torch(coefficients, taken)

    def _scatter_by_torch(self, coefficients: Tensor, taken: Tensor) -> None:
        self.window.expand(coefficients, out=self._row)
        for group, indices in self._by_group:
            chosen = [i for i in indices if self.allotted[i][1].grad is not None]
            if not chosen:
                continue
            parameters, updates = [self._value(i) for i in chosen], [self._row_views[i] for i in chosen]
            lr, weight_decay = group["lr"], group["weight_decay"]
            lr = lr.reshape(()).to(self._row.device) if isinstance(lr, Tensor) else lr
            if weight_decay != 0:
                torch._foreach_mul_(parameters, 1 - lr * weight_decay * taken.double())
            if isinstance(lr, Tensor):
                torch._foreach_mul_(updates, lr)
                torch._foreach_sub_(parameters, updates)
            else:
                torch._foreach_add_(parameters, updates, alpha=-lr)

    # ---- the same on a GPU, in one launch each, where tensors are as they mostly are --------------------------------

    def _kernels(self) -> ModuleType | None:
        """The kernels that can make this step, asked for once in it."""
        if torch.compiler.is_compiling() or self._row.dtype != torch.float32:
            return None
        if any(parameter.grad is None for _, parameter in self.allotted):
            return None
        return gpu_kernels(self._row.device)

    def _gradients_here(self) -> list[Any]:
        if self._all_here:  # without a call for each: the host's time counts, too
            return [parameter.grad for _, parameter in self.allotted]
        return [self._gradient(index) for index in range(len(self.allotted))]

    def _values_here(self) -> list[Tensor]:
        if self._all_here:
            return [parameter for _, parameter in self.allotted]
        return [self._value(index) for index in range(len(self.allotted))]

    def _make_tables(self, kernels: ModuleType) -> None:
        if self._gradients is None:
            self._gradients = kernels.Addresses(self._layout.numels, self._row.device)
            self._values = kernels.Addresses(self._layout.numels, self._row.device)

    def prepare_for_graph(self) -> tuple[Any, ...] | None:
        """Bring the tables of addresses up to date, for a graph of this block's step that reads them.

        Returns:
            what such a graph depends on beside options and the contents of its tensors; None: there can be none.
        """
        kernels = self._kernels()
        if kernels is None or not self.sharding.alone or len({group["maximize"] for group, _ in self._by_group}) > 1:
            return None
        self._make_tables(kernels)
        parts: list[Any] = [self.window]  # itself, not its id, which another may get when it is gone
        for table, tensors in ((self._gradients, self._gradients_here()), (self._values, self._values_here())):
            table.fixed = True
            if table.of(tensors) is None:
                return None
            parts += [table, table.aligned, tensors[0].dtype]
        return tuple(parts)

    def release_from_graph(self) -> None:
        """No graph of ours reads the tables any more: one of the user's may, and its addresses must stay."""
        for table in (self._gradients, self._values):
            if table is not None:
                table.fixed = False

    def _gather_by_kernel(self, kernels: ModuleType, beta1: float, nesterov: bool) -> "Candidate | None":
        negate = {group["maximize"] for group, _ in self._by_group}
        if len(negate) > 1:
            return None
        self._make_tables(kernels)
        gradients = self._gradients_here()
        table = self._gradients.of(gradients)
        if table is None:
            return None
        momentum = self._momentum
        updated = torch.empty_like(self._row) if nesterov and momentum is not None else None
        kernels.gather(
            table,
            self._gradients,
            gradients[0].dtype,
            self._spans(),
            self._row,
            momentum=momentum,
            beta=beta1,
            updated=updated,
            negate=negate.pop(),
        )
        carry = None if momentum is None else (momentum, self._row if updated is None else updated)
        return Candidate(self._row, None, carry=carry)

    def _scatter_by_kernel(self, kernels: ModuleType, coefficients: Tensor, taken: Tensor) -> bool:
        self._make_tables(kernels)
        parameters = self._values_here()
        table = self._values.of(parameters)
        if table is None:
            return False
        weights = (self.window.decay * coefficients).view(-1, self.window.size)
        for group, indices in self._by_group:  # the tensors of a group are neighbours
            lr = group["lr"]
            kernels.update(
                self.window.rows,
                weights,
                table,
                self._values,
                parameters[0].dtype,
                self._spans(),
                (indices[0], indices[-1] + 1),
                separate=self.separate,
                lr=lr.reshape(()).to(self._row.device) if isinstance(lr, Tensor) else lr,
                weight_decay=group["weight_decay"],
                taken=taken,
            )
        increment_version(parameters)  # autograd has not seen them change
        return True

    def _spans(self) -> Spans:
        """The columns of each parameter."""
        return products.spans_of(self.window.rows, self._borders)


class Candidate:
    """A row on its way into the window, and the momentum that goes with it.

    Args:
        row: v, flat.
        active: bool, (B,), the matrices that have a gradient; None: all.
        carry: (momentum, its new value), flat, to be pushed with the row.
        momenta: the same for part of the parameters,
        updated: and their new values.
    """

    def __init__(
        self,
        row: Tensor,
        active: Tensor | None,
        *,
        carry: tuple[Tensor, Tensor] | None = None,
        momenta: Sequence[Tensor] = (),
        updated: Sequence[Tensor] = (),
    ) -> None:
        self.row = row
        self.active = active
        self.carry = carry
        self._momenta = momenta
        self._updated = updated
        self.gram_row: GramRow
        self.kernels: ModuleType | None = None
        """What can make the step on a GPU; None: plain torch."""

    def commit_momentum(self, taken: Tensor) -> None:
        """v ← its new value, where ``taken``, for what `carry` does not hold."""
        for momentum, updated in zip(self._momenta, self._updated, strict=True):
            torch.where(taken, updated, momentum, out=momentum)


def make_blocks(groups: list[Group], sharding: Sharding) -> list[list[Block]]:
    """The full matrices of an optimizer with these param groups: for each its blocks, one per device."""
    if groups[0]["scope"] == "parameter":
        together: dict[tuple[int, torch.device, bool], list[tuple[Group, Tensor]]] = {}
        for ((group, parameter),) in partition(groups):
            key = (id(group), parameter.device, parameter.dtype in _WIDE)
            together.setdefault(key, []).append((group, parameter))
        return [[Block(members, separate=True, sharding=sharding)] for members in together.values()]
    matrices = []
    for members in partition(groups):
        by_device: dict[torch.device, list[tuple[Group, Tensor]]] = {}
        for member in members:
            by_device.setdefault(_device(member[1]), []).append(member)
        matrices.append([Block(part, sharding=sharding) for part in by_device.values()])
    return matrices


def _owner(matrix: list[Tensor], state: State) -> Tensor:
    """The parameter that holds a matrix's own state, the first one for a matrix that is new."""
    owner = next((p for p in matrix if "gram" in state[p]), None)
    if owner is None and any("window" in state[p] for p in matrix):
        raise RuntimeError(
            "GGT: the state holds rows of a window but not its Gram matrix; load a complete state_dict, or clear "
            "optimizer.state to start with an empty window"
        )
    return matrix[0] if owner is None else owner


def _device(parameter: Tensor) -> torch.device:
    return parameter.device
