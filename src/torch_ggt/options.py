"""Every option of a param group, once: its default, its check, who must agree on it, and when it may change.

The table is `OPTIONS`. It serves the constructor, ``add_param_group``, loading, and every step that finds a value
changed. A check returns the value in its plain form, so that words and numbers from a YAML file are accepted.

>>> OPTIONS["window_dtype"].check("window_dtype", "bfloat16")
torch.bfloat16
"""

from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_ggt.finish import FINISHES, name_of, resolve
from torch_ggt.formats import FORMATS, format_of, row_format
from torch_ggt.parameters import Group, describe
from torch_ggt.rules import RULES
from torch_ggt.scopes import SCOPES, matrices
from torch_ggt.solver import check_solver

__all__ = [
    "FIXED",
    "OPTIONS",
    "RANKS",
    "check",
    "check_agreement",
    "check_changes",
    "check_flag",
    "plain",
    "same",
]

_SCALES = ("match_rms_adamw", "original", "mean", "keep_norm")
_LARGEST = 1e18  # the product of two such numbers is still a float32


class Option(NamedTuple):
    """One option.

    Attributes:
        default: what a param group has that says nothing.
        check: function(name, value) → the value in its plain form; it raises ValueError or TypeError.
        agree: "matrix": all param groups of one full matrix share the value; "step": all param groups do;
            "": each param group may have its own.
        ranks: all ranks must have one value.
        fixed: the state is made with the value. It may not change while there is state, and a saved state loads only
            into an optimizer with the value that it was made with.
    """

    default: Any
    check: Callable[[str, Any], Any]
    agree: str = ""
    ranks: bool = False
    fixed: bool = False


