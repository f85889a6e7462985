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

A complex parameter appears as its real and imaginary parts, with a last dimension of 2.
"""

from collections.abc import MutableMapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from torch_ggt import products
from torch_ggt.flatten import Layout, as_real
from torch_ggt.kernels import gpu_kernels
from torch_ggt.kernels.spans import ALIGNMENT, Spans
from torch_ggt.memory import allocate_window
from torch_ggt.window import GramRow, Window

__all__ = ["WHOLE_BLOCK_KEYS", "Block", "Candidate", "Group", "State", "describe", "make_blocks", "partition"]

Group = dict[str, Any]
State = MutableMapping[Tensor, dict[str, Any]]

WHOLE_BLOCK_KEYS = ("gram", "decay", "momentum", "position", "count", "skipped")
_WIDE = (torch.float64, torch.complex128)


class Block:
    """The parameters that share one full matrix, or one window of many.

    Args:
        members: (param group, parameter) pairs, in order. Columns are allotted at a parameter's first gradient, so
            frozen parameters cost nothing.
        separate: every parameter has a matrix of its own; all must be of one param group.
    """

    def __init__(self, members: list[tuple[Group, Tensor]], *, separate: bool = False) -> None:
        self.members = members
        self.separate = separate
        self.options = members[0][0]
        """The param group that speaks for the whole block."""
        self.allotted: list[tuple[Group, Tensor]] = []
        self.window: Window
        self.skipped: Tensor
        self.rms_scale: Tensor
        """0.2·√(elements of the matrix), per matrix: the factor of adjust_lr_fn="match_rms_adamw"."""
        self._row: Tensor
        self._row_views: list[Tensor] = []
        self._momentum: Tensor | None = None
        self._momentum_views: list[Tensor] = []
        self._by_group: list[tuple[Group, list[int]]] = []
        self._published: dict[Tensor, dict[str, Tensor]] = {}
        self._layout: Layout
        self._patterns: dict[tuple[bool, ...], Tensor] = {}
        self._gradients: Any = None  # addresses on a GPU
        self._values: Any = None

    # ---- columns and state -----------------------------------------------------------------------------------------

    def has_gradient(self) -> bool:
        """Whether any parameter has a gradient to follow."""
        return any(parameter.grad is not None for _, parameter in self.members)

    def attach(self, state: State, *, allot: bool) -> bool:
        """Make the flat tensors hold what ``state`` says; False while no parameter has columns.

        Args:
            state: the optimizer's state.
            allot: give columns to parameters that have a gradient and none yet.
        """
        allotted = [
            (group, parameter)
            for group, parameter in self.members
            if (allot and parameter.grad is not None) or "window" in state.get(parameter, {})
        ]
        if allotted and not (len(allotted) == len(self.allotted) and self._is_intact(state)):
            self._rebuild(allotted, state)
        return bool(allotted)

    def _is_intact(self, state: State) -> bool:
        """Whether the state still holds the views that were put there."""
        for parameter, views in self._published.items():
            entry = state.get(parameter, {})
            for key, tensor in views.items():
                if entry.get(key) is not tensor:
                    return False
        return True

    def _rebuild(self, allotted: list[tuple[Group, Tensor]], state: State) -> None:
        parameters = [p for _, p in allotted]
        device = _common_device(parameters)
        layout = Layout(parameters, ALIGNMENT)
        matrices = [[p] for p in parameters] if self.separate else [parameters]
        owners = [_owner(matrix, state) for matrix in matrices]
        stored = [state[p]["window"] for p in parameters if "window" in state[p]]
        dtype = stored[0].dtype if stored else self._row_dtype()
        grams = [state[owner]["gram"] for owner in owners if owner is not None]
        size = grams[0].shape[0] if grams else self.options["window"]

        borders = layout.borders if self.separate else None
        window = allocate_window(size, layout.columns, dtype, device, borders)
        row = torch.zeros(layout.columns, dtype=torch.promote_types(dtype, torch.float32), device=device)
        momentum = torch.zeros_like(row) if self.options["history"] == "momentum" else None
        skipped = torch.zeros_like(window.count)
        numels = layout.numels if self.separate else layout.numel

        momentum_views = [] if momentum is None else layout.views(momentum)
        published = [
            *((p, "window", view) for p, view in zip(parameters, layout.views(window.rows), strict=True)),
            *((p, "momentum_buffer", view) for p, view in zip(parameters, momentum_views, strict=False)),
        ]
        for index, (matrix, owner) in enumerate(zip(matrices, owners, strict=True)):
            for key in WHOLE_BLOCK_KEYS:
                tensor = skipped if key == "skipped" else getattr(window, key)
                published.append(
                    (matrix[0] if owner is None else owner, key, tensor[index] if self.separate else tensor)
                )
        for parameter, key, tensor in published:
            if key in state[parameter]:
                tensor.copy_(state[parameter][key])
        if grams:
            window.mend_gram()
        for parameter, key, tensor in published:  # only now: a failure above leaves the state as it was
            state[parameter][key] = tensor
        self.allotted = allotted
        self.window, self.skipped = window, skipped
        self.rms_scale = 0.2 * torch.tensor(numels, dtype=torch.float64, device=device).sqrt()
        self._row, self._row_views = row, layout.views(row)
        self._momentum, self._momentum_views = momentum, momentum_views
        self._by_group = [
            (group, [i for i, member in enumerate(allotted) if member[0] is group])
            for group in {id(group): group for group, _ in allotted}.values()
        ]
        self._published = {p: {} for p in parameters}
        for parameter, key, tensor in published:
            self._published[parameter][key] = tensor
        self._layout, self._patterns, self._gradients, self._values = layout, {}, None, None

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
            if type(parameter) is not Parameter and hasattr(parameter, "device_mesh"):
                raise RuntimeError(f"GGT: {describe(group, parameter)} is a DTensor; sharding is not supported yet")
            if parameter.device != device:
                raise RuntimeError(
                    f"GGT: {describe(group, parameter)} is on {parameter.device}, but its optimizer state is on "
                    f"{device}. Move the model before the first step, or move both: save state_dict(), move the "
                    "parameters, make a new optimizer and load it."
                )
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise RuntimeError(
                    f"GGT does not support sparse gradients, and {describe(group, parameter)} has one. Use "
                    "sparse=False in the embedding, or give that parameter to torch.optim.SparseAdam."
                )

    # ---- one step --------------------------------------------------------------------------------------------------

    def gather(self, *, beta1: float, nesterov: bool) -> "Candidate":
        """Flatten the gradients and add momentum: the row that would enter the window. Writes no state."""
        by_kernel = self._gather_by_kernel(beta1, nesterov)
        if by_kernel is not None:
            return by_kernel
        targets, gradients, momenta, negated = [], [], [], []
        for index, (group, parameter) in enumerate(self.allotted):
            if parameter.grad is None:
                continue
            targets.append(self._row_views[index])
            gradients.append(as_real(parameter.grad))
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

    def _have_gradients(self) -> Tensor:
        """Which matrices have a gradient, on the device; copied once for every pattern, and nothing waits for it."""
        pattern = tuple(parameter.grad is not None for _, parameter in self.allotted)
        if torch.compiler.is_compiling():
            return torch.tensor(pattern, device=self._row.device)
        if pattern not in self._patterns:
            flags = torch.tensor(pattern, pin_memory=self._row.is_cuda)
            self._patterns[pattern] = flags.to(self._row.device, non_blocking=True)
        return self._patterns[pattern]

    def scatter(self, coefficients: Tensor, taken: Tensor) -> None:
        """p ← (1 - lr·weight_decay) p - lr·G c for every parameter with a gradient; unchanged where not ``taken``."""
        if self._scatter_by_kernel(coefficients, taken):
            return
        self.window.expand(coefficients, out=self._row)
        for group, indices in self._by_group:
            chosen = [i for i in indices if self.allotted[i][1].grad is not None]
            if not chosen:
                continue
            parameters, updates = [as_real(self.allotted[i][1]) for i in chosen], [self._row_views[i] for i in chosen]
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
        if torch.compiler.is_compiling() or self._row.dtype != torch.float32:
            return None
        if any(parameter.grad is None for _, parameter in self.allotted):
            return None
        return gpu_kernels(self._row.device)

    def _gather_by_kernel(self, beta1: float, nesterov: bool) -> "Candidate | None":
        kernels = self._kernels()
        negate = {group["maximize"] for group, _ in self.allotted}
        if kernels is None or len(negate) > 1:
            return None
        if self._gradients is None:
            self._gradients = kernels.Addresses(self._layout.numels, self._row.device)
        gradients = [as_real(parameter.grad) for _, parameter in self.allotted if parameter.grad is not None]
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

    def _scatter_by_kernel(self, coefficients: Tensor, taken: Tensor) -> bool:
        kernels = self._kernels()
        if kernels is None:
            return False
        if self._values is None:
            self._values = kernels.Addresses(self._layout.numels, self._row.device)
        parameters = [as_real(parameter) for _, parameter in self.allotted]
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
        return products.spans_of(self.window.rows, self._layout.borders)


def partition(groups: list[Group]) -> list[list[tuple[Group, Any]]]:
    """The (param group, parameter) pairs of each full matrix; of saved groups, the pairs with saved indices."""
    by_group = [[(group, p) for p in group["params"]] for group in groups]
    members = [member for part in by_group for member in part]
    parts = {"model": [members], "group": by_group, "parameter": [[member] for member in members]}
    return [part for part in parts[groups[0]["scope"]] if part]


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

    def commit_momentum(self, taken: Tensor) -> None:
        """v ← its new value, where ``taken``, for what `carry` does not hold."""
        for momentum, updated in zip(self._momenta, self._updated, strict=True):
            torch.where(taken, updated, momentum, out=momentum)


def make_blocks(groups: list[Group]) -> list[Block]:
    """The blocks of an optimizer with these param groups."""
    if groups[0]["scope"] != "parameter":
        return [Block(members) for members in partition(groups)]
    together: dict[tuple[int, torch.device, bool], list[tuple[Group, Tensor]]] = {}
    for ((group, parameter),) in partition(groups):
        key = (id(group), parameter.device, parameter.dtype in _WIDE)
        together.setdefault(key, []).append((group, parameter))
    return [Block(members, separate=True) for members in together.values()]


def describe(group: Group, parameter: Tensor) -> str:
    """A parameter in words: by name if the optimizer was given names, else by its place in its group."""
    index = next(i for i, p in enumerate(group["params"]) if p is parameter)
    shape = tuple(parameter.shape)
    if "param_names" in group:
        return f"parameter {group['param_names'][index]!r} of shape {shape}"
    return f"parameter {index} of its group, of shape {shape},"


def _owner(matrix: list[Tensor], state: State) -> Tensor | None:
    """The parameter that holds a matrix's own state, None for a matrix that is new."""
    owner = next((p for p in matrix if "gram" in state[p]), None)
    if owner is None and any("window" in state[p] for p in matrix):
        raise RuntimeError(
            "GGT: the state holds rows of a window but not its Gram matrix; load a complete state_dict, or clear "
            "optimizer.state to start with an empty window"
        )
    return owner


def _common_device(parameters: list[Tensor]) -> torch.device:
    devices = list(dict.fromkeys(p.device for p in parameters))
    if len(devices) > 1:
        raise ValueError(
            f"GGT: one full matrix over several devices ({', '.join(map(str, devices))}) is not supported yet. Use "
            "scope='parameter', or one param group per device with scope='group'."
        )
    if devices[0].type == "meta":
        raise RuntimeError(
            "GGT: parameters are on the meta device and have no values to step; materialize the model first, "
            "e.g. model.to_empty(device=...)"
        )
    if devices[0].type == "mps":
        raise RuntimeError("GGT: the Gram matrix is float64, which the mps device does not have; use the CPU")
    return devices[0]
