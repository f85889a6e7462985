"""A whitened optimizer from the strings and numbers of a configuration."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from torch import optim
from torch.optim.optimizer import Optimizer, ParamsT

from torch_ggt.whiten import whiten

__all__ = ["Whitened"]


class Whitened(Optimizer):
    """Make an optimizer and whiten it, in one call that a configuration can describe.

    The result is the optimizer of the class ``kind``, as `torch_ggt.whiten` returns it. It is no instance of this
    class. This is a class only because LightningCLI takes nothing else for an optimizer.

    Args:
        params: parameters, named parameters, or param groups.
        kind: the optimizer's class, or its name: a name in torch.optim ("AdamW"), or with its module in front
            ("schedulefree.AdamWScheduleFree").
        whitening: the options of `torch_ggt.whiten`, e.g. {"window": 20, "window_dtype": "bfloat16"}.
        options: the options of the optimizer, e.g. {"lr": 1e-3}, for tools that pass only arguments they know
            (LightningCLI).
        **more: options of the optimizer, too.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = Whitened(model.parameters(), "AdamW", whitening={"window": 10}, lr=1e-3)
        >>> type(optimizer).__name__, optimizer.whitening.defaults["window"]
        ('AdamW', 10)
    """

    def __new__(  # noqa: D102 - the class says it
        cls,
        params: ParamsT,
        kind: str | type[Optimizer] = "AdamW",
        *,
        whitening: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **more: Any,  # noqa: ANN401 - of another optimizer
    ) -> Any:  # noqa: ANN401 - the optimizer that was named
        maker = _class_of(kind)
        for name, value, example in (("whitening", whitening, "window: 20"), ("options", options, "lr: 1e-3")):
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"Whitened: {name} must be a dict, such as {{{example}}}, got {name}={value!r}")
        return whiten(maker(params, **(options or {}), **more), **(whitening or {}))

    # Tools that read signatures, such as jsonargparse, look here. It is never called.
    def __init__(
        self,
        params: ParamsT,
        kind: str | type[Optimizer] = "AdamW",
        *,
        whitening: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        **more: Any,  # noqa: ANN401 - of another optimizer
    ) -> None:
        raise NotImplementedError


def _class_of(kind: str | type[Optimizer]) -> type[Optimizer]:
    """The class of an optimizer from its name; ValueError says what is wrong with the name."""
    found: Any = kind
    if isinstance(kind, str):
        module_name, _, name = kind.rpartition(".")
        try:
            module = importlib.import_module(module_name) if module_name else optim
        except ImportError as error:
            raise ValueError(f"Whitened: kind={kind!r}: cannot import {module_name!r} ({error})") from error
        known = [each for each, value in vars(module).items() if _is_optimizer(value)]
        if name not in known:
            lowered = {each.lower(): each for each in known}
            near = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered)]
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {sorted(known)}"
            raise ValueError(f"Whitened: {module.__name__} has no optimizer {name!r}; {hint}")
        found = vars(module)[name]
    if not _is_optimizer(found):
        raise TypeError(f"Whitened: kind must be an optimizer's class or its name, got kind={kind!r}")
    return found  # type: ignore[no-any-return]


def _is_optimizer(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Optimizer)
