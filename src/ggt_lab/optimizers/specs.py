"""Optimizers by what a person types: ``GGT``, ``GGT(window=50)``, ``torch.optim.AdamW(weight_decay=0.1)``.

``whiten(AdamW(weight_decay=0.1), window=50)`` is the optimizer inside with `torch_ggt.whiten` in front of it.
"""

import ast
import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import torch_ggt
from ggt_lab.optimizers import dense_adaptive as dense
from ggt_lab.optimizers.muon_and_adamw import MuonAndAdamW, NorMuonAndAdamW
from ggt_lab.optimizers.paper_ggt import PaperGGT
from ggt_lab.problems.unknown_name import closest, unknown
from torch_ggt import GGT, Adadelta, AdaGrad, NAdam, RMSprop, whiten
from torch_ggt.formats import FORMATS
from torch_ggt.step import FullMatrixOptimizer

__all__ = [
    "NOT_RACED",
    "OptimizerError",
    "check_optimizer",
    "finish_of",
    "missing_package",
    "optimizer_factory",
    "optimizer_names",
    "window_of",
]

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]
"""A function of parameters and a learning rate that makes an optimizer."""

_OURS: dict[str, Any] = {
    "GGT": GGT,
    "PaperGGT": PaperGGT,
    "DiagonalAdaptive": dense.DiagonalAdaptive,
    "FullMatrixAdaptive": dense.FullMatrixAdaptive,
    "FullMatrixRMSprop": RMSprop,  # plain RMSprop is torch.optim's, and so on
    "FullMatrixNAdam": NAdam,
    "FullMatrixAdadelta": Adadelta,
    "FullMatrixAdaGrad": AdaGrad,
    "MuonAndAdamW": MuonAndAdamW,
    "NorMuonAndAdamW": NorMuonAndAdamW,
}

NOT_RACED = {
    "LBFGS": "LBFGS evaluates one batch several times, which the loss() of a problem cannot: not raced",
    "SparseAdam": "SparseAdam takes sparse gradients alone, and the others of a race take dense ones: not raced. "
    "Race Adam, with sparse=False in the embedding",
}
"""Optimizers of torch.optim that cannot be raced, and why."""

_IN_PYTORCH_OPTIMIZER = (
    *("SOAP", "Shampoo", "ScalableShampoo", "Lion", "Prodigy", "Adan", "CAME", "ADOPT", "AdEMAMix"),
    "ScheduleFreeAdamW",
)
"""Optimizers of the package pytorch_optimizer that a person may ask for by their name alone."""

_INSTALLED_AS = {"scimba_torch": "scimba"}
"""What pip calls a package, where its import has another name."""


class OptimizerError(ValueError):
    """An optimizer cannot be made as it was asked for; the message says why, and what to do."""


def optimizer_names() -> list[str]:
    """Every name that needs no import path: the lab's own optimizers, and those of torch.optim that can be raced."""
    theirs = {
        name
        for name, thing in vars(torch.optim).items()
        if inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer) and thing is not torch.optim.Optimizer
    }
    return sorted({*_OURS, *theirs} - NOT_RACED.keys())


def optimizer_factory(spec: str) -> OptimizerFactory:
    """A function of (parameters, lr) that makes the optimizer that ``spec`` describes.

    Args:
        spec: a name or an import path, with or without keyword arguments in parentheses. Values are Python literals;
            the value of ``window_dtype`` is the name of a format. ``whiten(SPEC, ...)`` whitens what SPEC describes.

    Raises:
        ValueError: there is no such optimizer (the message names the closest one), or the spec cannot be read.
            The function that is returned raises an `OptimizerError` if the optimizer has no such option.

    Example:
        >>> make = optimizer_factory("GGT(window=5, window_dtype='bfloat16')")
        >>> make([torch.nn.Parameter(torch.ones(2))], 1e-3).defaults["window"]
        5
        >>> make = optimizer_factory("whiten(AdamW(betas=(0.8, 0.999)), window=50)")
        >>> make([torch.nn.Parameter(torch.ones(2))], 1e-3).whitening.defaults["window"]
        50
    """
    inner, name, options = _parse(spec)
    if inner is not None:
        make_inner = optimizer_factory(inner)

        def make_whitened(parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
            whitened: torch.optim.Optimizer = whiten(make_inner(parameters, lr), **options)
            return whitened

        return make_whitened
    cls = _find(name)

    def make(parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        _check_options(cls, name, options)
        given = list(parameters)
        if cls is torch.optim.Muon and any(isinstance(each, torch.Tensor) and each.ndim != 2 for each in given):
            raise OptimizerError(
                "Muon takes matrices alone, and this model has parameters of other shapes, such as biases: "
                "MuonAndAdamW is Muon for the matrices and AdamW for the rest"
            )
        optimizer: torch.optim.Optimizer = cls(given, lr=lr, **options)
        return optimizer

    return make


def check_optimizer(spec: str, lr: float) -> None:
    """Make the optimizer once, to see that it can be made.

    Raises:
        ValueError: it cannot be made. The message holds the words of the optimizer.
    """
    make = optimizer_factory(spec)
    try:
        made = make([torch.nn.Parameter(torch.zeros(2, 2))], lr)
    except OptimizerError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"the optimizer {spec} with lr {lr:g} cannot be made: {error}") from error
    for name, reason in NOT_RACED.items():
        if isinstance(made, getattr(torch.optim, name)):
            raise ValueError(reason)


def _check_options(cls: Any, name: str, options: dict[str, Any]) -> None:  # noqa: ANN401 - any importable class
    """Refuse options that the optimizer does not have, and the learning rate, which no spec holds."""
    if "lr" in options:
        raise OptimizerError(f"{name}: lr is no option here; learning rates belong to --lrs, as in --lrs 0.01 0.1")
    takes = inspect.signature(cls).parameters
    if any(each.kind is each.VAR_KEYWORD for each in takes.values()):
        return  # it checks them itself
    known = [option for option in takes if option not in ("params", "lr")]
    for option in set(options) - set(known):
        close = closest(option, known)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(known)}"
        raise OptimizerError(f"{name} has no option {option!r}; {hint}")


