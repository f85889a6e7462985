"""A saved optimizer: what a ``state_dict`` holds, how it is checked, and how it comes back unchanged.

``torch.optim.Optimizer.load_state_dict`` casts every state tensor to the dtype of its parameter, integers included. A
bfloat16 window, a float64 Gram matrix and int64 counters must come back as they were, so they travel past that cast in
a wrapper (`Carried`). The version of the format stands in every param group, which all tools of torch keep.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torch_ggt.distributed.agreement import Claim, digest
from torch_ggt.distributed.columns import Columns
from torch_ggt.distributed.pieces import is_dtensor, whole
from torch_ggt.options import FIXED, OPTIONS, check, check_agreement, plain, same
from torch_ggt.parameters import Group, describe
from torch_ggt.rules import RULES, Rule
from torch_ggt.scopes import matrices
from torch_ggt.state.block import MATRIX_KEYS, matrix_key, parameter_keys, small_shapes

__all__ = [
    "FORMAT_KEY",
    "FORMAT_VERSION",
    "PART_KEY",
    "carry",
    "check_loadable",
    "check_rows",
    "complete",
    "consolidated",
    "snapshot",
]

FORMAT_KEY = "ggt_format"
FORMAT_VERSION = 2
PART_KEY = "ggt_part"
"""Beside "state" and "param_groups": whose part a state_dict is. torch.save keeps it; torch.distributed.checkpoint,
which puts the parts together, drops it."""

_DAMAGED = (
    "GGT: the rows in this state are not those that its Gram matrix was made of: they were damaged or lost on their "
    "way. The state was refused, and the optimizer is as it was. Two ways that do this: broadcast_from_rank0 with "
    "tensors that are not contiguous (call .contiguous() on them, or load the state on every rank); and the file of "
    "one rank alone, which has its own part of a window (docs/distributed.md says how to save)."
)
_DEFAULTS = {name: option.default for name, option in OPTIONS.items()}
# Elements of a saved window that are widened to float64 at a time.
_BLOCK = 2**20


class Carried:
    """A tensor that `Optimizer.load_state_dict` does not recognize as one, and so leaves alone."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def carry(state_dict: dict[str, Any], groups: list[Group]) -> dict[str, Any]:
    """``state_dict`` with every state tensor wrapped, and the callables of ``groups`` in place of their names."""
    state = {
        index: {key: Carried(value) if isinstance(value, Tensor) else value for key, value in entry.items()}
        for index, entry in state_dict["state"].items()
    }
    saved_groups = [
        {**theirs, "finish": ours["finish"]} if callable(ours["finish"]) else theirs
        for theirs, ours in zip(state_dict["param_groups"], groups, strict=False)
    ]
    return {**state_dict, "state": state, "param_groups": [*saved_groups, *state_dict["param_groups"][len(groups) :]]}


def complete(state: dict[Any, dict[str, Any]], groups: list[Group]) -> None:
    """Take the wrappers off a state that torch has loaded, and give its param groups the options that it lacks."""
    for entry in state.values():
        for key, value in entry.items():
            if isinstance(value, Carried):
                entry[key] = value.tensor
    for group in groups:
        group[FORMAT_KEY] = FORMAT_VERSION
        for name, option in OPTIONS.items():
            group.setdefault(name, option.default)


# ---- saving --------------------------------------------------------------------------------------------------------


def snapshot(state_dict: dict[str, Any], groups: list[Group], columns: Columns) -> dict[str, Any]:
    """What torch has packed, consistent in all its parts.

    On a CPU, and where columns are split, everything is a copy. On one GPU everything refers to the live tensors, as
    the state_dict of every torch optimizer does. Where columns are split, the parts are DTensors.
    """
    tensors = [value for entry in state_dict["state"].values() for value in entry.values()]
    copies = not columns.alone or any(isinstance(t, Tensor) and t.device.type == "cpu" for t in tensors)
    state = {}
    for index, group, parameter in _numbered(state_dict["param_groups"], groups):
        entry = state_dict["state"].get(index)
        if entry is None:
            continue
        entry = {key: _copied(value) if copies else value for key, value in entry.items()}
        if not columns.alone:
            piece = columns.piece(parameter)
            entry |= {key: piece.present(entry[key]) for key in parameter_keys(group, parameter) if key in entry}
        state[index] = entry
    named = [{**group, "finish": plain(group["finish"])} for group in state_dict["param_groups"]]
    found = {**state_dict, "state": state, "param_groups": named}
    if not columns.alone and state:
        found[PART_KEY] = {"rank": columns.rank, "ranks": columns.ranks}
    return found


