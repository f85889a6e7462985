"""The live state: blocks whose flat tensors hold what ``optimizer.state`` says.

``optimizer.state`` is the truth. What is kept there are views of the flat tensors of a block, so that torch's tools see
ordinary per-parameter state. When a view was replaced (loading, unpickling, offloading), when a parameter gets its
first gradient, or when param groups change, the flat tensors are made anew from the state. On several ranks one
exchange comes first, in which all ranks must agree.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from torch_ggt.distributed.agreement import Claim, digest
from torch_ggt.distributed.columns import Columns, Local, choose
from torch_ggt.formats import row_format
from torch_ggt.options import FIXED, OPTIONS, RANKS, check_agreement, check_changes, plain
from torch_ggt.parameters import Group, Member, State, check_dense, common_device, describe, warn
from torch_ggt.scopes import matrices
from torch_ggt.sinks import Gradients, Parameters
from torch_ggt.state.block import Block, hand_over
from torch_ggt.state.rows import integers_here
from torch_ggt.window import Window

__all__ = ["LiveState"]

_MENDED = (
    "torch_ggt: the rows of the window in optimizer.state were changed, and their Gram matrix was computed anew. If "
    "that was not you, load the last checkpoint."
)
_PART = (
    "torch_ggt: this optimizer was pickled by {theirs} and holds only the part of the window of that rank; this is "
    "{ours}. A process group cannot be pickled: make an optimizer with process_group=..., and load a state_dict()."
)


class LiveState:
    """The blocks of an optimizer.

    Args:
        process_group: the ranks over which the columns of plain parameters are split, or None.
        sink: where the steps go.
    """

    def __init__(self, process_group: Any = None, sink: Parameters | Gradients | None = None) -> None:  # noqa: ANN401
        self.process_group = process_group
        self.columns: Columns = Local()
        self.blocks: list[Block] = []
        self.part: tuple[int, int] | None = None
        """(rank, ranks) of the process that pickled this state; None: it was made here."""
        self._sink = sink
        self._made_for: list[tuple[int, ...]] = []
        self._seen: list[Group] = []
        self._spares: list[Block] = []
        self._agreed: tuple[list[Any], int] | None = None

    def ready(self, groups: list[Group], state: State) -> list[Block]:
        """The blocks that have a gradient, with flat tensors that hold what ``state`` says.

        Raises:
            ValueError, TypeError: an option was changed to nonsense, or ranks disagree.
            RuntimeError: a parameter cannot be stepped, or only some ranks have another set of gradients.
        """
        problem: Exception | None = None
        active: list[Block] = []
        current = True
        try:
            self.follow(groups)
            for block in self.blocks:
                has_gradient, holds_state = _look(block, state)
                if has_gradient:
                    active.append(block)
                    current = current and holds_state
        except Exception as error:
            if self.columns.alone or self._agreed is not None:
                raise
            problem, current = error, False  # the other ranks are about to exchange: they must hear of it
        if current and (self.columns.alone or (self._agreed and self._agreed[0] == _pattern(groups))):
            return active
        if self._agreed is not None:
            try:
                self.columns.changed(self._agreed[1], groups[0]["params"][0].device)
            except RuntimeError:  # the other ranks skip this step and count it, so that this one must, too
                self.count_skipped(torch.tensor(True, device="cpu"))
                raise
        self._renew(active, state, allot=True, problem=problem)
        renewed = [block for block in self.blocks if _look(block, state)[0]]
        if not self.columns.alone:
            self._agreed = _pattern(groups), sum(_sums_of(block) for block in renewed)
        return renewed

    def count_skipped(self, skipped: Tensor) -> None:
        """Count a step that was ``skipped``, in every matrix: with a gradient or without, all skip together."""
        for block in self.blocks:
            if block.allotted:
                block.skipped.add_(skipped.to(block.skipped.device))

    def attached(self, groups: list[Group], state: State) -> list[Block]:
        """The blocks that have a window, for tools that look inside; gives columns to nobody."""
        self.follow(groups)
        stale = [b for b in self.blocks if not _holds(b, state, len(_with_columns(b, state, allot=False)))]
        if stale:
            self._renew(stale, state, allot=False)
        return [block for block in self.blocks if block.allotted]

    def settle(self, groups: list[Group], state: State) -> None:
        """Divide anew what parameters have left, before a state is saved. On several ranks the next step does that."""
        gone = any(p not in state for block in self.blocks for p, _ in block.entries)
        left = gone or self._spares or _identities(groups) != self._made_for
        if self.blocks and left and self.columns_of(groups).alone:
            self.attached(groups, state)

    def adopt(self, groups: list[Group], state: State) -> None:
        """Make the blocks hold a state that was just loaded."""
        self._agreed, self._seen = None, []
        self.follow(groups)
        self._renew(self.blocks, state, allot=False, checked=True)

    def follow(self, groups: list[Group]) -> None:
        """Notice options that were changed, and parameters or param groups that were added or replaced."""
        made_for = []
        for group in groups:  # not by a function: this is in every step
            made_for.append((id(group), *map(id, group["params"])))
        if made_for != self._made_for:
            self._choose_columns(groups)
            self._check(groups, made_for)
            return
        changed = False
        for group, seen in zip(groups, self._seen, strict=True):
            if isinstance(group["lr"], Tensor):  # its number may have changed in place
                OPTIONS["lr"].check("lr", group["lr"])
            for name, value in seen.items():
                changed = changed or group[name] is not value
        if changed:
            self._check(groups, made_for)

    def made_with(self, groups: list[Group]) -> list[Group]:
        """These param groups with the fixed options that their state was made with: a live one may hold nonsense."""
        seen = [*self._seen, *groups[len(self._seen) :]]
        return [
            {**group, **{name: before[name] for name in FIXED}} for group, before in zip(groups, seen, strict=False)
        ]

    def columns_of(self, groups: list[Group]) -> Columns:
        """The columns of these groups, without a look at their state."""
        if _identities(groups) != self._made_for:
            self._choose_columns(groups)
        return self.columns

    def _choose_columns(self, groups: list[Group]) -> None:
        self.columns = choose(self.process_group, [p for group in groups for p in group["params"]])
        ours = self.columns.rank, self.columns.ranks
        if self.part not in (None, ours):
            theirs = "rank {} of {}".format(*self.part or ours)
            raise RuntimeError(_PART.format(theirs=theirs, ours="rank {} of {}".format(*ours)))

    def _check(self, groups: list[Group], made_for: list[tuple[int, ...]]) -> None:
        """Check what has changed, then divide the parameters anew if that is needed."""
        has_state = any(block.allotted for block in self.blocks)
        seen = [*self._seen, *({} for _ in groups[len(self._seen) :])]
        changed: set[str] = set()
        for group, before in zip(groups, seen, strict=False):
            changed |= check_changes(group, before, has_state=has_state)
        again = made_for != self._made_for or any(OPTIONS[name].fixed for name in changed)
        if again or any(OPTIONS[name].agree for name in changed):
            check_agreement(groups)
        if again:
            divided = self._divide(groups)
            self._spares += [block for block in self.blocks if block.allotted]
            self.blocks = divided
        self._seen = [{name: group[name] for name in OPTIONS} for group in groups]
        self._made_for = made_for

    def _divide(self, groups: list[Group]) -> list[Block]:
        """The full matrices as the scope divides them; those of one group, device and dtype make steps together."""
        together: dict[Any, list[list[Member]]] = {}
        for matrix in matrices(groups):
            first = matrix[0][0]
            key = (id(first), common_device(matrix), row_format(first["window_dtype"], [p for _, p in matrix]))
            together.setdefault(key, []).append(matrix)
        return [Block(batch, self.columns, self._sink) for batch in together.values()]

    def _renew(
        self,
        blocks: list[Block],
        state: State,
        *,
        allot: bool,
        problem: Exception | None = None,
        checked: bool = False,
    ) -> None:
        """Make blocks hold what ``state`` says. All ranks do so together, or none; a failure changes nothing.

        The Gram matrices are compared with the rows, unless they were ``checked``.
        """
        drafts: list[Block] = []
        hand_over([*self._spares, *self.blocks], [each for block in self.blocks for each in block.matrices], state)

        def claim() -> Claim:
            if problem is not None:
                raise problem
            for block in blocks:
                members = _with_columns(block, state, allot=allot)
                if not members:
                    drafts.append(Block(block.matrices, block.columns, block.sink))
                    continue
                rows = next((state[p]["window"] for _, p in members if "window" in state.get(p, {})), None)
                drafts.append(block.prepared(members, block.row_format(rows), [block, *self._spares]))
            return _claim(drafts, self.blocks, state)

        self.columns.agree(claim)
        for draft in drafts:
            if draft.allotted:
                divided = any(spare.shares(draft.allotted) for spare in self._spares)
                _fill(draft, state, checked=checked, divided=divided)
        for draft in drafts:  # only now: a failure above leaves the state as it was
            _publish(draft, state)
        renewed = {id(block): draft for block, draft in zip(blocks, drafts, strict=True)}
        self.blocks = [renewed.get(id(block), block) for block in self.blocks]
        waiting = [block.members for block in self.blocks if not block.allotted]
        self._spares = [spare for spare in self._spares if any(map(spare.shares, waiting))]


def _identities(groups: list[Group]) -> list[tuple[int, ...]]:
    return [(id(group), *map(id, group["params"])) for group in groups]


def _look(block: Block, state: State) -> tuple[bool, bool]:
    """(whether a parameter has a gradient, whether the flat tensors hold what the state says); checks the gradients."""
    wanted = gradients = 0
    for group, parameter in block.members:
        gradient = parameter.grad
        if gradient is not None:
            gradients += 1
            if gradient.is_sparse:
                check_dense(group, parameter)
        if gradient is not None or "window" in state.get(parameter, ()):
            wanted += 1
    if not gradients:
        return False, True
    if not _holds(block, state, wanted):
        return True, False
    device = block.row.device
    for (group, parameter), shape in zip(block.allotted, block.shapes, strict=True):
        if parameter.shape != shape:
            raise RuntimeError(
                f"torch_ggt: {describe(group, parameter)} had shape {tuple(shape)} when its state was made: its data "
                "were replaced. Make a new optimizer for the new parameters. Nothing was changed."
            )
        if parameter.device != device:
            raise RuntimeError(
                f"torch_ggt: {describe(group, parameter)} is on {parameter.device}, but its optimizer state is on "
                f"{device}. Move the model before the first step, or move both: save state_dict(), move the "
                "parameters, make a new optimizer and load it."
            )
    return True, True


def _holds(block: Block, state: State, wanted: int) -> bool:
    """Whether the flat tensors are for so many members, and the state still holds the views of them."""
    if wanted != len(block.allotted):
        return False
    for parameter, entry in block.entries:
        if state.get(parameter) is not entry:
            return False
    for entry, key, tensor in block.published:  # noqa: SIM110 - a generator takes longer, and this is in every step
        if entry.get(key) is not tensor:
            return False
    return True


def _with_columns(block: Block, state: State, *, allot: bool) -> list[Member]:
    """The members that have columns, and with ``allot`` those that have a gradient and none yet."""
    return [
        (group, parameter)
        for group, parameter in block.members
        if (allot and parameter.grad is not None) or "window" in state.get(parameter, {})
    ]


def _pattern(groups: list[Group]) -> list[tuple[bool, torch.dtype]]:
    """Which parameters have a gradient, and their dtypes: what ranks have agreed on."""
    return [(p.grad is not None, p.dtype) for group in groups for p in group["params"]]


def _sums_of(block: Block) -> int:
    """How many numbers the block adds to the all-reduce of a step."""
    return block.window.decay[..., 0].numel() * (block.window.size + 1)


def _claim(drafts: list[Block], blocks: list[Block], state: State) -> Claim:
    """What all ranks must agree on before any of them puts its new tensors in place."""
    options: list[Any] = []
    parameters: list[tuple[str, Tensor]] = []
    for draft in drafts:
        entries = [state[p] for _, p in draft.allotted if "gram" in state.get(p, {})]
        keys = draft.tensors_of_matrix(0) if draft.allotted else {}
        small = [entry[key] for entry in entries for key in keys if key in entry]
        for (_, parameter), of_finish in zip(draft.allotted, draft.small if draft.allotted else (), strict=True):
            small += [state[parameter][key] for key in of_finish if key in state.get(parameter, {})]
        groups = {id(group): group for group, _ in draft.members}.values()
        options.append(
            {
                **{name: draft.options[name] for name in RANKS},
                **{name: [plain(group[name]) for group in groups] for name in ("finish", "finish_beta", "split")},
                "window_dtype": str(draft.row_format()),
                "parameters": len(draft.allotted),
                "rows in the window": [int(entry["count"]) for entry in entries if "count" in entry],
                "digest of the state": digest(small),
            }
        )
        parameters += [(describe(group, parameter, shape=False), parameter) for group, parameter in draft.allotted]
    members = [member for block in blocks for member in block.members]
    gradients = [(describe(group, parameter, shape=False), parameter.grad is not None) for group, parameter in members]
    return Claim(options, parameters, gradients)


def _owner(matrix: list[Member], state: State) -> Tensor:
    """The parameter that holds the state of a matrix itself: the first one if the matrix is new."""
    owner = next((p for _, p in matrix if "gram" in state.get(p, {})), None)
    if owner is None and any("window" in state.get(p, {}) for _, p in matrix):
        raise RuntimeError(
            "torch_ggt: the state holds rows of a window but not its Gram matrix; load a complete state_dict, or clear "
            "optimizer.state to start with an empty window"
        )
    return matrix[0][1] if owner is None else owner


def _fill(block: Block, state: State, *, checked: bool, divided: bool) -> None:
    """Copy what the state says into the flat tensors; what it does not say is zero."""
    resumed = False
    for index, (_, parameter) in enumerate(block.allotted):
        entry = state.get(parameter, {})
        coded = integers_here(block, index, entry, functools.partial(_local, block, index))
        for key, view in block.tensors_of(index).items():
            stored = coded.get(key, entry.get(key))
            if stored is not None and key not in coded and key not in block.small[index]:
                stored = _local(block, index, stored)
            _copy(view, stored)
    for index, matrix in enumerate(block.allotted_matrices):
        entry = state.get(_owner(matrix, state), {})
        resumed = resumed or "gram" in entry
        for key, tensor in block.tensors_of_matrix(index).items():
            _copy(tensor, entry.get(key))
    weights = [block.columns.weight(p) for _, p in block.allotted]
    lengths = [right - left for left, right in zip(block.borders, block.borders[1:], strict=False)]
    for window in block.windows.values():
        window.weigh(list(zip(lengths, weights, strict=True)))
        # Integers of blocks that were cut otherwise are rounded anew, so that their Gram matrix is another one.
        if resumed and (window.format.coded or not checked) and _mended(window, block.columns):
            complete = all("window" in state.get(p, {}) for _, p in block.members)
            if complete and not (checked or divided):  # without some parameters it is another Gram matrix
                warn(_MENDED)


def _local(block: Block, index: int, stored: Tensor) -> Tensor:
    """The part of a stored tensor that is here: the live state has just that, a loaded one may have all of it."""
    view, piece = block.row_views[index], block.pieces[index]
    if type(stored) is Tensor and stored.shape[stored.dim() - view.dim() :] == view.shape:
        return stored
    return block.columns.restore(piece, stored)


def _copy(target: Tensor, source: Tensor | None) -> None:
    if source is None:
        target.zero_()
    elif source is not target:
        target.copy_(source)


def _mended(window: Window, columns: Columns) -> bool:
    """Compute K anew where it is not the Gram matrix of the rows, as when part of a state was lost; whether it was."""
    found = columns.total(window.squares())
    if torch.allclose(found, window.gram.diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=0.0):
        return False
    rows = [window.measure(window.row(slot)).products for slot in range(window.size)]
    products = columns.total(torch.stack(rows))
    for index, row in enumerate(products):
        window.gram[..., index, :].copy_(row)
    return True


def _publish(block: Block, state: State) -> None:
    """Put views of the flat tensors into the state."""
    owners = [_owner(matrix, state) for matrix in block.allotted_matrices] if block.allotted else []
    for index, (_, parameter) in enumerate(block.allotted):
        state[parameter].update(block.tensors_of(index))
    for index, owner in enumerate(owners):
        state[owner].update(block.tensors_of_matrix(index))
    block.entries = [(parameter, state[parameter]) for _, parameter in block.allotted]
    block.published = [
        (entry, key, entry[key]) for index, (_, entry) in enumerate(block.entries) for key in block.tensors_of(index)
    ]
    block.published += [
        (state[owner], key, state[owner][key])
        for index, owner in enumerate(owners)
        for key in block.tensors_of_matrix(index)
    ]