def number(name: str, value: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """A finite number ≥ 0 that float32 parameters can be multiplied with, or the text of one."""
    value = _parsed(value)
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= _LARGEST:
        raise ValueError(
            f"torch_ggt: {name} must be a finite number ≥ 0, got {name}={value!r}; the largest is {_LARGEST:g}"
        )
    return value


def rate(name: str, value: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """A learning rate: as `number`, or a tensor of one element. On a GPU its value is not read."""
    value = _parsed(value)
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(f"torch_ggt: a Tensor {name} must have 1 real element, got {value!r}")
        if value.device.type != "cpu":
            return value
    elif not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"torch_ggt: {name} must be a number or a 1-element Tensor, got {value!r}")
    if not 0 <= float(value) <= _LARGEST:
        raise ValueError(
            f"torch_ggt: {name} must be a finite number ≥ 0, got {name}={value!r}; the largest is {_LARGEST:g}"
        )
    return value


def share(name: str, value: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """A number in [0, 1], the text of one, or "auto"."""
    value = _parsed(value)
    if value == "auto":
        return value
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= 1:
        raise ValueError(f"torch_ggt: {name} must be a number in [0, 1] or 'auto', got {name}={value!r}")
    return value


def check_flag(name: str, value: Any) -> bool:  # noqa: ANN401 - anything a user passes
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"torch_ggt: {name} must be True or False, got {name}={value!r}")
    return value


def rows(name: str, value: Any) -> int:  # noqa: ANN401 - anything a user passes
    """An int ≥ 1, or the text of one."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"torch_ggt: {name} must be an int ≥ 1, got {name}={value!r}")
    if value < 1:
        raise ValueError(f"torch_ggt: {name} must be an int ≥ 1, got {name}={value!r}")
    return value


def stored_as(name: str, value: Any) -> torch.dtype | str | None:  # noqa: ANN401 - anything a user passes
    """How rows are stored: a dtype, the name of a dtype or of another format (`formats.FORMATS`), or None."""
    if value is None:
        return None
    try:
        return format_of(value).option
    except (KeyError, TypeError):
        allowed = ", ".join(["None", *(repr(found.option) for found in FORMATS.values())])
        remedy = "; a name with '@host' after it keeps the rows in host memory"
        raise ValueError(f"torch_ggt: {name} must be one of {allowed}, got {name}={value!r}{remedy}") from None


def pair_of_betas(name: str, value: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """(β₁, β₂) with 0 ≤ β₁ < 1 and 0 < β₂ ≤ 1; a list is taken, too, and stays one."""
    value = tuple(value.tolist()) if isinstance(value, Tensor) and value.dim() else value
    try:
        beta1, beta2 = parsed = [_parsed(beta) for beta in value]
        float(beta1), float(beta2)
    except (TypeError, ValueError):
        raise ValueError(f"torch_ggt: {name} must be a pair of numbers (β₁, β₂), got {name}={value!r}") from None
    if not 0 <= beta1 < 1:
        raise ValueError(f"torch_ggt: {name}[0] (β₁, momentum) must lie in [0, 1), got {beta1!r}")
    if not 0 < beta2 <= 1:
        raise ValueError(f"torch_ggt: {name}[1] (β₂, decay of the window) must lie in (0, 1], got {beta2!r}")
    return value if parsed == list(value) else tuple(parsed)


def window_decay(name: str, value: Any) -> float:  # noqa: ANN401 - anything a user passes
    """A number in (0, 1], or the text of one: the β₂ of `whiten`."""
    value = _parsed(value)
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) <= 1:
        raise ValueError(f"whiten: {name} must be a number in (0, 1], got {name}={value!r}")
    return float(value)


def one_of(allowed: Iterable[str]) -> Callable[[str, Any], str]:
    """A check for one of these words; the words are looked up when the check is made, so that more can be added."""

    def check_choice(name: str, value: Any) -> str:  # noqa: ANN401 - anything a user passes
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"torch_ggt: {name} must be one of {', '.join(map(repr, allowed))}, got {name}={value!r}")
        return value

    return check_choice


def finish(name: str, value: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """The name of a finish, or a callable."""
    if callable(value) and not isinstance(value, type):
        return value
    if not isinstance(value, str) or value not in FINISHES:
        raise ValueError(
            f"torch_ggt: {name} must be one of {', '.join(map(repr, FINISHES))}, or a function of a tensor, "
            f"got {name}={value!r}"
        )
    return value


def decay_or_none(name: str, value: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """None, or a number in [0, 1), or the text of one."""
    value = _parsed(value)
    if value is not None and (not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) < 1):
        raise ValueError(f"torch_ggt: {name} must be None or a number in [0, 1), got {name}={value!r}")
    return value


def solver(name: str, value: Any) -> str:  # noqa: ANN401 - anything a user passes
    """The name of a solver."""
    check_solver(value, 1.0)
    return str(value)


OPTIONS: dict[str, Option] = {
    "lr": Option(1e-3, rate),
    "betas": Option((0.9, 1.0), pair_of_betas, "matrix", ranks=True),
    "eps": Option(1e-8, number, "matrix", ranks=True),
    "weight_decay": Option(0.0, number),
    "window": Option(20, rows, "matrix", ranks=True, fixed=True),
    "window_dtype": Option(None, stored_as, "matrix", ranks=True, fixed=True),
    "history": Option("momentum", one_of(RULES), "matrix", ranks=True, fixed=True),
    "scope": Option("model", one_of(SCOPES), "step", ranks=True, fixed=True),
    "finish": Option("none", finish, ranks=True, fixed=True),
    "finish_beta": Option(None, decay_or_none, ranks=True),
    "split": Option(1, rows, ranks=True),
    "sgd_scale": Option(0.0, number, "matrix", ranks=True),
    "jitter": Option(1e-6, number, "matrix", ranks=True),
    "shrinkage": Option(0.0, share, "matrix", ranks=True),
    "nesterov": Option(False, check_flag, "matrix", ranks=True),
    "adjust_lr_fn": Option("match_rms_adamw", one_of(_SCALES), "matrix", ranks=True),
    "solver": Option("auto", solver, "matrix", ranks=True),
    "momentum_decay": Option(4e-3, number, "matrix", ranks=True),  # of NAdam alone
    "nonfinite": Option("skip", one_of(("skip", "raise")), "step", ranks=True),
    "maximize": Option(False, check_flag),
    "capturable": Option(False, check_flag),
}
"""All of these are saved, a callable finish by its name. ``process_group`` and ``cuda_graph`` belong to the optimizer
and are not saved. The defaults are those of version 0.1, the paper's but for adjust_lr_fn: an old state that says
nothing of an option was made with them. Members have defaults of their own in their constructors."""

FIXED = tuple(name for name, option in OPTIONS.items() if option.fixed)
RANKS = tuple(name for name, option in OPTIONS.items() if option.ranks)


def check(group: Group, names: Iterable[str] = OPTIONS) -> None:
    """Check the options ``names`` of a param group, alone and together, and put their plain form into the group."""
    found = {name: OPTIONS[name].check(name, group[name]) for name in names}
    together = {**group, **found}
    check_solver(together["solver"], together["jitter"])
    RULES[together["history"]].check(together)
    if not found.keys().isdisjoint(("finish", "split")):
        _check_forms(together)
    group.update(found)


def _check_forms(group: Group) -> None:
    """Raise ValueError if a parameter of the group has no form that its finish could give it."""
    found = resolve(group["finish"])
    for parameter in group.get("params", ()):
        problem = None if found is None else found.problem(parameter, group)
        if problem is not None:
            words = f"finish={name_of(group['finish'])!r}: {describe(group, parameter)}"
            raise ValueError(f"torch_ggt: {words} {problem}")


def check_changes(group: Group, seen: Group, *, has_state: bool) -> set[str]:
    """Check the options of a param group that are no longer the values in ``seen``; the names of those that changed."""
    names = {name for name in OPTIONS if group[name] is not seen.get(name, seen)}
    check(group, names)
    for name in names & seen.keys():
        if has_state and OPTIONS[name].fixed and not same(name, group[name], seen[name], group["params"]):
            raise ValueError(
                f"torch_ggt: {name} was changed to {group[name]!r} in the param group, but the state was made with "
                f"{name}={seen[name]!r}; make a new optimizer to change it"
            )
    return names


def check_agreement(groups: list[Group]) -> None:
    """Raise ValueError if param groups that share one full matrix, or one step, disagree on how it is made."""
    _check_alike(groups, [(group, None) for group in groups], [n for n, o in OPTIONS.items() if o.agree == "step"])
    of_matrix = [name for name, option in OPTIONS.items() if option.agree == "matrix"]
    for matrix in matrices(groups):
        _check_alike(groups, matrix, of_matrix)
        finished = {group["finish"] != "none" for group, _ in matrix}
        if len(finished) > 1 and RULES[matrix[0][0]["history"]].finish_averages:
            raise ValueError(
                f"torch_ggt: with history={matrix[0][0]['history']!r}, param groups that share a full matrix must all "
                "have a finish, or all finish='none': with a finish the newest gradient alone is preconditioned. Give "
                "the others finish='adam', or use scope='group', or history='momentum'."
            )


def _check_alike(groups: list[Group], members: Sequence[tuple[Group, Any]], names: list[str]) -> None:
    first = members[0][0]
    for group in {id(group): group for group, _ in members}.values():
        for name in names:
            if not same(name, group[name], first[name], [p for _, p in members]):
                one, other = (next(i for i, g in enumerate(groups) if g is which) for which in (group, first))
                remedy = "" if OPTIONS[name].agree == "step" else " (scope='group' gives each group its own matrix)"
                raise ValueError(
                    f"torch_ggt: param group {one} has {name}={group[name]!r} and group {other} has "
                    f"{name}={first[name]!r}; with scope={first['scope']!r} they must agree{remedy}"
                )


def same(name: str, one: Any, other: Any, parameters: Iterable[Tensor]) -> bool:  # noqa: ANN401 - options
    """Whether two values of an option mean one thing for these parameters: None stands for a format."""
    if name == "window_dtype":
        parameters = list(parameters)
        return row_format(one, parameters) is row_format(other, parameters)
    return bool(plain(one) == plain(other))


def plain(value: Any) -> Any:  # noqa: ANN401 - an option
    """An option's value, to compare: betas read back from JSON are a list, and a callable has its name."""
    if callable(value):
        return name_of(value)
    return tuple(value) if isinstance(value, list) else value


def _parsed(value: Any) -> Any:  # noqa: ANN401 - anything a user passes
    """The number that a text spells: YAML reads 1e-3 as a text."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value