def window_of(spec: str) -> int | None:
    """The number of rows in the window of the optimizer; None if it has no window of ours.

    Nothing is imported or made, so that the spec may come from the results of somebody else.

    Example:
        >>> window_of("GGT(window=5)"), window_of("whiten(AdamW, window=50)"), window_of("AdamW")
        (5, 50, None)
    """
    try:
        inner, name, options = _parse(spec)
    except ValueError:  # a name in somebody's results
        return None
    ours = getattr(torch_ggt, name.removeprefix("torch_ggt."), None) if "." in name else _OURS.get(name)
    if inner is not None:
        takes = inspect.signature(whiten).parameters
    elif inspect.isclass(ours) and issubclass(ours, FullMatrixOptimizer):
        takes = inspect.signature(GGT).parameters  # its relatives take its options
    else:
        return None
    rows = options.get("window", takes["window"].default)
    return rows if isinstance(rows, int) else None


def finish_of(spec: str) -> str | None:
    """The finish that the spec of an optimizer of ours names; None if it names none.

    Example:
        >>> finish_of("GGT(finish='polar')"), finish_of("whiten(AdamW, window=50)")
        ('polar', None)
    """
    finish = _parse(spec)[2].get("finish")
    return finish if isinstance(finish, str) else None


def missing_package(spec: str) -> str | None:
    """The package of the optimizer if that is not installed; None if it is.

    Example:
        >>> missing_package("Adam"), missing_package("no_such_package.SOAP(lr=1)")
        (None, 'no_such_package')
    """
    inner, name, _ = _parse(spec)
    if inner is not None:
        return missing_package(inner)
    package, _, rest = name.partition(".")
    return _INSTALLED_AS.get(package, package) if rest and importlib.util.find_spec(package) is None else None


def _parse(spec: str) -> tuple[str | None, str, dict[str, Any]]:
    """The spec inside ``whiten(...)`` (None without whiten), the name before the parentheses, and the options."""
    try:
        expression = ast.parse(spec.strip(), mode="eval").body
        call = expression if isinstance(expression, ast.Call) else None
        name = ast.unparse(call.func if call is not None else expression)
        arguments = call.args if call is not None else []
        if name == "whiten" and len(arguments) != 1:
            raise ValueError("whiten needs one optimizer, e.g. whiten(AdamW, window=50)")
        if name != "whiten" and arguments:
            raise ValueError("options are given by name")
        options = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords} if call is not None else {}
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"cannot read the optimizer {spec!r} ({error}); write Name or Name(option=value), e.g. GGT(window=50)"
        ) from None
    if isinstance(options.get("window_dtype"), str):
        if options["window_dtype"] not in FORMATS:
            known = ", ".join(FORMATS)
            raise ValueError(f"{spec}: {options['window_dtype']!r} is no format of rows; these are: {known}")
        options["window_dtype"] = FORMATS[options["window_dtype"]].option
    return (ast.unparse(arguments[0]) if arguments else None), name, options


@contextlib.contextmanager
def _torch_as_it_is() -> Iterator[None]:
    """Undo what the import of a package does to torch: scimba makes float64 the default of the whole process."""
    dtype = torch.get_default_dtype()
    device = torch.get_default_device()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device == torch.device("cpu") else device)  # a default costs time in each call


def _find(name: str) -> Any:  # noqa: ANN401 - any importable class
    if name in _OURS:
        return _OURS[name]
    if "." in name:
        module, _, attribute = name.rpartition(".")
        try:
            with _torch_as_it_is():
                return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"cannot import the optimizer {name!r}: {error}") from error
    if name in optimizer_names() or name in NOT_RACED:  # refused later, with a reason
        return getattr(torch.optim, name)
    elsewhere = next((each for each in _IN_PYTORCH_OPTIMIZER if each.lower() == name.lower()), None)
    if elsewhere is not None:
        path = f"pytorch_optimizer.{elsewhere}"
        missing = missing_package(path)
        install = f". That package is not installed: pip install {missing}" if missing else ""
        raise ValueError(f"{name} is in the package pytorch_optimizer: write {path}{install}")
    raise unknown("optimizer", name, optimizer_names(), "Others by import path, e.g. package.module.Class.")
