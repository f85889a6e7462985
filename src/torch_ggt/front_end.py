"""The hooks by which a whitening works for optimizers: before their step, in their state_dict, and in their copies."""

import copy
import functools
import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torch_ggt.parameters import Group, warn
from torch_ggt.state.checks import FORMAT_KEY, FORMAT_VERSION, PART_KEY, check_form

__all__ = ["PREFIX", "FrontEnd", "attach", "groups_of"]

PREFIX = "whiten_"
"""Of every key that a whitening adds to the state_dict of an optimizer."""
# What a wrapped optimizer saves of the options in each of its param groups.
_OPTIONS = (
    *("window", "window_dtype", "scope", "history"),
    *("betas", "eps", "jitter", "shrinkage", "adjust_lr_fn", "solver"),
    FORMAT_KEY,
)
# This key stands in the live param groups, too, so that a tool that keeps only keys it has seen gives itself away.
_MARK = PREFIX + FORMAT_KEY
_FLATTENED = (
    "whiten: this state was saved by a whitened optimizer, and the window was lost on its way: "
    "flatten_optimizer_state_dict=True of torch.distributed.checkpoint keeps only what optimizer.state holds. Set it "
    "to False when you save, or save optimizer.whitening as an optimizer of its own. Nothing was changed."
)


def groups_of(optimizers: tuple[Optimizer, ...]) -> list[Group]:
    """A param group for each one of the optimizers, with names where all of them have names."""
    given = [group for optimizer in optimizers for group in optimizer.param_groups]
    keys = ["params", *(["param_names"] if all("param_names" in group for group in given) else [])]
    return [{key: list(group[key]) for key in keys} for group in given]


