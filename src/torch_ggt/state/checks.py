"""What is looked at before a saved state is loaded: everything, and before anything is touched.

`check_loadable` looks at the form, the options, and all small tensors. `check_rows` reads the windows and buffers once:
each Gram matrix K must satisfy zᵀ K z = ‖Wᵀ z‖² for a few vectors z, buffers must be finite, and every element must
have the sum that was saved with it (`sums`). Both leave the optimizer and the saved state alone.
"""

import zlib
from collections.abc import Iterator
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from torch_ggt.distributed.agreement import Claim, digest
from torch_ggt.distributed.columns import Columns
from torch_ggt.distributed.pieces import whole
from torch_ggt.formats import Format, row_format
from torch_ggt.options import FIXED, OPTIONS, check, check_agreement, plain, same
from torch_ggt.parameters import Group, Member, describe, warn
from torch_ggt.rules import RULES, Rule
from torch_ggt.scopes import matrices
from torch_ggt.state.block import MATRIX_KEYS, matrix_key, parameter_keys, small_shapes
from torch_ggt.state.probe import Probe
from torch_ggt.state.rows import Forms, expected_rows, numbers_of
from torch_ggt.state.sums import SUMS_KEY, salt_of, sums_of

__all__ = [
    "FORMAT_KEY",
    "FORMAT_VERSION",
    "OPTIONS_KEY",
    "PART_KEY",
    "check_form",
    "check_loadable",
    "check_rows",
    "digest_of_options",
    "numbered",
    "sums",
]

FORMAT_KEY = "ggt_format"
FORMAT_VERSION = 4
_WITH_SUMS = 4  # the first format with these sums; format 3, which no release wrote, had others
OPTIONS_KEY = "ggt_options"
"""In each saved param group: a digest of its options, so that an edit of the file is not silent."""
PART_KEY = "ggt_part"
"""Beside "state" and "param_groups": whose part a state_dict is. torch.save keeps it; torch.distributed.checkpoint,
which puts the parts together, drops it."""

_AS_IT_WAS = "The state was refused, and the optimizer is as it was."
_DAMAGED = (
    "torch_ggt: the rows in this state are not those that its Gram matrix was made of: they were damaged or lost on "
    f"their way. {_AS_IT_WAS} Two ways that do this: broadcast_from_rank0 with "
    "tensors that are not contiguous (call .contiguous() on them, or load the state on every rank); and the file of "
    "one rank alone, which has its own part of a window (docs/distributed.md says how to save)."
)
_WITHOUT_SUMS = (
    "torch_ggt: this state has format {}, which has no sums of its elements, or sums of another kind. Windows that "
    "were swapped between parameters, and momentum that was changed, are not noticed. Every other check is made. A "
    "state that is saved now has sums."
)
_EDITED = (
    "torch_ggt: the options of saved param group {} are not those that it was saved with: they were edited, or the "
    "file was "
    "damaged. They are loaded as they are: {}."
)
_DEFAULTS = {name: option.default for name, option in OPTIONS.items()}


def numbered(saved_groups: list[Group], groups: list[Group]) -> Iterator[tuple[Any, Group, Tensor]]:
    """(saved index, param group, parameter) for all parameters, in order."""
    for saved, group in zip(saved_groups, groups, strict=True):
        for index, parameter in zip(saved["params"], group["params"], strict=True):
            yield index, group, parameter


# ---- the form ------------------------------------------------------------------------------------------------------