def consolidated(state_dict: dict[str, Any], *, keep: bool) -> dict[str, Any] | None:
    """The parts of all ranks put together, as plain tensors on the CPU; every rank must call this.

    Args:
        state_dict: what `snapshot` returned on this rank.
        keep: whether this rank wants the result; the others get None.
    """
    state: dict[Any, dict[str, Any]] = {}
    for index, entry in state_dict["state"].items():
        for key, value in entry.items():  # one at a time: memory holds one whole tensor beside the parts
            put_together = value.full_tensor() if is_dtensor(value) else value
            if keep:
                is_tensor = isinstance(put_together, Tensor)
                state.setdefault(index, {})[key] = put_together.cpu() if is_tensor else put_together
    return {"state": state, "param_groups": state_dict["param_groups"]} if keep else None


def _copied(value: Any) -> Any:  # noqa: ANN401 - a tensor, or what a user has put there
    # Contiguous, because torch's broadcast_from_rank0 with gloo sends the bytes of a view in another order than they
    # are received (torch 2.13).
    return value.detach().clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value


def _numbered(saved_groups: list[Group], groups: list[Group]) -> Iterator[tuple[Any, Group, Tensor]]:
    """(saved index, param group, parameter) for all parameters, in order."""
    for saved, group in zip(saved_groups, groups, strict=True):
        for index, parameter in zip(saved["params"], group["params"], strict=True):
            yield index, group, parameter


def _matrix_keys(rule: Rule) -> list[str]:
    """The keys of the state that one parameter of a matrix has."""
    of_windows = (matrix_key(name, key) for name in ("window", *rule.windows) for key in MATRIX_KEYS)
    return [*of_windows, *rule.numbers, "skipped"]


# ---- checking ------------------------------------------------------------------------------------------------------


def check_loadable(state_dict: dict[str, Any], groups: list[Group], columns: Columns) -> Claim:
    """Raise ValueError unless ``state_dict`` can continue in an optimizer with these param groups; nothing is touched.

    A different layout of groups is left to torch's own check.

    Returns:
        what ranks that load a state together must have in common.
    """
    saved_groups, saved = state_dict["param_groups"], state_dict["state"]
    if [len(g["params"]) for g in saved_groups] == [len(g["params"]) for g in groups]:
        for number, (theirs, ours) in enumerate(zip(saved_groups, groups, strict=True)):
            _check_group(theirs, ours, number)
        _check_part(state_dict, columns)
        completed = [
            {**_DEFAULTS, **theirs, "params": ours["params"], "finish": ours["finish"]}
            for theirs, ours in zip(saved_groups, groups, strict=True)
        ]
        for group in completed:
            check(group)
        check_agreement(completed)
        entries = _by_parameter(state_dict, groups)
        for index, group, parameter in _numbered(saved_groups, groups):
            _check_shapes(saved.get(index, {}), group, parameter, index)
        for matrix in matrices(groups):
            _check_complete([entries.get(p, {}) for _, p in matrix], RULES[matrix[0][0]["history"]])
    keys = {key for group in groups for key in _matrix_keys(RULES[group["history"]])}
    small = [e[key] for e in saved.values() for key in sorted(keys) if isinstance(e.get(key), Tensor)]
    counts = [int(entry["count"]) for entry in saved.values() if "count" in entry]
    numbers = {
        "parameters in the saved groups": [len(group["params"]) for group in saved_groups],
        "saved rows": counts,
        "digest of the state": digest(small),
    }
    members = [(group, parameter) for group in groups for parameter in group["params"]]
    return Claim(numbers, [(describe(group, p, shape=False), p) for group, p in members])


