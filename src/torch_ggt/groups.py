"""Which parameter goes where: the param groups of a model, by what each tensor is.

A kind is found from the module that holds a parameter, from the parameter's name, and from its shape. `_KINDS` says
what follows from a kind: its role, and whether its weights decay.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from torch_ggt.parameters import Group

__all__ = ["param_groups"]

_KINDS = {  # kind: (role, whether it decays)
    **dict.fromkeys(("linear", "recurrent", "qkv", "gate, up"), ("matrix", True)),
    **dict.fromkeys(("convolution", "experts"), ("stack", True)),
    **dict.fromkeys(("embedding", "head", "convolution 1d", "depthwise", "complex"), ("rest", True)),
    **dict.fromkeys(("position", "norm", "bias", "vector", "scalar"), ("rest", False)),
}
_HEAD = re.compile(r"((lm|mlm|cls|class|classification)_)?heads?|classifier|fc|output|score|qa_outputs|unembed")
_POSITION = re.compile(r"(^|\.)(wpe|pos)(\.|$)|pos_?emb|position|relative|rel_pos|_tokens?$")
_FUSED = {"qkv": 3, "wqkv": 3, "qkv_proj": 3, "to_qkv": 3, "c_attn": 3, "gate_up_proj": 2}
_PARAMETRIZED = re.compile(r"(?:parametrizations\.)(\w+)\.original\d*$")


class _Entry(NamedTuple):
    names: list[str]
    parameter: Tensor
    kind: str
    split: int


def param_groups(
    model: nn.Module,
    *,
    finish: str | Callable[..., Any] | None = "polar",
    lr: Any = None,  # noqa: ANN401 - a number or a Tensor
    weight_decay: float | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    show: bool = False,
) -> list[Group]:
    """The param groups of a model: hidden matrices apart from all else, decay apart from no decay.

    Every trainable parameter is in exactly one group, a tied one under its first name. Frozen parameters are left out.
    docs/param_groups.md says how each kind is recognized.

    Args:
        model: the module itself; the types of its layers tell more than the names of its parameters.
        finish: the finish of hidden matrices: linear layers, convolutions, recurrent and attention weights, stacks of
            experts. All else has "adam". With "none" all parameters have "none". With None no group has the keys
            ``finish`` and ``split``, for optimizers that know no finish.
        lr: learning rate of all groups; None leaves it to the optimizer.
        weight_decay: of matrices, embeddings and heads; None leaves it to the optimizer. Biases, norms, positions and
            scalars have 0.
        overrides: regular expression → keys of a param group, for parameters in whose name the expression is found.
            The last one counts. ``{"role": "rest"}`` takes a parameter out of the matrices.
        show: print a table of all parameters.

    Returns:
        Param groups with ``params`` and ``param_names``. Each has a ``role``: "matrix" (two dimensions), "stack"
        (convolutions, stacks of matrices) or "rest". ``split`` is the number of matrices that are fused in a weight,
        one above the other; a group without it has whole matrices.

    Raises:
        ValueError: an override that matches no trainable parameter, or a model without trainable parameters.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4))
        >>> for group in param_groups(model, weight_decay=0.1):
        ...     print(group["param_names"], group["finish"], group["weight_decay"])
        ['0.weight'] polar 0.1
        ['0.bias', '1.weight', '1.bias'] adam 0.0
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"param_groups: model must be a torch.nn.Module, got {type(model).__name__}; give the model")
    entries = _entries(model)
    changes = _changes(entries, overrides or {})
    groups: list[Group] = []
    rows = []
    for entry, change in zip(entries, changes, strict=True):
        options = _options(entry, change, finish, lr, weight_decay)
        found = next((g for g in groups if options == {k: g[k] for k in g if k not in ("params", "param_names")}), None)
        if found is None:
            found = {**options, "params": [], "param_names": []}
            groups.append(found)
        found["params"].append(entry.parameter)
        found["param_names"].append(entry.names[0])
        rows.append(_row(entry, options))
    if show:
        print(_table(rows))
    return groups