def check_form(state_dict: Any) -> None:  # noqa: ANN401 - anything that a file can hold
    """Raise ValueError unless this is a dictionary of states and param groups, with nothing in it twice or astray."""
    found = state_dict if isinstance(state_dict, dict) else {}
    state, groups = found.get("state"), found.get("param_groups")
    if not isinstance(state, dict) or not isinstance(groups, list):
        raise ValueError(
            "torch_ggt: a state_dict must hold a dict 'state' and a list 'param_groups', got "
            f"{type(state).__name__} and {type(groups).__name__}: is this what optimizer.state_dict() returned?"
        )
    for number, group in enumerate(groups):
        if not isinstance(group, dict) or not isinstance(group.get("params"), list):
            raise ValueError(f"torch_ggt: saved param group {number} is no dict with a list 'params': {_short(group)}")
    indices = [index for group in groups for index in group["params"]]
    for index, entry in state.items():
        if not isinstance(entry, dict):
            raise ValueError(f"torch_ggt: saved state of parameter {index!r} is not a dict: {_short(entry)}")
    astray = [index for index in state if index not in indices]
    if astray or len(set(indices)) < len(indices):
        raise ValueError(
            f"torch_ggt: the saved param groups name the parameters {indices}, each of which must appear once; the "
            f"saved state belongs to {list(state)}, of which the groups do not name {astray}. The file is damaged."
        )


def _short(value: Any) -> str:  # noqa: ANN401 - anything that a file can hold
    return f"{type(value).__name__} {value!r}"[:80]


def check_loadable(state_dict: dict[str, Any], groups: list[Group], columns: Columns) -> Claim:
    """Raise ValueError unless ``state_dict`` can continue in an optimizer with these param groups; nothing is touched.

    A different layout of groups is left to torch's own check.

    Returns:
        what ranks that load a state together must have in common.
    """
    check_form(state_dict)
    saved_groups, saved = state_dict["param_groups"], state_dict["state"]
    layout = {"parameters in the saved groups": [len(group["params"]) for group in saved_groups]}
    members = [(group, parameter) for group in groups for parameter in group["params"]]
    parameters = [(describe(group, p, shape=False), p) for group, p in members]
    if not same_layout(state_dict, groups):
        return Claim(layout, parameters)
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
    for number, group in enumerate(saved_groups):
        if OPTIONS_KEY in group and group[OPTIONS_KEY] != digest_of_options(group):
            options = ", ".join(f"{name}={group[name]!r}" for name in OPTIONS if name in group)
            warn(_EDITED.format(number, options))
    small: list[Tensor] = []
    counts = []
    for matrix, indices in _matrices(state_dict, groups):
        stored = _row_format_of(matrix, [saved.get(index, {}).get("window") for index in indices])
        for index, member in zip(indices, matrix, strict=True):
            small += _check_entry(saved.get(index, {}), member, stored, index)
        counts += _check_matrix([saved.get(index, {}) for index in indices], RULES[matrix[0][0]["history"]])
    _check_sums(saved_groups, [entry for entry in saved.values() if "window" in entry])
    return Claim({**layout, "saved rows": counts, "digest of the state": digest(small)}, parameters)


def same_layout(state_dict: dict[str, Any], groups: list[Group]) -> bool:
    """Whether the saved param groups have as many parameters as ``groups``; torch refuses all others."""
    return [len(group["params"]) for group in state_dict["param_groups"]] == [len(group["params"]) for group in groups]


def _row_format_of(matrix: list[Member], rows: list[Any]) -> Format:
    """The format of the rows of a matrix. Where the options leave it open, it is that of the saved ``rows``.

    The live state keeps the format of its first step as well, when a model becomes float64 later.
    """
    given = matrix[0][0]["window_dtype"]
    if given is None:
        kept = (getattr(one, "dtype", None) for one in rows)
        given = next((dtype for dtype in kept if dtype in (torch.float32, torch.float64)), None)
    return row_format(given, [parameter for _, parameter in matrix])


def _matrices(state_dict: dict[str, Any], groups: list[Group]) -> Iterator[tuple[list[Member], list[Any]]]:
    """The members of each matrix, and the keys of their state."""
    index_of = {id(parameter): index for index, _, parameter in numbered(state_dict["param_groups"], groups)}
    for matrix in matrices(groups):
        yield matrix, [index_of[id(parameter)] for _, parameter in matrix]