class FrontEnd:
    """One whitening and the optimizers that it works for. Every hook is a method of this class.

    A round is one step of each optimizer. The first optimizer of a round has all gradients whitened. ``waiting`` holds
    the optimizers that have not stepped since, each with its gradients as the whitening left them.
    """

    def __init__(self, whitening: Any, optimizers: tuple[Optimizer, ...]) -> None:  # noqa: ANN401 - a Whitening
        self.whitening = whitening
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        # Several that share a window keep each other alive: without one of them its columns would be lost.
        self._together = optimizers if len(optimizers) > 1 else ()
        self.waiting: dict[int, list[tuple[weakref.ref[Tensor], int]]] = {}
        self.loaded: dict[int, dict[str, Any]] = {}

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """Those that still exist. Their hooks hold this object; it must not hold them, or nothing would be freed."""
        found = (itself() for itself in self._optimizers)
        return tuple(optimizer for optimizer in found if optimizer is not None)

    def __getstate__(self) -> dict[str, Any]:
        self._follow()
        return {"whitening": self.whitening, "optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
        for optimizer in self.optimizers:
            optimizer.whitening = self.whitening  # type: ignore[attr-defined]

    # ---- the step --------------------------------------------------------------------------------------------------

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Whiten now, or after the closure if ``step`` was given one."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.whiten_for(optimizer)
            return None
        calls = 0

        def closure_then_whiten() -> Any:  # noqa: ANN401 - the loss
            nonlocal calls
            calls += 1
            if calls > 1:
                raise RuntimeError(
                    f"whiten: {type(optimizer).__name__} evaluates its closure several times in one step, and would "
                    "compare gradients that were whitened by different windows; use it without whiten"
                )
            loss = closure()
            self.whiten_for(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], closure_then_whiten, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_then_whiten}

    def whiten_for(self, optimizer: Optimizer) -> None:
        """Whiten the gradients of all optimizers, unless that was done in this round."""
        name = type(optimizer).__name__
        if self.loaded:
            raise RuntimeError(
                "whiten: optimizers that share a window load their states together, and the state of "
                f"{', '.join(type(o).__name__ for o in self.optimizers if id(o) not in self.loaded)} is missing"
            )
        if all(p.grad is None for p in _parameters(optimizer)):  # a frozen model has no round
            return
        if len(self._optimizers) == 1:  # nobody else has whitened these gradients
            self._follow()
            _unscale(optimizer)
            self.whitening()
            return
        gradients = _gradients(optimizer)
        whitened = self.waiting.pop(id(optimizer), [])
        if _untouched(whitened, optimizer):
            return
        if not {id(ref()) for ref, _ in whitened}.isdisjoint(id(ref()) for ref, _ in gradients):
            raise RuntimeError(
                f"whiten: the gradients of {name} have changed since they were whitened in this round. Optimizers that "
                "share a window step one after the other: compute, unscale (scaler.unscale_ for each of them) and clip "
                "all gradients before the first step. Optimizers that train in turns need a window each: call whiten "
                "once for each."
            )
        for late in self.optimizers:
            held = {id(g) for ref, _ in self.waiting.get(id(late), []) if (g := ref()) is not None}
            if not held.isdisjoint(id(p.grad) for p in _parameters(late)):  # backward may have added to them since
                raise RuntimeError(
                    f"whiten: {type(late).__name__} shares a window with {name} but has not stepped since its "
                    "gradients were whitened. Step each of them once in a round, or call whiten once for each of them."
                )
        self._check_scales(optimizer)
        self._follow()
        _unscale(optimizer)
        self.whitening()
        if len(self.optimizers) > 1:
            others = [other for other in self.optimizers if other is not optimizer]
            self.waiting = {id(other): found for other in others if (found := _gradients(other))}

    def _check_scales(self, optimizer: Optimizer) -> None:
        """Raise if a GradScaler makes this step and has not unscaled the gradients of the others yet.

        It would unscale them in their own step, after they were whitened, and autograd would not count that.
        """
        scaler = _calling_scaler() if len(self.optimizers) > 1 else None
        states = {} if scaler is None else getattr(scaler, "_per_optimizer_states", {})
        for other in self.optimizers:
            stage = states[id(other)]["stage"].name if id(other) in states else "READY"
            if scaler is not None and other is not optimizer and stage == "READY" and _gradients(other):
                raise RuntimeError(
                    f"whiten: {type(other).__name__} shares a window with {type(optimizer).__name__}, and its "
                    "gradients are still scaled. Call scaler.unscale_(optimizer) for each of them before the first "
                    "scaler.step."
                )

    def _follow(self) -> None:
        """Whiten the parameters that the optimizers have now: some may have been added, or replaced by others.

        ``fully_shard`` and its callers replace the parameters of an optimizer after it was made.
        """
        current = {id(p) for optimizer in self.optimizers for p in _parameters(optimizer)}
        known = {id(p): p for p in _parameters(self.whitening)}
        if known.keys() == current:
            return
        options = {k: v for k, v in self.whitening.param_groups[0].items() if k not in ("params", "param_names")}
        self.whitening.param_groups = [{**options, **group} for group in groups_of(self.optimizers)]
        for key in known.keys() - current:
            self.whitening.state.pop(known[key], None)

    # ---- saving and loading ----------------------------------------------------------------------------------------

    def after_state_dict(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Put the whitening's state of every parameter beside the optimizer's own, under keys that begin "whiten_"."""
        self._follow()
        ours = self.whitening.state_dict_of(_parameters(optimizer))
        numbers = {id(p): number for number, p in enumerate(_parameters(self.whitening))}
        state = dict(state_dict["state"])
        for index, parameter in zip(_indices(state_dict["param_groups"]), _parameters(optimizer), strict=True):
            entry = ours["state"].get(numbers.get(id(parameter)), {})
            if entry:
                state[index] = {**state.get(index, {}), **{PREFIX + key: value for key, value in entry.items()}}
        options = {PREFIX + name: ours["param_groups"][0][name] for name in _OPTIONS}
        groups = [{**group, **options} for group in state_dict["param_groups"]]
        parts = {PART_KEY: ours[PART_KEY]} if PART_KEY in ours else {}
        return {**state_dict, **parts, "state": state, "param_groups": groups}

    def before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Take the whitening's state out of what the optimizer loads; refuse it before anything is changed."""
        foreign = _foreign(state_dict)
        own = {k: v for k, v in state_dict["state"].items() if k not in foreign} if foreign else {}
        check_form({**state_dict, "state": own} if foreign else state_dict)
        groups = state_dict["param_groups"]
        if _MARK in groups[0] and PREFIX + "window" not in groups[0]:
            raise ValueError(_FLATTENED)
        if FORMAT_KEY in groups[0]:
            name = type(optimizer).__name__
            raise ValueError(
                f"whiten: this is the state of a GGT, and {name} cannot go on from it: GGT's betas[1] = 1 stops Adam "
                "and its kin. Load it into a GGT, or start without it. Nothing was changed."
            )
        self._follow()
        loaded: dict[str, Any] = {
            "options": {key.removeprefix(PREFIX): v for key, v in groups[0].items() if key.startswith(PREFIX)},
            "entries": {},
            PART_KEY: state_dict.get(PART_KEY),
        }
        state = {}
        places = dict(zip(_indices(groups), _parameters(optimizer), strict=False))
        for index, entry in state_dict["state"].items():
            if index in foreign:
                state[index] = entry
                continue
            own = {key: value for key, value in entry.items() if not str(key).startswith(PREFIX)}
            ours = {key.removeprefix(PREFIX): entry[key] for key in entry.keys() - own.keys()}
            if own or not ours:
                state[index] = own
            if ours and index in places:
                loaded["entries"][id(places[index])] = ours
        self.loaded[id(optimizer)] = loaded
        try:
            if len(self.loaded) == len(self.optimizers) and any(part["options"] for part in self.loaded.values()):
                self.whitening.check_state_dict(self._put_together())
        except BaseException:
            self.loaded = {}
            raise
        groups = [{key: v for key, v in g.items() if not key.startswith(PREFIX) or key == _MARK} for g in groups]
        return {**state_dict, "state": state, "param_groups": groups}

    def after_load(self, _: Optimizer) -> None:
        """Load the whitening's state, once all optimizers have loaded their states."""
        if len(self.loaded) < len(self.optimizers):
            return
        whole, self.waiting = self._put_together(), {}
        saved = any(part["options"] for part in self.loaded.values())
        self.loaded = {}
        if saved:
            self.whitening.load_state_dict(whole)
            return
        warn("whiten: this state was saved by an optimizer that was not whitened; the window starts empty")
        self.whitening.state.clear()

    def _put_together(self) -> dict[str, Any]:
        """The state_dict of the whitening, from the parts of all optimizers."""
        parts = list(self.loaded.values())
        options: dict[str, Any] = next((part["options"] for part in parts if part["options"]), {})
        entries = {key: entry for part in parts for key, entry in part["entries"].items()}
        groups: list[Group] = []
        state: dict[int, Any] = {}
        numbers = iter(range(len(list(_parameters(self.whitening)))))
        for group in self.whitening.param_groups:
            places = [(next(numbers), parameter) for parameter in group["params"]]
            state |= {number: entries[id(p)] for number, p in places if id(p) in entries}
            kept = {key: value for key, value in group.items() if key not in ("params", FORMAT_KEY)}
            groups.append({**kept, **options, "params": [number for number, _ in places]})
        part = next((part[PART_KEY] for part in parts if part[PART_KEY] is not None), None)
        return {"state": state, "param_groups": groups, **({} if part is None else {PART_KEY: part})}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _indices(packed_groups: list[Group]) -> list[Any]:
    """The keys of the parameters in a state_dict, in the order of the parameters."""
    return [index for group in packed_groups for index in group["params"]]


def _foreign(state_dict: Any) -> set[Any]:  # noqa: ANN401 - anything that a file can hold
    """The keys of what an optimizer keeps for no parameter, as MADGRAD its count of steps; torch loads it as it is."""
    try:
        named, state = set(_indices(state_dict["param_groups"])), state_dict["state"]
        ours = {k for k, v in state.items() if isinstance(v, dict) and any(str(key).startswith(PREFIX) for key in v)}
        kinds = set(map(type, named))  # a number that no group names is a parameter that was lost
        return {key for key in set(state) - named - ours if type(key) not in kinds}
    except (AttributeError, KeyError, TypeError):
        return set()  # `check_form` says what is wrong


def _gradients(optimizer: Optimizer) -> list[tuple["weakref.ref[Tensor]", int]]:
    """The gradients of an optimizer, each with its version: autograd counts what is written into a tensor."""
    found = [p.grad for p in _parameters(optimizer) if p.grad is not None]
    return [(weakref.ref(gradient), gradient._version) for gradient in found]


def _untouched(seen: list[tuple["weakref.ref[Tensor]", int]], optimizer: Optimizer) -> bool:
    """Whether the gradients are the very tensors that were seen, and nobody has written into them."""
    current = [p.grad for p in _parameters(optimizer) if p.grad is not None]
    return (
        bool(seen)
        and len(seen) == len(current)
        and all(ref() is g and version == g._version for (ref, version), g in zip(seen, current, strict=True))
    )


def _calling_scaler() -> torch.amp.GradScaler | None:
    """The GradScaler whose ``step`` is under way; it leaves no other trace for an optimizer that is not fused."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "step" and frame.f_code.co_filename.endswith("grad_scaler.py"):
            scaler = frame.f_locals.get("self")
            return scaler if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled() else None
        frame = frame.f_back
    return None


def _unscale(optimizer: Optimizer) -> None:
    """Unscale the gradients as a GradScaler would have; it leaves that to fused optimizers, by ``grad_scale``."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
    inverse = scale.double().reciprocal().float()
    torch._foreach_mul_(gradients, inverse.to(gradients[0].device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]


# ---- attaching, and copies ------------------------------------------------------------------------------------------


def attach(optimizer: Optimizer, front: FrontEnd) -> None:
    """Register the hooks, and see to it that no copy of the optimizer loses them.

    The copies of an optimizer drop its hooks. Python looks the methods that make a copy up on the object first.
    """
    for options in (optimizer.defaults, *optimizer.param_groups):
        options[_MARK] = FORMAT_VERSION
    optimizer.register_step_pre_hook(front.before_step)
    optimizer.register_state_dict_post_hook(front.after_state_dict, prepend=True)  # inside the user's hooks
    kind, itself = type(optimizer), weakref.ref(optimizer)  # no cycle: ``del optimizer`` frees the window

    def load_state_dict(state_dict: dict[str, Any]) -> None:
        optimizer = _alive(itself)
        own_way = kind.load_state_dict is not Optimizer.load_state_dict
        try:
            if own_way:  # it may look at the whole state_dict again: hooks of torch would come too late
                kind.load_state_dict(optimizer, front.before_load(optimizer, state_dict))
            else:  # closest to torch's own loading: the user's hooks see what the user has saved
                handles = (
                    optimizer.register_load_state_dict_pre_hook(front.before_load),
                    optimizer.register_load_state_dict_post_hook(front.after_load, prepend=True),
                )
                try:
                    kind.load_state_dict(optimizer, state_dict)
                finally:
                    for handle in handles:
                        handle.remove()
        except BaseException:
            front.loaded.pop(id(optimizer), None)
            raise
        if own_way:
            front.after_load(optimizer)

    def deep_copy(memo: dict[int, Any]) -> Optimizer:
        optimizer = _alive(itself)
        twin = kind.__new__(kind)
        memo[id(optimizer)] = twin
        twin.__setstate__(copy.deepcopy(kind.__getstate__(optimizer), memo))
        attach(twin, copy.deepcopy(front, memo))
        return twin

    def reduce(_: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the protocol
        return _hollow, (kind,), (kind.__getstate__(_alive(itself)), front)

    def consolidate_state_dict(to: int = 0) -> None:
        """Put what is split over ranks together on rank ``to``; every rank must call this. Lightning does."""
        if hasattr(kind, "consolidate_state_dict"):  # the optimizer splits its own state, too
            kind.consolidate_state_dict(_alive(itself), to)
        front.whitening.consolidate_state_dict(to)

    copies = {"__deepcopy__": deep_copy, "__reduce_ex__": reduce}
    saving = {"load_state_dict": load_state_dict, "consolidate_state_dict": consolidate_state_dict}
    optimizer.__dict__.update(copies | saving)


def _alive(itself: "weakref.ref[Optimizer]") -> Optimizer:
    optimizer = itself()
    assert optimizer is not None  # its own method was called
    return optimizer


def _hollow(kind: type[Optimizer]) -> Optimizer:
    """An optimizer without its state, for pickle to fill."""
    optimizer = kind.__new__(kind)
    optimizer.__dict__["__setstate__"] = functools.partial(_restore, optimizer)
    return optimizer


def _restore(optimizer: Optimizer, state: tuple[dict[str, Any], FrontEnd]) -> None:
    """Finish an optimizer that was unpickled."""
    plain, front = state
    if "whitening" in vars(front) and all(known is not optimizer for known in front.optimizers):
        raise TypeError(
            f"whiten: a shallow copy of this {type(optimizer).__name__} would lose its whitening; use copy.deepcopy, "
            "or make a new optimizer, whiten it, and load the state_dict"
        )
    del optimizer.__dict__["__setstate__"]
    optimizer.__setstate__(plain)
    attach(optimizer, front)