def check_rows(state_dict: dict[str, Any], groups: list[Group], columns: Columns) -> None:
    """Raise ValueError if rows and Gram matrix do not belong together; reads the tensors of ``state_dict`` alone."""
    entries = _by_parameter(state_dict, groups)
    for matrix in matrices(groups):
        found = [entries.get(p, {}) for _, p in matrix]
        if not all("window" in entry for entry in found):
            continue  # part of the state was lost, and its Gram matrix is computed anew
        gram = next(entry["gram"] for entry in found if "gram" in entry).cpu()
        squares = torch.zeros(gram.shape[0], dtype=torch.float64)
        for (_, parameter), entry in zip(matrix, found, strict=True):
            here = columns.restore(columns.piece(parameter), entry["window"])
            squares += columns.weight(parameter) * _squares(here).cpu()
        squares = columns.total(squares.to(matrix[0][1].device)).cpu()
        if not torch.allclose(squares, gram.diagonal(), rtol=1e-9, atol=0.0):
            raise ValueError(_DAMAGED)


def _by_parameter(state_dict: dict[str, Any], groups: list[Group]) -> dict[Tensor, dict[str, Any]]:
    numbered = _numbered(state_dict["param_groups"], groups)
    return {p: state_dict["state"][index] for index, _, p in numbered if index in state_dict["state"]}


def _squares(window: Tensor) -> Tensor:
    """The sum of squares of each row, float64; widened a block at a time."""
    rows = window.reshape(window.shape[0], -1)
    height = max(1, _BLOCK // max(1, rows.shape[1]))
    return torch.cat([part.double().square().sum(1) for part in torch.split(rows, height)])


def _check_group(saved: Group, live: Group, number: int) -> None:
    if FORMAT_KEY not in saved:
        raise ValueError(
            "GGT: this is not the state of a GGT optimizer (its param groups carry no "
            f"{FORMAT_KEY!r}); options found: {sorted(saved)}"
        )
    if saved[FORMAT_KEY] > FORMAT_VERSION:
        raise ValueError(
            f"GGT: this state has format {saved[FORMAT_KEY]}, and this version of torch-ggt reads up to "
            f"{FORMAT_VERSION}; upgrade torch-ggt"
        )
    for name in FIXED:
        theirs = saved.get(name, OPTIONS[name].default)
        if not same(name, theirs, live[name], live["params"]):
            raise ValueError(
                f"GGT: the saved state was made with {name}={theirs!r} and this optimizer has {name}={live[name]!r} "
                f"(param group {number}); make the optimizer with {name}={theirs!r} to continue it, or start afresh "
                "without loading"
            )


def _check_part(state_dict: dict[str, Any], columns: Columns) -> None:
    part = state_dict.get(PART_KEY)
    if part is None or (part["rank"], part["ranks"]) == (columns.rank, columns.ranks):
        return
    here = "this process has all columns" if columns.alone else f"this is rank {columns.rank} of {columns.ranks}"
    raise ValueError(
        f"GGT: this state is the part of rank {part['rank']} of {part['ranks']}, and {here}. Load the file of each "
        "rank on that rank of as many ranks. For a file that loads anywhere, call "
        "optimizer.consolidate_state_dict(to=0) on all ranks before state_dict() on rank 0, or save "
        "with torch.distributed.checkpoint."
    )


def _check_complete(entries: list[dict[str, Any]], rule: Rule) -> None:
    keys = _matrix_keys(rule)
    complete_ones = [entry for entry in entries if all(key in entry for key in keys)]
    if any("window" in entry for entry in entries) and len(complete_ones) != 1:
        raise ValueError(
            f"GGT: the saved state is incomplete: it holds rows of a window, but {len(complete_ones)} parameters hold "
            f"all of {', '.join(keys)}, and exactly one must"
        )


def _check_shapes(entry: dict[str, Any], group: Group, parameter: Tensor, index: Any) -> None:  # noqa: ANN401
    shape, size, rule = whole(parameter).shape, group["window"], RULES[group["history"]]
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(parameter_keys(group, parameter), shape)
    expected |= small_shapes(group, parameter)
    for name in ("window", *rule.windows):
        of_matrix = {"gram": (size, size), "decay": (size,), "momentum": (size,), "position": (), "count": ()}
        expected |= {name: (size, *shape)} | {matrix_key(name, key): value for key, value in of_matrix.items()}
    expected |= dict.fromkeys((*rule.numbers, "skipped"), ())
    for key, wanted in expected.items():
        if key not in entry:
            continue
        found = tuple(entry[key].shape) if isinstance(entry[key], Tensor) else entry[key]
        if found != wanted:
            raise ValueError(
                f"GGT: saved state of parameter {index}: {key!r} of shape {found}, but the parameter needs {wanted}: "
                "is this the state of another model?"
            )