def _check_group(saved: Group, live: Group, number: int) -> None:
    version = saved.get(FORMAT_KEY)
    if FORMAT_KEY not in saved:
        raise ValueError(
            "torch_ggt: this is not the state of a GGT optimizer (its param groups carry no "
            f"{FORMAT_KEY!r}); options found: {sorted(map(str, saved))}"
        )
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"torch_ggt: {FORMAT_KEY} must be an int from 1 to {FORMAT_VERSION}, got {version!r}")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"torch_ggt: this state has format {version}, and this version of torch-ggt reads up to {FORMAT_VERSION}; "
            "upgrade torch-ggt"
        )
    lost = [name for name in OPTIONS if name not in saved]
    if lost and version >= FORMAT_VERSION:
        raise ValueError(f"torch_ggt: saved param group {number} has lost its options {', '.join(lost)}. {_AS_IT_WAS}")
    for name in FIXED:
        theirs = saved.get(name, OPTIONS[name].default)
        if name != "finish":  # a callable one was saved by its name
            theirs = OPTIONS[name].check(name, theirs)
        if not same(name, theirs, live[name], live["params"]):
            raise ValueError(
                f"torch_ggt: the saved state was made with {name}={theirs!r} and this optimizer has "
                f"{name}={live[name]!r} (param group {number}); make the optimizer with {name}={theirs!r} to continue "
                "it, or start afresh without loading"
            )


def digest_of_options(group: Group) -> int:
    """A checksum of the options of a param group."""
    return zlib.crc32(repr([(name, _canonical(group.get(name))) for name in OPTIONS]).encode())


def _canonical(value: Any) -> Any:  # noqa: ANN401 - an option
    """An option's value as tools bring it back: a pair may be a list, and a number a tensor."""
    value = plain(value)
    if isinstance(value, tuple):
        return [_canonical(one) for one in value]
    return float(value) if isinstance(value, (Real, Tensor)) else str(value)


def _check_part(state_dict: dict[str, Any], columns: Columns) -> None:
    part = state_dict.get(PART_KEY)
    if part is None or (part["rank"], part["ranks"]) == (columns.rank, columns.ranks):
        return
    here = "this process has all columns" if columns.alone else f"this is rank {columns.rank} of {columns.ranks}"
    raise ValueError(
        f"torch_ggt: this state is the part of rank {part['rank']} of {part['ranks']}, and {here}. Load the file of "
        "each rank on that rank of as many ranks. For a file that loads anywhere, call "
        "optimizer.consolidate_state_dict(to=0) on all ranks before state_dict() on rank 0, or save "
        "with torch.distributed.checkpoint."
    )


# ---- one parameter, one matrix --------------------------------------------------------------------------------------


def _matrix_keys(rule: Rule) -> list[str]:
    """The keys of the state that one parameter of a matrix has."""
    of_windows = (matrix_key(name, key) for name in ("window", *rule.windows) for key in MATRIX_KEYS)
    return [*of_windows, *rule.numbers, "skipped"]


def _expected(member: Member, stored: Format, entry: dict[str, Any]) -> Forms:
    """The shape and dtype of every entry that the state of a parameter may have, by key."""
    group, parameter = member
    shape, size, rule = tuple(whole(parameter).shape), group["window"], RULES[group["history"]]
    wide = stored.wide
    found = dict.fromkeys(parameter_keys(group, parameter), (shape, wide))
    for key, small in small_shapes(group, parameter).items():
        found[key] = tuple(small), torch.float32 if key == "step" else wide
    found |= expected_rows(member, stored, entry)
    for name in ("window", *rule.windows):
        shapes = {"gram": (size, size), "decay": (size,), "momentum": (size,)}
        for key in MATRIX_KEYS:
            found[matrix_key(name, key)] = shapes.get(key, ()), torch.float64 if key in shapes else torch.int64
    found |= dict.fromkeys(rule.numbers, ((), torch.float64))
    return found | {"skipped": ((), torch.int64), SUMS_KEY: (shape, torch.int32)}