def _options(entry: _Entry, change: Group, finish: Any, lr: Any, weight_decay: float | None) -> Group:  # noqa: ANN401
    """The keys of the group that a parameter belongs to."""
    role, decays = _KINDS[entry.kind]
    role = change.get("role", role)
    if role not in ("matrix", "stack", "rest"):
        raise ValueError(f"param_groups: role must be 'matrix', 'stack' or 'rest', got {role!r} for {entry.names[0]!r}")
    options: Group = {"role": role}
    if finish is not None:
        options["finish"] = "adam" if role == "rest" and finish != "none" else finish
        if role != "rest" and entry.split > 1 and finish not in ("none", "adam"):
            options["split"] = entry.split
    if lr is not None:
        options["lr"] = lr
    if weight_decay is not None or not decays:
        options["weight_decay"] = weight_decay if decays else 0.0
    return options | change


def _changes(entries: list[_Entry], overrides: Mapping[str, Mapping[str, Any]]) -> list[Group]:
    """What the overrides say of each parameter."""
    changes: list[Group] = [{} for _ in entries]
    for pattern, options in overrides.items():
        if options.keys() & {"params", "param_names"}:
            raise ValueError(f"param_groups: overrides[{pattern!r}] must hold options, not params or param_names")
        matched = [i for i, entry in enumerate(entries) if any(re.search(pattern, name) for name in entry.names)]
        if not matched:
            names = [name for entry in entries for name in entry.names]
            closest = ", ".join(map(repr, difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)))
            raise ValueError(
                f"param_groups: the override {pattern!r} is found in the name of no trainable parameter; the closest "
                f"names are {closest}. It is a regular expression (re.search)."
            )
        for index in matched:
            changes[index].update(options)
    return changes


# ---- what a tensor is ----------------------------------------------------------------------------------------------


def _entries(model: nn.Module) -> list[_Entry]:
    """Every trainable parameter with all its names, its kind, and the number of matrices that are fused in it."""
    modules = dict(model.named_modules(remove_duplicate=False))
    places: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if is_lazy(parameter):
            raise ValueError(f"param_groups: {name!r} has no shape yet; run the model once before")
        if parameter.requires_grad:
            places.setdefault(parameter, []).append(name)
    if not places:
        raise ValueError("param_groups: the model has no trainable parameters")
    found = {
        parameter: [(name, *_kind(modules[_home(name)[0]], name, parameter)) for name in names]
        for parameter, names in places.items()
    }
    heads = _heads(modules, found.values())
    entries = []
    for tensor, kinds in found.items():
        _, kind, split = next((one for one in kinds if one[1] == "embedding"), kinds[0])  # tied to a head, say
        if kind in ("linear", "convolution") and any(_home(name)[0] in heads for name, *_ in kinds):
            kind, split = "head", 1
        entries.append(_Entry([name for name, *_ in kinds], tensor, kind, split))
    return entries


def _home(name: str) -> tuple[str, str]:
    """(the module that a parameter belongs to, the parameter's name in it); a parametrized weight is at home, too."""
    owner, _, leaf = _PARAMETRIZED.sub(r"\1", name).rpartition(".")
    return owner, leaf


def _kind(module: nn.Module, name: str, parameter: Tensor) -> tuple[str, int]:
    """(kind, split) of a parameter, heads aside."""
    owner, leaf = _home(name)
    owner, shape = owner.rpartition(".")[2], tuple(parameter.shape)
    kind = _kind_by_name(module, owner, leaf)
    if not kind and sum(size > 1 for size in shape) < 2:
        kind = "scalar" if parameter.numel() == 1 else "vector"
    if kind or parameter.is_complex():
        return kind or "complex", 1
    if isinstance(module, _ConvNd):
        return _convolution(shape, module.groups)
    if len(shape) == 2:
        return _matrix(module, owner, leaf, shape)
    if shape[0] == 1:
        return "position", 1  # learned tokens
    return ("vector" if min(shape) == 1 else "experts") if len(shape) == 3 else "convolution", 1


