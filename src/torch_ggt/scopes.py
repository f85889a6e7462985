"""Which parameters share a full matrix.

A scope is a function: it takes the param groups and returns lists of parameters, one list for each full matrix. Every
parameter must be in exactly one list. To add a scope, write such a function and give it a name in `SCOPES`;
``GGT(..., scope=name)`` then uses it. The matrices of one param group share one flat window, solved in one batch.

>>> p, q = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
>>> [len(matrix) for matrix in per_parameter([{"params": [p, q]}])]
[1, 1]
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torch_ggt.parameters import Group, Member, describe

__all__ = ["SCOPES", "matrices", "per_group", "per_parameter", "whole_model"]


def whole_model(groups: list[Group]) -> list[list[Tensor]]:
    """One matrix for all parameters, as in the paper."""
    return [[parameter for group in groups for parameter in group["params"]]]


def per_group(groups: list[Group]) -> list[list[Tensor]]:
    """One matrix for each param group."""
    return [list(group["params"]) for group in groups]


def per_parameter(groups: list[Group]) -> list[list[Tensor]]:
    """One matrix for each parameter."""
    return [[parameter] for group in groups for parameter in group["params"]]


SCOPES: dict[str, Callable[[list[Group]], list[list[Tensor]]]] = {
    "model": whole_model,
    "group": per_group,
    "parameter": per_parameter,
}


def matrices(groups: list[Group]) -> list[list[Member]]:
    """The members of each full matrix, as the scope of ``groups`` divides them.

    Raises:
        ValueError: the scope leaves out a parameter, or names one twice.
    """
    scope = groups[0]["scope"]
    members: dict[int, Member] = {id(p): (group, p) for group in groups for p in group["params"]}
    found: list[list[Member]] = []
    for parameters in SCOPES[scope](groups):
        found.append([_taken_once(members, parameter, scope) for parameter in parameters])
    for group, parameter in members.values():
        raise ValueError(
            f"torch_ggt: scope={scope!r} leaves out {describe(group, parameter)}; its function must put every "
            "parameter into exactly one list"
        )
    return [matrix for matrix in found if matrix]


def _taken_once(members: dict[int, Member], parameter: Any, scope: str) -> Member:  # noqa: ANN401 - a user's list
    if id(parameter) not in members:
        shape = tuple(getattr(parameter, "shape", ()))
        raise ValueError(
            f"torch_ggt: scope={scope!r} names a parameter of shape {shape} twice, or one that is in no param group; "
            "its function must put every parameter into exactly one list"
        )
    return members.pop(id(parameter))