def _check_entry(entry: dict[str, Any], member: Member, stored: Format, index: Any) -> list[Tensor]:  # noqa: ANN401
    """Check the form of all entries of a parameter, and the values of the small ones, which are returned."""
    expected, rows = _expected(member, stored, entry), expected_rows(member, stored, entry)
    here = [key for key in expected if key in entry]
    needed = {*parameter_keys(*member), *rows, *small_shapes(*member)} if here else set()
    lost = sorted(needed - entry.keys())
    if lost:
        raise ValueError(
            f"torch_ggt: the saved state is incomplete: parameter {index} has {', '.join(here)}, but not "
            f"{', '.join(lost)}. {_AS_IT_WAS}"
        )
    for key in here:
        value, (shape, wanted) = entry[key], expected[key]
        if not isinstance(value, Tensor):
            raise ValueError(f"torch_ggt: parameter {index}: saved {key!r} must be a tensor, got {_short(value)}")
        if tuple(value.shape) != shape:
            raise ValueError(
                f"torch_ggt: saved state of parameter {index}: {key!r} of shape {tuple(value.shape)}, but the "
                f"parameter needs {shape}: is this the state of another model?"
            )
        if value.dtype != wanted or value.layout != torch.strided or value.device.type == "meta":
            raise ValueError(
                f"torch_ggt: saved state of parameter {index}: {key!r} must be a dense tensor of dtype {wanted}, got "
                f"{value.dtype}, {value.layout} on {value.device}. {_AS_IT_WAS}"
            )
    small = [key for key in here if key not in {*parameter_keys(*member), SUMS_KEY}]
    for key in small:
        _require(bool((entry[key].isfinite() & (entry[key] >= 0)).all()) or key.endswith("gram"), key, entry[key])
    return [entry[key] for key in small]


def _require(holds: bool, key: str, value: Any, rule: str = "must hold finite numbers ≥ 0") -> None:  # noqa: ANN401
    if not holds:
        raise ValueError(f"torch_ggt: the saved state is damaged: {key!r} {rule}, got {value}. {_AS_IT_WAS}")


def _check_matrix(entries: list[dict[str, Any]], rule: Rule) -> list[int]:
    """Check what the parameters of a matrix have together; the number of rows, if there are any."""
    keys = _matrix_keys(rule)
    holders = [entry for entry in entries if any(key in entry for key in keys)]
    complete = [entry for entry in holders if all(key in entry for key in keys)]
    if not holders and not any("window" in entry for entry in entries):
        return []
    if len(holders) != 1 or len(complete) != 1:
        raise ValueError(
            f"torch_ggt: the saved state is incomplete: it holds rows of a window, but {len(complete)} parameters hold "
            f"all of {', '.join(keys)}, and exactly one must"
        )
    for name in ("window", *rule.windows):
        gram, decay, momentum, position, count = (complete[0][matrix_key(name, key)].cpu() for key in MATRIX_KEYS)
        _check_ring(name, gram, decay, momentum, int(position), int(count))
    return [int(complete[0]["count"])]


def _check_ring(name: str, gram: Tensor, decay: Tensor, momentum: Tensor, position: int, count: int) -> None:
    """Check that position, count and age weights can have come from rows that were pushed one after the other."""
    size = len(decay)
    key = {part: matrix_key(name, part) for part in MATRIX_KEYS}
    _require(count <= size, key["count"], count, f"must be at most the number of rows, {size}")
    _require(position < size, key["position"], position, f"must be below the number of rows, {size}")
    in_order = count in (size, position)
    _require(in_order, key["position"], position, f"must be the number of filled rows, {count}, until all are filled")
    by_age = torch.arange(position - 1, position - 1 - count, -1, device="cpu").remainder(size)  # youngest first
    empty = torch.ones(size, dtype=torch.bool, device="cpu")
    empty[by_age] = False
    ages = decay[by_age]
    fit = bool((decay <= 1).all()) and bool((ages[:1] == 1).all()) and bool((ages.diff() <= 0).all())
    _require(fit, key["decay"], decay.tolist(), "must be 1 at the youngest row and fall with age")
    _require(bool((momentum <= 1).all()), key["momentum"], momentum.tolist(), "must be at most 1")
    for part, value in (("decay", decay), ("momentum", momentum), ("gram", gram)):
        _require(not bool(value[empty].any()), key[part], value.tolist(), f"must be 0 after the {count} filled rows")


