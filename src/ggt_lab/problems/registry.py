"""What a problem is, and how it is found by name.

A problem is a class. An instance is the world of one run: it is made from a seed, and holds a fresh model and its own
stream of batches. So every optimizer gets an equal start and equal data in equal order.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ggt_lab.problems.unknown_name import unknown

__all__ = ["Problem", "large_numbers", "problem_class", "problem_names", "register"]

_REGISTRY: dict[str, Any] = {}
_C = TypeVar("_C", bound=type)


class Problem(Protocol):
    """The interface of a problem. A file of a user defines a class ``Problem`` with these members.

    Attributes:
        steps: the length of a run, unless the race says otherwise.
        metric: the number of `evaluate` that decides a race; it is to be small, unless ``larger_is_better`` names it.

    A problem may also have ``larger_is_better``, a tuple of the numbers that are to be large, and a method
    ``schedule(progress)``: the factor of the learning rate when that share of a run is done.
    """

    steps: int
    metric: str

    def __init__(self, seed: int, device: torch.device) -> None: ...

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters that are optimized."""
        ...

    def loss(self) -> Tensor:
        """The loss of the next batch; its gradient is taken."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Numbers that say how good the parameters are; one of them is ``metric``. Called without gradients."""
        ...


def large_numbers(cls: type[Any]) -> tuple[str, ...]:
    """The numbers of `evaluate` that are to be large.

    Raises:
        ValueError: ``larger_is_better`` of the problem is not a tuple of names.
    """
    named = getattr(cls, "larger_is_better", ())
    if not isinstance(named, tuple | list) or not all(isinstance(name, str) for name in named):
        raise ValueError(
            f"larger_is_better of class {cls.__name__} is {named!r}; "
            'it should be a tuple of names of numbers, such as ("accuracy",)'
        )
    return tuple(named)


def register(name: str) -> Callable[[_C], _C]:
    """Class decorator that registers a problem as ``name``."""

    def add(cls: _C) -> _C:
        _REGISTRY[name] = cls
        return cls

    return add


def problem_names() -> list[str]:
    """The names of the built-in problems."""
    return sorted(_REGISTRY)


def problem_class(name: str) -> type[Problem]:
    """The problem of that name, or the class ``Problem`` of a Python file.

    Raises:
        ValueError: there is no such problem; the message names the closest ones.
    """
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name not in _REGISTRY:
        raise unknown("problem", name, _REGISTRY, "A file of your own ends in .py.")
    found: type[Problem] = _REGISTRY[name]
    return found


def _from_file(path: Path) -> type[Problem]:
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    module_name = f"ggt_lab_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # so that its classes can be pickled to worker processes
    beside = str(path.resolve().parent)  # where `python my_problem.py` finds modules, too
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ImportError(f"problem {path} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, "Problem"):
        raise ValueError(f"{path} defines no class named Problem")
    cls: type[Problem] = module.Problem
    missing = [member for member in ("steps", "metric", "parameters", "loss", "evaluate") if not hasattr(cls, member)]
    if missing:
        raise ValueError(f"class Problem in {path} lacks {', '.join(missing)}")
    return cls
