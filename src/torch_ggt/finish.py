r"""What becomes of each tensor's step before it is applied: averaged over time, then finished by its shape.

A finish belongs to a param group. ``average`` works on each element by itself and may keep buffers; ``shape`` may need
the whole tensor. The name "none" stands for no finish: the step is applied as it is, on a GPU in the very pass that
makes it. With u for the step of a tensor, and m for its first moment:

===============  =====================================================================================================
"adam"           m̂/(√v̂ + ε) with v ← β v + (1 - β) u²; both moments are corrected for their bias
"polar"          0.2·√max(rows, columns) times the polar factor of m, as ``torch.optim.Muon``; see `polar`
"polar_exact"    the polar factor of "polar" to 1e-10, in float64
"polar_rows"     "polar" with each row divided by its running RMS, and the Frobenius norm kept, as NorMuon
a callable       function(m) → a tensor of the shape of m
===============  =====================================================================================================

m ← β₁ m + (1 - β₁) u where the rule leaves momentum to the finish (history="gradient": whiten, then average), and m = u
where momentum is in the window already (history="momentum": average, then whiten). With ``nesterov``, β₁ m + (1 - β₁) u
takes the place of m. β is the option ``finish_beta``. To add a finish, write a class like `Finish` and give it a name
in `FINISHES`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torch_ggt.parameters import Member, describe
from torch_ggt.polar import polar
from torch_ggt.rules import RULES

__all__ = ["FINISHES", "Adam", "Averaged", "Custom", "Finish", "Polar", "finished", "name_of", "resolve"]


# About how many elements of matrices are finished at once: an iteration holds five tensors of this size.
_BATCH = 2**21


class Finish:
    """The base of all finishes.

    ``buffers`` names the tensors that `average` remembers, one for each parameter and of its shape; they are saved.
    ``whole`` says whether `shape` needs whole tensors; if not, each rank finishes the part that it has.
    """

    buffers: tuple[str, ...] = ()
    whole = False

    def of(self, shape: tuple[int, ...]) -> "Finish":
        """The finish of a tensor of this shape: this one, or another one if the tensor has no such form."""
        return self

    def problem(self, parameter: Tensor, options: Mapping[str, Any]) -> str | None:
        """Why a parameter cannot be finished in this way, and what to do, in words that follow its name; or None."""
        return None

    def buffers_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the buffers with the options of a param group."""
        return self.buffers

    def small(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of small tensors to remember for a parameter, by name; they are alike on all ranks, and saved."""
        return {}

    def average(
        self,
        steps: list[Tensor],
        buffers: Mapping[str, list[Tensor]],
        options: Mapping[str, Any],
        taken: Tensor,
    ) -> list[Tensor]:
        """The steps u of the tensors of one param group, averaged over time.

        Args:
            steps: one tensor for each parameter, the part of it that is here; they may be changed in place. A step that
                is not taken is zero.
            buffers: by name, one tensor for each parameter, small ones included; change them in place, where ``taken``.
            options: the param group.
            taken: bool, (): whether the step is taken.
        """
        return steps

    def shape(
        self, steps: list[Tensor], small: Mapping[str, list[Tensor]], options: Mapping[str, Any], taken: Tensor
    ) -> list[Tensor]:
        """The averaged steps, each finished by its shape; ``small`` may be changed in place, where ``taken``."""
        return steps


class Averaged(Finish):
    """The first moment, where the rule leaves momentum to the finish."""

    def buffers_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """``exp_avg``, with history="gradient"."""
        return ("exp_avg",) if RULES[options["history"]].finish_averages else ()

    def average(
        self,
        steps: list[Tensor],
        buffers: Mapping[str, list[Tensor]],
        options: Mapping[str, Any],
        taken: Tensor,
    ) -> list[Tensor]:
        """m, or with nesterov β₁ m + (1 - β₁) u."""
        if "exp_avg" not in buffers:
            return steps
        beta1, first = options["betas"][0], buffers["exp_avg"]
        torch._foreach_mul_(first, _decay(beta1, taken))
        torch._foreach_add_(first, steps, alpha=1 - beta1)
        if options["nesterov"]:
            torch._foreach_mul_(steps, 1 - beta1)
            torch._foreach_add_(steps, first, alpha=beta1)
        else:
            torch._foreach_copy_(steps, first)
        return steps


class Adam(Averaged):
    """m̂/(√v̂ + ε), element by element."""

    def buffers_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Adam's two moments, or the second one."""
        return (*super().buffers_of(options), "exp_avg_sq")

    def small(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """``step``: the number of steps taken."""
        return {"step": ()}

    def average(
        self,
        steps: list[Tensor],
        buffers: Mapping[str, list[Tensor]],
        options: Mapping[str, Any],
        taken: Tensor,
    ) -> list[Tensor]:
        """The quotient of the moments, over ``steps``; an element that has never moved stays where it is."""
        beta, squares, counts = _beta(options, 0.999), buffers["exp_avg_sq"], buffers["step"]
        torch._foreach_add_(counts, taken.float(), alpha=1)  # without alpha, torch asks the device for the number
        torch._foreach_mul_(squares, _decay(beta, taken))
        torch._foreach_addcmul_(squares, steps, steps, value=1 - beta)
        steps = super().average(steps, buffers, options, taken)
        number = torch.stack(list(counts)).double().clamp_min(1)
        if "exp_avg" in buffers:
            beta1, ahead = options["betas"][0], int(options["nesterov"])
            torch._foreach_div_(steps, (1 - beta1 ** (number + ahead)).unbind())
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - beta**number).sqrt().unbind())
        torch._foreach_add_(roots, options["eps"])
        for root in roots if options["eps"] == 0 else ():
            root.masked_fill_(root == 0, torch.inf)
        torch._foreach_div_(steps, roots)
        return steps