def _check_sums(saved_groups: list[Group], entries: list[dict[str, Any]]) -> None:
    """All parameters have sums, or none; say so if the format has none."""
    version = min(group[FORMAT_KEY] for group in saved_groups)
    if version < _WITH_SUMS:
        if entries:
            warn(_WITHOUT_SUMS.format(version))
    elif len({SUMS_KEY in entry for entry in entries}) > 1:
        raise ValueError(f"torch_ggt: the saved state is incomplete: some parameters have {SUMS_KEY!r}. {_AS_IT_WAS}")


# ---- rows, buffers and sums -----------------------------------------------------------------------------------------


def sums(place: int, places: list[int], member: Member, entry: dict[str, Any], parts: dict[str, Tensor]) -> Tensor:
    """The sums of the elements of a parameter that are here.

    Args:
        place: of the parameter among all parameters.
        places: of those that have state.
        member: the parameter and its param group.
        entry: its saved state.
        parts: by key, the part that is here of what is split as the parameter is.
    """
    keys = [*_matrix_keys(RULES[member[0]["history"]]), *small_shapes(*member)]
    small = {key: entry[key] for key in keys if key in entry and key != "skipped"}  # no step depends on that count
    return sums_of(parts, parts["window"].shape[1:], salt_of(place, places, small))


def _finite(part: Tensor) -> bool:
    """Whether all elements are finite: by the extremes, which pass a NaN on and need no room."""
    return part.numel() == 0 or all(bool(extreme.isfinite()) for extreme in part.aminmax())


def check_rows(state_dict: dict[str, Any], groups: list[Group], columns: Columns) -> None:
    """Raise ValueError if rows, Gram matrices, buffers and sums do not belong together; reads ``state_dict`` alone."""
    if not same_layout(state_dict, groups):
        return
    state = state_dict["state"]
    order = [index for index, _, _ in numbered(state_dict["param_groups"], groups)]
    places = [place for place, index in enumerate(order) if "window" in state.get(index, {})]
    has_sums = min(group[FORMAT_KEY] for group in state_dict["param_groups"]) >= _WITH_SUMS
    for matrix, indices in _matrices(state_dict, groups):
        found = [(m, i, state[i]) for m, i in zip(matrix, indices, strict=True) if "window" in state.get(i, {})]
        if not found:
            continue
        owner = next(entry for _, _, entry in found if "gram" in entry)
        rule, device = RULES[matrix[0][0]["history"]], matrix[0][1].device
        probes = {name: Probe(owner[matrix_key(name, "gram")].cpu().double()) for name in ("window", *rule.windows)}
        wrong = torch.zeros(2 * len(found), dtype=torch.float64, device="cpu")
        for number, (member, index, entry) in enumerate(found):
            parameter = member[1]
            piece, weight = columns.piece(parameter), columns.weight(parameter)
            numbers = numbers_of(member[0], entry, piece.shape)
            parts = {key: columns.restore(piece, numbers.get(key, entry[key])) for key in parameter_keys(*member)}
            for name, probe in probes.items():
                probe.add(parts[name], weight)
            finite = all(_finite(part) for key, part in parts.items() if key not in probes)
            wrong[2 * number] = not finite
            if has_sums and SUMS_KEY in entry:
                made = sums(order.index(index), places, member, entry, parts)
                wrong[2 * number + 1] = not torch.equal(columns.restore(piece, entry[SUMS_KEY]), made)
        measured = [probe.measured.reshape(-1) for probe in probes.values()]
        flat = columns.total(torch.cat([*measured, wrong]).to(device)).cpu()
        *measured, wrong = torch.split(flat, [*(part.numel() for part in measured), wrong.numel()])
        if not all(probe.agrees(part) for probe, part in zip(probes.values(), measured, strict=True)):
            raise ValueError(_DAMAGED)
        for number in wrong.nonzero().flatten().tolist():
            (group, parameter), _, _ = found[number // 2]
            problem = "does not have the sums that were saved with it" if number % 2 else "is not finite"
            raise ValueError(
                f"torch_ggt: the saved state of {describe(group, parameter)} {problem}: it was damaged, or belongs to "
                f"another one. {_AS_IT_WAS} Load an older file; a hook that moves state must pop {SUMS_KEY!r} from it."
            )
