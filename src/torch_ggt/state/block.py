"""A block: full matrices that make their steps together, and the flat tensors with which they do.

The matrices of one block share one flat window, each over columns of its own. Columns are given to a parameter at its
first gradient, so that frozen parameters cost nothing.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ggt.backends.plain import TorchBackend
from torch_ggt.distributed.columns import Columns
from torch_ggt.distributed.pieces import Piece, whole
from torch_ggt.finish import Finish, resolve
from torch_ggt.formats import Format, format_of, row_format
from torch_ggt.layout import ALIGNMENT, Layout
from torch_ggt.memory import allocate_window, lends_row
from torch_ggt.parameters import Group, Member, State, common_device, describe
from torch_ggt.rules import RULES
from torch_ggt.sinks import Gradients, Parameters
from torch_ggt.window import Window

__all__ = [
    "MATRIX_KEYS",
    "Block",
    "finish_of",
    "hand_over",
    "matrix_key",
    "nonfinite_message",
    "parameter_keys",
    "small_shapes",
]

MATRIX_KEYS = ("gram", "decay", "momentum", "position", "count")
"""What a window keeps for each matrix; ``skipped`` is kept beside them."""


def matrix_key(window: str, key: str) -> str:
    """Under which key the state of a matrix is saved: the first window has plain names, a second one its own."""
    return key if window == "window" else f"{window}_{key}"


def finish_of(group: Group, parameter: Tensor) -> Finish | None:
    """How the step of a parameter is finished; None: it is applied as it is."""
    finish = resolve(group["finish"])
    return None if finish is None else finish.of(whole(parameter).shape)


def parameter_keys(group: Group, parameter: Tensor) -> list[str]:
    """The keys of the state that a parameter has, of tensors that are split over ranks as the parameter is."""
    rule, finish = RULES[group["history"]], finish_of(group, parameter)
    return ["window", *rule.windows, *rule.buffers, *(() if finish is None else finish.buffers_of(group))]


def small_shapes(group: Group, parameter: Tensor) -> dict[str, tuple[int, ...]]:
    """The shapes of the small tensors that a finish remembers for a parameter, by key; alike on all ranks."""
    finish = finish_of(group, parameter)
    return {} if finish is None else finish.small(whole(parameter).shape)


class Block:
    """Full matrices that make their steps together.

    Args:
        matrices: the members of each, all of one device and with the options of one param group.
        columns: which of their columns are on this rank.
        sink: where their steps go.

    Attributes:
        options: the param group that speaks for all of them.
        allotted: the members that have columns, in the order of the columns.
        runs: (param group, first, last + 1): neighbours in ``allotted`` that belong to one group.
        window: the flat window; ``windows`` holds it and those that the rule asks for besides.
        row: flat, what enters the window, then the step; ``row_views`` are its parts, one for each parameter.
        buffers: by name, a flat tensor and its parts; None for a parameter that needs no such buffer.
        small: by name, the small tensors of each parameter; see `small_shapes`.
        finishing: (param group, its finish, the places of its parameters in ``allotted``), without those of "none".
        numbers: by name, what the rule remembers of each matrix beside its windows: float64, shape of ``window.count``.
        rms_scale: 0.2·√(elements of the matrix): the factor of adjust_lr_fn="match_rms_adamw".
        sums, newest, carry, pending, active, complete: of the step that is under way; see `backends.plain`.
        how: of the step that is under way, the jitter, solver and tolerance of its r × r functions.
        longest: the length that the step under way may have at most, where rounding could make it longer; else None.
        kept: κ of the step under way, for rows of integers; see `Window.keep_whole_row`.
    """

    def __init__(
        self, matrices: list[list[Member]], columns: Columns, sink: Parameters | Gradients | None = None
    ) -> None:
        self.matrices = matrices
        self.members = [member for matrix in matrices for member in matrix]
        self.columns = columns
        self.sink = Parameters() if sink is None else sink
        self.options = self.members[0][0]
        self.rule = RULES[self.options["history"]]
        finished = [group["finish"] != "none" for group, _ in self.members]
        self.finishes, self.all_finish = any(finished), all(finished)
        self.finishing: list[tuple[Group, Finish, list[int]]] = []
        self.allotted: list[Member] = []
        self.entries: list[tuple[Tensor, dict[str, Any]]] = []
        """(parameter, its dictionary in the state), as it was when this block was attached."""
        self.published: list[tuple[dict[str, Any], str, Tensor]] = []
        """(dictionary, key, tensor): what this block has put into the state."""
        self.sums: Tensor
        self.newest: Tensor
        self.carry: tuple[Tensor, Tensor] | None = None
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.active: Tensor | None = None
        self.complete = True
        self.how: dict[str, Any] = {}
        self.longest: Tensor | None = None
        self.kept: Tensor | None = None

    def shares(self, members: list[Member]) -> bool:
        """Whether one of these parameters has columns here."""
        return not {id(p) for _, p in members}.isdisjoint(id(p) for _, p in self.allotted)

    # ---- making ----------------------------------------------------------------------------------------------------

    def prepared(self, allotted: list[Member], stored: Format, spares: "Sequence[Block]") -> "Block":
        """A block like this one with flat tensors for ``allotted``: new ones, or those of a spare block that fit.

        Args:
            allotted: the members that get columns.
            stored: the format of the rows.
            spares: blocks that are no longer needed. With their tensors, a state loads where memory holds one window.
        """
        made = Block(self.matrices, self.columns, self.sink)
        made.allotted = allotted
        parameters = [p for _, p in allotted]
        device = common_device(allotted)
        made.pieces = [self.columns.piece(p) for p in parameters]
        layout = Layout([piece.local(p) for p, piece in zip(parameters, made.pieces, strict=True)], ALIGNMENT)
        made._arrange(layout)
        size = self.options["window"]
        spare = next((block for block in spares if block._fits(made, size, stored, device)), None)
        if spare is not None:
            made.windows, made.row, made.skipped = spare.windows, spare.row, spare.skipped
            made.buffers, made.small, made.numbers = spare.buffers, spare.small, spare.numbers
        else:
            made.windows = {
                name: allocate_window(size, layout.columns, stored.name, device, made.matrix_borders)
                for name in ("window", *self.rule.windows)
            }
            made.row = torch.zeros(layout.columns, dtype=stored.wide, device=device)
            made.buffers = {name: made._buffer(name) for name in made._buffer_names()}
            made.small = [
                {
                    key: torch.zeros(shape, dtype=torch.float32 if key == "step" else made.row.dtype, device=device)
                    for key, shape in small_shapes(*member).items()
                }
                for member in allotted
            ]
            made.skipped = torch.zeros_like(made.windows["window"].count)
            made.numbers = {name: torch.zeros_like(made.skipped, dtype=torch.float64) for name in self.rule.numbers}
        made.window = made.windows["window"]
        made.backend = made.window.backend
        made.descends = made.backend.descend is not None and not self.finishes and self.rule.follow is None
        made.take_row()  # a spare one may have no memory, of which no view can be made
        made.row.zero_()  # so are the columns between parameters, which nobody writes later
        made.row_views = layout.views(made.row)
        made.lends_row = lends_row(stored, self.sink)
        if made.lends_row:
            made.give_row_back()
        made.window_views = {}
        for name, window in made.windows.items():
            made.window_views |= window.format.views(window.store, layout, name)
        numels = [sum(whole(p).numel for _, p in matrix) for matrix in made.allotted_matrices]
        scales = 0.2 * torch.tensor(numels, dtype=torch.float64, device=device).sqrt()
        made.rms_scale = scales[:, None] if made.batched else scales[0]
        owners = [index for index, matrix in enumerate(made.allotted_matrices) for _ in matrix]
        made.matrix_of = torch.tensor(owners, dtype=torch.int32, device=device) if made.batched else None
        return made

    def _arrange(self, layout: Layout) -> None:
        """What follows from ``allotted`` and the columns of each parameter."""
        chosen = {id(p) for _, p in self.allotted}
        self.allotted_matrices = [[m for m in matrix if id(m[1]) in chosen] for matrix in self.matrices]
        self.allotted_matrices = [matrix for matrix in self.allotted_matrices if matrix]
        self.batched = len(self.matrices) > 1
        self.borders, self.numels = tuple(layout.borders), layout.numels
        firsts = itertools.accumulate((len(matrix) for matrix in self.allotted_matrices), initial=0)
        self.matrix_borders = tuple(layout.borders[first] for first in firsts) if self.batched else None
        self.runs = []
        for _, run in itertools.groupby(enumerate(self.allotted), lambda item: id(item[1][0])):
            members = list(run)
            self.runs.append((members[0][1][0], members[0][0], members[-1][0] + 1))
        self.parameters = [p for _, p in self.allotted]
        self.shapes = [p.shape for p in self.parameters]
        finishes = {id(group): resolve(group["finish"]) for group, _ in self.allotted}
        together: dict[Any, tuple[Group, Finish, list[int]]] = {}
        for place, (group, parameter) in enumerate(self.allotted):
            finish = finishes[id(group)]
            if finish is not None:
                finish = finish.of(whole(parameter).shape)
                together.setdefault((id(group), id(finish)), (group, finish, []))[2].append(place)
        self.finishing = list(together.values())
        self.all_here = self.columns.alone and not any(p.is_complex() for _, p in self.allotted)
        self.addresses: dict[str, Any] = {}
        self._missing: tuple[tuple[bool, ...], Tensor] | None = None
        self._kept: list[Tensor] = []

    def _fits(self, made: "Block", size: int, stored: Format, device: torch.device) -> bool:
        """Whether the flat tensors of this block are those that ``made`` needs."""
        return bool(
            self.allotted
            and [id(p) for _, p in self.allotted] == [id(p) for _, p in made.allotted]
            and self.borders == made.borders
            and self.matrix_borders == made.matrix_borders
            and (self.window.size, self.window.format, self.row.device) == (size, stored, device)
            and list(self.windows) == ["window", *made.rule.windows]
            and list(self.buffers) == made._buffer_names()
            and tuple(self.numbers) == made.rule.numbers
        )

    def _buffer_names(self) -> list[str]:
        keys = dict.fromkeys(key for member in self.members for key in parameter_keys(*member))
        return [key for key in keys if key not in ("window", *self.rule.windows)]

    def _buffer(self, name: str) -> tuple[Tensor, list[Any]]:
        """A flat tensor of zeros for the parameters that need it, and its parts."""
        needed = [name in parameter_keys(*member) for member in self.allotted]
        locals_ = [piece.local(p) for p, piece in zip(self.parameters, self.pieces, strict=True)]
        layout = Layout([part for part, need in zip(locals_, needed, strict=True) if need], ALIGNMENT)
        flat = torch.zeros(layout.columns, dtype=self.row.dtype, device=self.row.device)
        views = iter(layout.views(flat))
        return flat, [next(views) if need else None for need in needed]

    def row_format(self, rows: Tensor | None = None) -> Format:
        """The format of the rows that the options ask for; where they leave it open, the format of ``rows``."""
        if rows is not None and self.options["window_dtype"] is None:
            return format_of(rows.dtype)
        return row_format(self.options["window_dtype"], [p for _, p in self.members])

    def tensors_of(self, index: int) -> dict[str, Tensor]:
        """What belongs to the parameter ``allotted[index]``, by the key under which it is saved: views."""
        views = self.window_views | {name: parts for name, (_, parts) in self.buffers.items()}
        keys = dict.fromkeys((*self.window_views, *parameter_keys(*self.allotted[index])))
        return {key: views[key][index] for key in keys} | self.small[index]

    def tensors_of_matrix(self, index: int) -> dict[str, Tensor]:
        """What belongs to one of ``allotted_matrices``, by the key under which it is saved: views."""
        found = {
            matrix_key(name, key): getattr(window, key) for name, window in self.windows.items() for key in MATRIX_KEYS
        }
        found |= {**self.numbers, "skipped": self.skipped}
        return {key: tensor[index] for key, tensor in found.items()} if self.batched else found

    def take_row(self) -> None:
        """Ask for the memory of ``row``, for one step. It has no numbers until gradients are gathered in it."""
        self.row.untyped_storage().resize_(self.row.numel() * self.row.itemsize)

    def give_row_back(self) -> None:
        """Free the memory of ``row``. The tensor and its views stay what they are, without numbers."""
        self.row.untyped_storage().resize_(0)

    # ---- one step --------------------------------------------------------------------------------------------------

    def gradients(self) -> Sequence[Tensor | None]:
        """The part of each gradient that is here, as real numbers; None where a parameter has none."""
        if self.all_here:  # without a call for each: the time of the host counts, too
            return [p.grad for p in self.parameters]
        return [
            None if p.grad is None else self.columns.gradient(p, piece)
            for p, piece in zip(self.parameters, self.pieces, strict=True)
        ]

    def values(self) -> list[Tensor]:
        """The part of each parameter that is here, as real numbers: views."""
        return [piece.local(p) for p, piece in zip(self.parameters, self.pieces, strict=True)]

    def targets(self) -> tuple[str, Sequence[Tensor | None]]:
        """What the sink writes into, as real numbers, and the name of its table of addresses."""
        if isinstance(self.sink, Gradients):
            return "gradients", self.gradients()
        return "values", self.parameters if self.all_here else self.values()

    def note_missing(self) -> None:
        """Set ``active``: which matrices have a gradient, on the device. One matrix alone is always active."""
        if not self.batched:
            return
        pattern = tuple([any(p.grad is not None for _, p in matrix) for matrix in self.allotted_matrices])
        if self._missing is None or self._missing[0] != pattern:
            flags = torch.tensor(pattern, device="cpu", pin_memory=self.row.is_cuda)
            self._missing = pattern, flags.to(self.row.device, non_blocking=True)
        self.active = self._missing[1]
        if self.row.is_cuda and torch.cuda.is_current_stream_capturing():
            self._kept.append(self.active)  # the graph will read it for as long as it lives

    def zero_missing(self) -> None:
        """Make ``row`` zero in the columns of parameters without a gradient."""
        for view, parameter in zip(self.row_views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()

    def nonfinite_gradient(self) -> Member | None:
        """The first member of which a gradient that is here is not finite; waits for the device."""
        for member, gradient in zip(self.allotted, self.gradients(), strict=True):
            if gradient is not None and not bool(gradient.isfinite().all()):
                return member
        return None

    # What `prepared` makes.
    windows: dict[str, Window]
    window: Window
    backend: TorchBackend
    window_views: dict[str, list[Tensor]]
    row: Tensor
    lends_row: bool
    """Whether the memory of ``row`` is freed after each step; see `memory.lends_row`."""
    row_views: list[Tensor]
    buffers: dict[str, tuple[Tensor, list[Any]]]
    small: list[dict[str, Tensor]]
    numbers: dict[str, Tensor]
    skipped: Tensor
    rms_scale: Tensor
    descends: bool
    """Whether the step may be made and applied in one pass."""
    matrix_of: Tensor | None
    matrix_borders: tuple[int, ...] | None
    pieces: list[Piece]
    runs: list[tuple[dict[str, Any], int, int]]
    allotted_matrices: list[list[Member]]


def hand_over(blocks: list[Block], divided: list[list[Member]], state: State) -> None:
    """Give what a matrix has once to the first parameter that still has its rows, if its holder is gone.

    The holder is gone if it is no longer in the matrix of that parameter, or if its state was cleared.

    Args:
        blocks: those whose tensors the state holds.
        divided: the matrices as the scope divides the parameters now.
        state: the state.
    """
    key = MATRIX_KEYS[0]
    for block in blocks:
        entries = {id(p): entry for p, entry in block.entries}
        holding = {id(entry) for entry, each, _ in block.published if each == key}
        for index, old in enumerate(block.allotted_matrices if block.allotted else ()):
            mine = [p for _, p in old if id(p) in entries and state.get(p) is entries[id(p)]]
            holders = {id(p) for p in mine if id(entries[id(p)]) in holding}
            for matrix in divided:
                inside = {id(p) for _, p in matrix}
                heir = next((p for p in mine if id(p) in inside - holders), None)
                if heir is not None and not (holders & inside or any(key in state.get(p, {}) for _, p in matrix)):
                    state[heir].update(block.tensors_of_matrix(index))


def nonfinite_message(blocks: list[Block]) -> str:
    """Why a step cannot be taken, with the name of the parameter if it is on this rank."""
    for block in blocks:
        offender = block.nonfinite_gradient()
        if offender is not None:
            return (
                f"torch_ggt: the gradient of {describe(*offender)} is not finite. Nothing was changed. "
                "nonfinite='skip' skips and counts such steps."
            )
    if not blocks[0].columns.alone:
        return (
            "torch_ggt: a gradient is not finite on another rank, which names it; or another rank has gradients for "
            "other parameters than before; or a sum of squares overflows float64. Nothing was changed."
        )
    return (
        "torch_ggt: every gradient is finite, but the row overflows the window's dtype or its square overflows "
        "float64. Nothing was changed; scale the loss down."
    )