class Polar(Averaged):
    """The polar factor of each matrix; a tensor that is no matrix is finished by `Adam`.

    A tensor of three dimensions is a stack of matrices, and one of more is a convolution, out × rest. With ``split=k``
    each matrix is k matrices, one below the other, such as the fused projections of an attention layer.

    Args:
        rows: divide each row by its running RMS.
        exact: see `polar`.
    """

    whole = True

    def __init__(self, *, rows: bool = False, exact: bool = False) -> None:
        self.rows, self.exact = rows, exact

    def of(self, shape: tuple[int, ...]) -> Finish:
        """`Adam` for vectors, scalars, and tensors without elements."""
        return self if len(shape) > 1 and all(shape) else _ADAM

    def problem(self, parameter: Tensor, options: Mapping[str, Any]) -> str | None:
        """Complex numbers, rows that do not divide, and no rows yet."""
        if is_lazy(parameter):
            return "has no shape yet; run the model once before"
        if parameter.is_complex():
            return "is complex, and a polar factor is made of real matrices; give it a param group with finish='adam'"
        if self.of(tuple(parameter.shape)) is self:
            rows = parameter.shape[1] if parameter.dim() == 3 else parameter.shape[0]
            if rows % options["split"]:
                return (
                    f"has {rows} rows, which are not {options['split']} equal blocks; give it a param group with a "
                    "split that divides its rows"
                )
        return None

    def small(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """``row_squares``: the running mean square of each row."""
        return {"row_squares": (*(shape[:-1] if len(shape) < 4 else shape[:1]), 1)} if self.rows else {}

    def shape(
        self, steps: list[Tensor], small: Mapping[str, list[Tensor]], options: Mapping[str, Any], taken: Tensor
    ) -> list[Tensor]:
        """Matrices of one size are finished as one batch, or as several if they are many."""
        together: dict[tuple[int, ...], list[int]] = {}
        filled: dict[tuple[int, ...], int] = {}
        for index, step in enumerate(steps):
            rows, columns = step.shape[-2:] if step.dim() < 4 else (step.shape[0], step[0].numel())
            size = rows // options["split"], columns
            together.setdefault((*size, filled.get(size, 0) // _BATCH), []).append(index)
            filled[size] = filled.get(size, 0) + step.numel()
        for (rows, columns, _), places in together.items():
            parts = [steps[i].reshape(-1, rows, columns) for i in places]
            factors = polar(torch.cat(parts), exact=self.exact)
            if self.rows:
                self._divide_rows(factors, [small["row_squares"][i].view(-1, rows, 1) for i in places], options, taken)
            factors.mul_(0.2 * math.sqrt(max(rows, columns)))
            torch._foreach_copy_(parts, torch.split(factors, [part.shape[0] for part in parts]))  # views of the steps
        return steps

    def _divide_rows(self, factors: Tensor, squares: list[Tensor], options: Mapping[str, Any], taken: Tensor) -> None:
        """Divide by the root of ``squares`` after they have seen ``factors``, all in place."""
        beta = _beta(options, 0.95)
        running = torch.cat(squares).mul_(_decay(beta, taken))
        running.add_(factors.square().mean(-1, keepdim=True).mul_(taken), alpha=1 - beta)
        torch._foreach_copy_(squares, torch.split(running, [part.shape[0] for part in squares]))
        length = torch.linalg.matrix_norm(factors, keepdim=True)
        factors.div_(running.sqrt_().add_(1e-10))
        factors.mul_(length / (torch.linalg.matrix_norm(factors, keepdim=True) + 1e-10))


class Custom(Averaged):
    """A callable of the user, for each tensor."""

    whole = True

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def problem(self, parameter: Tensor, options: Mapping[str, Any]) -> str | None:
        """Complex numbers."""
        words = "is complex, and a callable finish gets real tensors; give it a param group with finish='adam'"
        return words if parameter.is_complex() else None

    def shape(
        self, steps: list[Tensor], small: Mapping[str, list[Tensor]], options: Mapping[str, Any], taken: Tensor
    ) -> list[Tensor]:
        """What the callable makes of each tensor."""
        return [self.function(step) for step in steps]


_ADAM = Adam()
FINISHES: dict[str, Finish | None] = {
    "none": None,
    "adam": _ADAM,
    "polar": Polar(),
    "polar_exact": Polar(exact=True),
    "polar_rows": Polar(rows=True),
}
"""The finishes by the name that the option ``finish`` gives them."""


def resolve(finish: str | Callable[[Tensor], Tensor]) -> Finish | None:
    """The finish that the option ``finish`` means."""
    return FINISHES[finish] if isinstance(finish, str) else Custom(finish)


def name_of(finish: Any) -> str:  # noqa: ANN401 - a value of the option
    """Under which name a finish is saved and compared; a callable itself is never saved.

    Example:
        >>> name_of("polar"), name_of(torch.sign)
        ('polar', 'callable sign')
    """
    if isinstance(finish, str):
        return finish
    return f"callable {getattr(finish, '__name__', type(finish).__name__)}"


def _beta(options: Mapping[str, Any], default: float) -> float:
    beta: float | None = options["finish_beta"]
    return default if beta is None else beta


def _decay(beta: float, taken: Tensor) -> Tensor:
    """β where the step is taken, else 1."""
    return 1 - (1 - beta) * taken.double()


# ---- the finishes of a step ----------------------------------------------------------------------------------------

_Block = Any  # the class stands above this room


def finished(block: _Block, taken: Tensor, refused: Callable[..., bool]) -> Tensor:
    """Average and finish the step; whether it is still taken: a user's function may have made a NaN of it."""
    began = taken & (block.window.count > 0).any()  # before the first gradient, a finish has nothing to count
    if block.backend.sees_numbers and not bool(began):
        return taken
    jobs = [(group, one, _with_gradient(block, places)) for group, one, places in block.finishing]
    jobs = [job for job in jobs if job[2]]
    for group, one, places in jobs:
        average(block, group, one, places, began)
    finish(block, jobs, began)
    if any(isinstance(one, Custom) for _, one, _ in jobs):
        fine = block.columns.total((~block.row.isfinite().all()).double()) == 0
        refused([block], fine | ~taken, finishing=True)
        began, taken = began & fine, taken & fine
    if not block.backend.sees_numbers or not bool(began):
        block.row.masked_fill_(~began, 0.0)
    return taken


def average(block: _Block, group: Mapping[str, Any], one: Finish, places: list[int], taken: Tensor) -> None:
    """Average steps over time, as the finish of their param group has it: element by element."""
    buffers = {name: [block.buffers[name][1][i] for i in places] for name in one.buffers_of(group)}
    steps = [block.row_views[i] for i in places]
    averaged = one.average(steps, buffers | _small(block, places), group, taken)
    for view, step in zip(steps, averaged, strict=True):
        if step is not view:
            view.copy_(step)


def finish(block: _Block, jobs: list[tuple[Mapping[str, Any], Finish, list[int]]], taken: Tensor) -> None:
    """Finish each tensor's averaged step by its shape; a tensor that must be whole for that, on the rank it goes to."""
    travelling = [place for _, one, places in jobs if one.whole for place in places]
    steps = block.columns.bring(block, travelling) if travelling else {}
    for group, one, places in jobs:
        own = [place for place in places if place in steps] if one.whole else places
        if not own:
            continue
        given = [steps[place] if one.whole else block.row_views[place] for place in own]
        results = one.shape(given, _small(block, own), group, taken)
        for place, before, after in zip(own, given, results, strict=True):
            _check_result(block.allotted[place], before, after)
            if one.whole:
                steps[place] = after
            elif after is not before:
                before.copy_(after)
    if travelling:
        block.columns.give_back(block, travelling, steps)


def _small(block: _Block, places: list[int]) -> dict[str, list[Tensor]]:
    return {name: [block.small[place][name] for place in places] for name in block.small[places[0]]}


def _with_gradient(block: _Block, places: list[int]) -> list[int]:
    return places if block.complete else [i for i in places if block.parameters[i].grad is not None]


def _check_result(member: Member, before: Tensor, after: Any) -> None:  # noqa: ANN401 - a user's value
    group, parameter = member
    if isinstance(after, Tensor) and after.shape == before.shape:
        return
    found = f"a tensor of shape {tuple(after.shape)}" if isinstance(after, Tensor) else f"{after!r}"
    raise ValueError(
        f"torch_ggt: finish={name_of(group['finish'])!r} must return a tensor of shape {tuple(before.shape)} for "
        f"{describe(group, parameter, shape=False)}, and returned {found}"
    )