def _kind_by_name(module: nn.Module, owner: str, leaf: str) -> str:
    """A kind that does not depend on the shape, or ""."""
    if not isinstance(module, nn.Linear | _ConvNd):
        if "norm" in type(module).__name__.lower():
            return "norm"
        if _POSITION.search(f"{owner}.{leaf}"):
            return "position"
    return "bias" if "bias" in leaf else ""


def _convolution(shape: tuple[int, ...], groups: int) -> tuple[str, int]:
    """A convolution with groups is one matrix for each group; a matrix of one row is none."""
    if groups > 1 and 1 in (shape[1], shape[0] // groups):
        return "depthwise", 1
    if shape[0] == 1:
        return "vector", 1
    return ("convolution 1d", 1) if len(shape) == 3 else ("convolution", groups)


def _matrix(module: nn.Module, owner: str, leaf: str, shape: tuple[int, ...]) -> tuple[str, int]:
    rows, columns = shape
    if "embedding" in type(module).__name__.lower() or (not isinstance(module, nn.Linear) and "embed" in leaf):
        return "embedding", 1
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        gates = leaf.startswith(("weight_ih", "weight_hh"))
        return "recurrent", rows // module.hidden_size if gates else 1
    fused = 3 if leaf == "in_proj_weight" else _FUSED.get((owner if leaf.startswith("weight") else leaf).lower(), 1)
    if fused == 3 and rows == 3 * columns:  # fewer keys than queries make unequal blocks
        return "qkv", 3
    return ("gate, up", 2) if fused == 2 and rows % 2 == 0 else ("linear", 1)


def _heads(modules: Mapping[str, nn.Module], found: Iterable[list[tuple[str, str, int]]]) -> set[str]:
    """The names of the output layers: the last layer in each module that is called a head, outside numbered blocks.

    Without such a name and without tied weights it is the last linear layer with as many rows as an embedding.
    """
    layers = {name: module for name, module in modules.items() if isinstance(module, nn.Linear | _ConvNd)}
    heads: dict[str, str] = {}
    for name in layers:
        parts = name.split(".")
        for place, part in enumerate(parts):
            if part.isdecimal():
                break
            if _HEAD.fullmatch(part):
                heads[".".join(parts[: place + 1])] = name
                break
    tied = (kinds for kinds in found if any(kind == "embedding" for _, kind, _ in kinds))
    if heads or any(_home(name)[0] in layers for kinds in tied for name, *_ in kinds):
        return set(heads.values())
    words = [(n, m.num_embeddings) for n, m in modules.items() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    rows = {count for name, count in words if not _POSITION.search(name.rpartition(".")[2])}
    return set([name for name, layer in layers.items() if getattr(layer, "out_features", None) in rows][-1:])


# ---- the table -----------------------------------------------------------------------------------------------------


def _row(entry: _Entry, options: Group) -> tuple[str, ...]:
    finish = options.get("finish", options["role"])
    words = finish if isinstance(finish, str) else getattr(finish, "__name__", type(finish).__name__)
    split = f" ÷ {options['split']}" if "split" in options else ""
    shape = " × ".join(map(str, entry.parameter.shape)) or "1"
    return entry.names[0], shape, entry.kind, words + split, str(options.get("weight_decay", "yes") or "no")


def _table(rows: list[tuple[str, ...]]) -> str:
    """The parameters in lines of at most 100 characters; layers that differ in their number alone share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        alike.setdefault((re.sub(r"(?<![a-z])\d+", "*", name), *cells), []).append(name)
    lines = [("parameter", "shape", "kind", "finish", "decay")]
    for (pattern, *cells), names in alike.items():
        lines.append((names[0] if len(names) == 1 else f"{len(names)} × {pattern}", *cells))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[0] = min(widths[0], 100 - sum(widths[1:]) - 2 * len(widths[1:]))
    short = [(n if len(n) <= widths[0] else "…" + n[1 - widths[0] :], *cells) for n, *cells in lines]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in short)
