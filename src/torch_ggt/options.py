"""What the options of a param group may be: one check per option, each message saying what was given and allowed."""

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from torch_ggt.inverse_root import check_solver

__all__ = ["OF_MATRIX", "OF_STEP", "check_agreement", "check_options", "plain"]

_CHOICES = {
    "history": ("momentum", "gradient"),
    "scope": ("model", "group", "parameter"),
    "adjust_lr_fn": ("match_rms_adamw", "original"),
    "nonfinite": ("skip", "raise"),
    "window_dtype": (None, torch.float32, torch.bfloat16, torch.float64),
}
_FLAGS = ("nesterov", "maximize", "capturable")
_NONNEGATIVE = ("eps", "weight_decay", "sgd_scale", "jitter")

OF_MATRIX = (
    *("betas", "eps", "window", "window_dtype", "history", "sgd_scale", "jitter", "nesterov"),
    *("adjust_lr_fn", "solver"),
)
"""Options of one full matrix, which all of its param groups must share."""

OF_STEP = ("scope", "nonfinite")
"""Options of the step as a whole, alike in all param groups whatever the scope."""


def check_options(options: dict[str, Any]) -> None:
    """Raise ValueError or TypeError unless a param group with these options can be optimized."""
    _check_lr(options["lr"])
    for name in _NONNEGATIVE:
        value = options[name]
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise ValueError(f"GGT: {name} must be a finite number ≥ 0, got {name}={value!r}")
    for name, allowed in _CHOICES.items():
        if options[name] not in allowed:
            raise ValueError(
                f"GGT: {name} must be one of {', '.join(map(repr, allowed))}, got {name}={options[name]!r}"
            )
    for name in _FLAGS:
        if not isinstance(options[name], bool):
            raise TypeError(f"GGT: {name} must be True or False, got {name}={options[name]!r}")
    _check_window(options["window"])
    _check_betas(options["betas"], options["history"])
    check_solver(options["solver"], options["jitter"])


def check_agreement(groups: list[dict[str, Any]]) -> None:
    """Raise ValueError if param groups that share one full matrix, or one step, disagree on how it is made."""
    if len(groups) < 2:
        return
    first = groups[0]
    of_matrix = OF_MATRIX if first["scope"] == "model" else ()
    for number, group in enumerate(groups[1:], start=1):
        for key in (*OF_STEP, *of_matrix):
            if plain(group[key]) != plain(first[key]):
                remedy = " (scope='group' gives each group its own matrix)" if key in of_matrix else ""
                raise ValueError(
                    f"GGT: param group {number} has {key}={group[key]!r} and group 0 has {key}={first[key]!r}; with "
                    f"scope={first['scope']!r} they must agree{remedy}"
                )


def plain(value: Any) -> Any:  # noqa: ANN401 - an option
    """An option's value, to compare: betas read back from JSON are a list."""
    return tuple(value) if isinstance(value, list) else value


def _check_lr(lr: object) -> None:
    if isinstance(lr, Tensor):
        if lr.numel() != 1 or lr.is_complex():
            raise ValueError(f"GGT: a Tensor lr must have 1 real element, got {lr!r}")
    elif not isinstance(lr, Real):
        raise TypeError(f"GGT: lr must be a number or a 1-element Tensor, got {lr!r}")
    if not 0 <= float(lr) < math.inf:
        raise ValueError(f"GGT: lr must be a finite number ≥ 0, got lr={lr!r}")


def _check_window(window: object) -> None:
    if isinstance(window, bool) or not isinstance(window, int):
        raise TypeError(f"GGT: window must be an int ≥ 1, got window={window!r}")
    if window < 1:
        raise ValueError(f"GGT: window must be an int ≥ 1, got window={window!r}")


def _check_betas(betas: Any, history: str) -> None:  # noqa: ANN401 - anything a user passes
    try:
        beta1, beta2 = betas
        float(beta1), float(beta2)
    except (TypeError, ValueError):
        raise ValueError(f"GGT: betas must be a pair of numbers (β₁, β₂), got betas={betas!r}") from None
    if not 0 <= beta1 < 1:
        raise ValueError(f"GGT: betas[0] (β₁, momentum) must lie in [0, 1), got {beta1!r}")
    if not 0 < beta2 <= 1:
        raise ValueError(f"GGT: betas[1] (β₂, decay of the window) must lie in (0, 1], got {beta2!r}")
    if history == "gradient" and beta1 > beta2:
        raise ValueError(
            f"GGT: history='gradient' needs β₁ ≤ β₂, got betas={betas!r}: momentum truncated to the window would weigh "
            "its oldest rows the most. Lower β₁, raise β₂, or use history='momentum'."
        )
