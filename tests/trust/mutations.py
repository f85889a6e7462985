"""One operator for each kind of damage to a saved state, and the judge of what loading it does.

An operator is a function of (saved state, random generator). It changes the saved state in place and returns False
where the state has nothing that it could damage. The operators were written before the checks of the library were read.

The judge has an optimizer with parameters and state of its own load the damaged state. Three outcomes are allowed:

- "refused": ValueError, TypeError or RuntimeError with a message. Parameters, options and state of the optimizer are
  bitwise what they were, and five more steps are bitwise those of an optimizer that has loaded nothing.
- "harmless": accepted, and five more steps are bitwise those after the undamaged state.
- "legal": an edit of an option to another allowed value. The optimizer trains with that value and stays finite.

Every other outcome is a violation, and its name begins with "VIOLATION".
"""

import copy
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import Adadelta, AdaGrad, NAdam, RMSprop, whiten

Saved = dict[str, Any]
Operator = Callable[[Saved, random.Random], Any]
OPERATORS: dict[str, Operator] = {}
LEGAL: set[str] = set()
WINDOW = 6


def operator(work: Operator) -> Operator:
    OPERATORS[work.__name__] = work
    return work


# --- where damage can be done ---


def bare(name: str) -> str:
    return name.removeprefix("whiten_")


def is_ours(saved: Saved, name: str) -> bool:
    """Whether an entry belongs to torch_ggt: the state of torch's own optimizer below `whiten` does not."""
    wrapped = any("whiten_window" in group for group in saved["param_groups"])
    return name.startswith("whiten_") or not wrapped


def entries(saved: Saved, *names: str, floats: bool = False) -> Iterator[tuple[dict[str, Any], str]]:
    """The (state of a parameter, name) of each entry; of those called ``names``, or of all but the sums."""
    for entry in saved["state"].values():
        for name, value in entry.items():
            wanted = bare(name) in names if names else bare(name) not in ("sums", "skipped")
            if wanted and is_ours(saved, name) and torch.is_tensor(value) and (value.is_floating_point() or not floats):
                yield entry, name


def some(saved: Saved, rng: random.Random, *names: str, floats: bool = False) -> tuple[dict[str, Any], str] | None:
    found = list(entries(saved, *names, floats=floats))
    return rng.choice(found) if found else None


def on(*names: str, floats: bool = False) -> Callable[[Callable[[Tensor, random.Random], Any]], Operator]:
    """An operator from a function(tensor, rng) → the damaged tensor, on one entry called ``names``."""

    def make(damage: Callable[[Tensor, random.Random], Any]) -> Operator:
        def work(saved: Saved, rng: random.Random) -> Any:
            found = some(saved, rng, *names, floats=floats)
            if found is None:
                return False
            entry, name = found
            entry[name] = damage(entry[name].clone(), rng)
            return True

        work.__name__ = damage.__name__
        return operator(work)

    return make


def twins(saved: Saved, *names: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Two parameters whose entries of one name have one shape, and differ."""
    states = list(saved["state"].values())
    for i, one in enumerate(states):
        for other in states[i + 1 :]:
            for name in one.keys() & other.keys():
                if bare(name) in names and is_ours(saved, name) and one[name].shape == other[name].shape:
                    yield one, other, name


def put(tensor: Tensor, rng: random.Random, value: float) -> Tensor:
    tensor.view(-1)[rng.randrange(tensor.numel())] = value
    return tensor


WINDOWS = ("window", "updates")
BUFFERS = ("momentum_buffer", "exp_avg_sq", "row_squares", "step_buffer")
GRAMS = ("gram", "updates_gram")
DECAYS = ("decay", "updates_decay")
MOMENTA = ("momentum", "updates_momentum")
POSITIONS = ("position", "updates_position")
COUNTS = ("count", "updates_count")
NUMBERS = ("steps", "mu_correction", "step")


# --- any tensor ---


@on(floats=True)
def any_nan(t: Tensor, rng: random.Random) -> Tensor:
    return put(t, rng, math.nan)


@on(floats=True)
def any_inf(t: Tensor, rng: random.Random) -> Tensor:
    return put(t, rng, rng.choice((math.inf, -math.inf)))


@on(floats=True)
def any_element(t: Tensor, rng: random.Random) -> Tensor:
    i = rng.randrange(t.numel())
    t.view(-1)[i] = t.view(-1)[i] * 1.5 + 0.1
    return t


@on(floats=True)
def any_last_bit(t: Tensor, rng: random.Random) -> Tensor:
    i = rng.randrange(t.numel())
    t.view(-1)[i] = torch.nextafter(t.view(-1)[i], torch.tensor(9.0, dtype=t.dtype))
    return t


@on()
def any_one_bit(t: Tensor, rng: random.Random) -> Tensor:
    data = t.reshape(-1).contiguous().view(torch.uint8)
    data[rng.randrange(data.numel())] ^= 1 << rng.randrange(8)
    return data.view(t.dtype).reshape(t.shape)


@on()
def any_sign(t: Tensor, rng: random.Random) -> Tensor:
    return -t


@on()
def any_scaled(t: Tensor, rng: random.Random) -> Tensor:
    return t * rng.choice((2, 3, -5))


@on()
def any_zeroed(t: Tensor, rng: random.Random) -> Tensor:
    return torch.zeros_like(t)


@on()
def any_to_bfloat16(t: Tensor, rng: random.Random) -> Tensor:
    return t.bfloat16()


@on()
def any_to_float64(t: Tensor, rng: random.Random) -> Tensor:
    return t.double()


@on()
def any_to_int(t: Tensor, rng: random.Random) -> Tensor:
    return t.to(torch.int32)


@on()
def any_to_bool(t: Tensor, rng: random.Random) -> Tensor:
    return t != 0


@on()
def any_to_complex(t: Tensor, rng: random.Random) -> Tensor:
    return t.to(torch.complex64)


@on()
def any_flat(t: Tensor, rng: random.Random) -> Tensor:
    return t.reshape(-1)


@on()
def any_one_dimension_more(t: Tensor, rng: random.Random) -> Tensor:
    return t[None]


@on()
def any_cut(t: Tensor, rng: random.Random) -> Tensor:
    return t[:-1] if t.dim() else t.new_zeros(0)


@on()
def any_longer(t: Tensor, rng: random.Random) -> Tensor:
    return torch.cat([t, t]) if t.dim() else torch.stack([t, t])


@on()
def any_empty(t: Tensor, rng: random.Random) -> Tensor:
    return t.new_zeros(0)


@on()
def any_transposed(t: Tensor, rng: random.Random) -> Tensor:
    return t.transpose(0, -1) if t.dim() else t


@on()
def any_list(t: Tensor, rng: random.Random) -> Any:
    return t.tolist()


@on()
def any_text(t: Tensor, rng: random.Random) -> Any:
    return "a text"


@on()
def any_none(t: Tensor, rng: random.Random) -> Any:
    return None


@on()
def any_sparse(t: Tensor, rng: random.Random) -> Tensor:
    return t.to_sparse() if t.dim() else t


@on()
def any_meta(t: Tensor, rng: random.Random) -> Tensor:
    return t.to("meta")


@operator
def any_dropped(saved: Saved, rng: random.Random) -> Any:
    found = some(saved, rng)
    return found is not None and found[0].pop(found[1]) is not None


@operator
def any_renamed(saved: Saved, rng: random.Random) -> Any:
    found = some(saved, rng)
    if found is None:
        return False
    found[0][found[1] + "_old"] = found[0].pop(found[1])
    return True


@operator
def any_expanded(saved: Saved, rng: random.Random) -> Any:
    found = some(saved, rng, *WINDOWS, *GRAMS)
    if found is None:
        return False
    entry, name = found
    entry[name] = entry[name][:1].expand(entry[name].shape)
    return True


# --- windows ---


@on(*WINDOWS)
def window_rows_permuted(t: Tensor, rng: random.Random) -> Tensor:
    return t[torch.tensor(rng.sample(range(len(t)), len(t)))]


@on(*WINDOWS)
def window_two_rows_swapped(t: Tensor, rng: random.Random) -> Tensor:
    i, j = rng.sample(range(len(t)), 2)
    return t.index_copy(0, torch.tensor([i, j]), t[[j, i]])


@on(*WINDOWS)
def window_rolled(t: Tensor, rng: random.Random) -> Tensor:
    return t.roll(1, 0)


@on(*WINDOWS)
def window_columns_permuted(t: Tensor, rng: random.Random) -> Tensor:
    return t.flatten(1).flip(1).reshape(t.shape)  # its Gram is the Gram of the window


@on(*WINDOWS)
def window_column_sign(t: Tensor, rng: random.Random) -> Tensor:
    flat = t.flatten(1)
    flat[:, rng.randrange(flat.shape[1])] *= -1  # its Gram is the Gram of the window
    return flat.reshape(t.shape)


@on(*WINDOWS)
def window_row_zeroed(t: Tensor, rng: random.Random) -> Tensor:
    t[rng.randrange(len(t))] = 0
    return t


@on(*WINDOWS)
def window_row_scaled(t: Tensor, rng: random.Random) -> Tensor:
    t[rng.randrange(len(t))] *= 2
    return t


@on(*WINDOWS)
def window_huge(t: Tensor, rng: random.Random) -> Tensor:
    return t * 1e30


@operator
def window_all_signs(saved: Saved, rng: random.Random) -> Any:
    for entry, name in list(entries(saved, *WINDOWS)):
        entry[name] = -entry[name]  # no Gram changes


@operator
def window_swapped(saved: Saved, rng: random.Random) -> Any:
    found = list(twins(saved, *WINDOWS))
    if not found:
        return False
    one, other, name = rng.choice(found)
    one[name], other[name] = other[name], one[name]
    return True


@operator
def window_duplicated(saved: Saved, rng: random.Random) -> Any:
    found = list(twins(saved, *WINDOWS))
    if not found:
        return False
    one, other, name = rng.choice(found)
    one[name] = other[name].clone()
    return True


# --- momentum and the other buffers ---


@on(*BUFFERS)
def buffer_sign(t: Tensor, rng: random.Random) -> Tensor:
    return -t


@on(*BUFFERS)
def buffer_halved(t: Tensor, rng: random.Random) -> Tensor:
    return t / 2


@on(*BUFFERS)
def buffer_cast_and_back(t: Tensor, rng: random.Random) -> Tensor:
    return t.bfloat16().to(t.dtype)


@on(*BUFFERS)
def buffer_permuted(t: Tensor, rng: random.Random) -> Tensor:
    return t.reshape(-1).flip(0).reshape(t.shape)


@operator
def buffer_dropped(saved: Saved, rng: random.Random) -> Any:
    found = some(saved, rng, *BUFFERS)
    return found is not None and found[0].pop(found[1]) is not None


@operator
def buffers_all_dropped(saved: Saved, rng: random.Random) -> Any:
    found = list(entries(saved, *BUFFERS))
    for entry, name in found:
        del entry[name]
    return bool(found)


@operator
def buffer_swapped(saved: Saved, rng: random.Random) -> Any:
    found = list(twins(saved, *BUFFERS))
    if not found:
        return False
    one, other, name = rng.choice(found)
    one[name], other[name] = other[name], one[name]
    return True


@operator
def parameters_swapped(saved: Saved, rng: random.Random) -> Any:
    """All that two parameters of one shape have each for itself, with every sum."""
    found = list(twins(saved, "window"))
    if not found:
        return False
    one, other, _ = rng.choice(found)
    for name in [n for n in one.keys() & other.keys() if is_ours(saved, n)]:
        one[name], other[name] = other[name], one[name]
    return True


# --- the Gram matrix ---


@on(*GRAMS)
def gram_diagonal(t: Tensor, rng: random.Random) -> Tensor:
    t[i, i] = 1.1 * t[i := rng.randrange(3), i] + 0.1
    return t


@on(*GRAMS)
def gram_off_diagonal(t: Tensor, rng: random.Random) -> Tensor:
    t[0, 1] = t[1, 0] = t[0, 1] * 1.1 + 0.1
    return t


@on(*GRAMS)
def gram_slightly(t: Tensor, rng: random.Random) -> Tensor:
    t[0, 1] = t[1, 0] = t[0, 1] * (1 + 1e-9)
    return t


@on(*GRAMS)
def gram_asymmetric(t: Tensor, rng: random.Random) -> Tensor:
    t[0, 2] = t[0, 2] * 0.5 + 0.1
    return t


@on(*GRAMS)
def gram_permuted(t: Tensor, rng: random.Random) -> Tensor:
    order = torch.tensor(rng.sample(range(len(t)), len(t)))
    return t[order][:, order]


@on(*GRAMS)
def gram_scaled(t: Tensor, rng: random.Random) -> Tensor:
    return t * rng.choice((2.0, 0.5, -1.0, 1e30))


@on(*GRAMS)
def gram_its_diagonal_alone(t: Tensor, rng: random.Random) -> Tensor:
    return t.diagonal().diag()


@operator
def gram_of_another_window(saved: Saved, rng: random.Random) -> Any:
    found = list(entries(saved, *GRAMS))
    if len(found) < 2:
        return False
    (one, name), (other, others_name) = found[0], found[-1]
    one[name], other[others_name] = other[others_name], one[name]
    return True


# --- ages ---


def _on_ages(names: tuple[str, ...], word: str) -> None:
    def damage(kind: str, work: Callable[[Tensor, random.Random], Tensor]) -> None:
        work.__name__ = f"{word}_{kind}"
        on(*names)(work)

    damage("nan", lambda t, rng: put(t, rng, math.nan))
    damage("negative", lambda t, rng: put(t, rng, -0.5))
    damage("above_one", lambda t, rng: put(t, rng, 1.5))
    damage("permuted", lambda t, rng: t[torch.tensor(rng.sample(range(len(t)), len(t)))])
    damage("rolled", lambda t, rng: t.roll(1))
    damage("ones", lambda t, rng: torch.ones_like(t))
    damage("zeros", lambda t, rng: torch.zeros_like(t))
    damage("one_zero", lambda t, rng: put(t, rng, 0.0))


_on_ages(DECAYS, "decay")
_on_ages(MOMENTA, "momentum")


# --- position, count and counters ---


def _on_number(names: tuple[str, ...], word: str, kinds: dict[str, Callable[[Tensor], Tensor]]) -> None:
    for kind, change in kinds.items():

        def work(t: Tensor, rng: random.Random, change: Callable[[Tensor], Tensor] = change) -> Tensor:
            return change(t)

        work.__name__ = f"{word}_{kind}"
        on(*names)(work)


_on_number(
    POSITIONS,
    "position",
    {
        "negative": lambda t: t * 0 - 1,
        "at_r": lambda t: t * 0 + WINDOW,
        "above_r": lambda t: t + WINDOW + 3,
        "huge": lambda t: t * 0 + 2**62,
        "float": lambda t: t.float() + 0.5,
        "later": lambda t: (t + 1) % WINDOW,
        "earlier": lambda t: (t - 1) % WINDOW,
    },
)
_on_number(
    COUNTS,
    "count",
    {
        "negative": lambda t: t * 0 - 1,
        "less": lambda t: t - 1,
        "more": lambda t: t + 1,
        "zero": lambda t: t * 0,
        "full": lambda t: t * 0 + WINDOW,
        "huge": lambda t: t * 0 + 2**62,
        "float": lambda t: t.float() + 0.5,
    },
)
_on_number(("skipped",), "skipped", {"negative": lambda t: t - 3, "float": lambda t: t.float() + 0.5})
_on_number(
    NUMBERS,
    "number",
    {
        "more": lambda t: t + 1,
        "zero": lambda t: t * 0,
        "negative": lambda t: -t - 1,
        "nan": lambda t: t * math.nan,
        "huge": lambda t: t * 0 + 1e30,
    },
)


# --- sums, if the format has any ---


@on("sums")
def sums_changed(t: Tensor, rng: random.Random) -> Tensor:
    t.view(-1)[rng.randrange(t.numel())] += 1
    return t


@on("sums")
def sums_cut(t: Tensor, rng: random.Random) -> Tensor:
    return t[:-1]


@operator
def sums_dropped(saved: Saved, rng: random.Random) -> Any:
    found = list(entries(saved, "sums"))
    for entry, name in found:
        del entry[name]
    return bool(found)


@operator
def sums_of_one_dropped(saved: Saved, rng: random.Random) -> Any:
    found = some(saved, rng, "sums")
    return found is not None and found[0].pop(found[1]) is not None


@operator
def sums_swapped(saved: Saved, rng: random.Random) -> Any:
    found = list(entries(saved, "sums"))
    if len(found) < 2:
        return False
    (one, name), (other, _) = rng.sample(found, 2)
    one[name], other[name] = other[name], one[name]
    return True


# --- options ---


def _option_name(group: dict[str, Any], name: str) -> str | None:
    wrapped = "whiten_window" in group
    full = f"whiten_{name}" if wrapped else name
    return full if full in group else None


NONSENSE: dict[str, list[Any]] = {
    "lr": [math.nan, -1.0, math.inf, "fast", None, torch.tensor(math.nan), torch.ones(3)],
    "betas": [(0.9, math.nan), (1.5, 0.9), (0.9,), None, 0.9, ("a", "b"), (-0.1, 1.0), (0.9, 0.0)],
    "eps": [math.nan, -1.0, "small", None],
    "weight_decay": [math.nan, -1.0, math.inf, None, "much"],
    "window": [0, -1, 7, 2.5, "many", None, True],
    "window_dtype": [torch.int32, "float7", torch.float64, torch.float16],
    "history": ["rmsprop", "nonsense", None, 3],
    "scope": ["everything", "matrix", None],
    "finish": ["adam", "muon", None, 3],
    "finish_beta": [math.nan, 1.0, -0.1, "b"],
    "split": [0, 1000, 1.5, None],
    "sgd_scale": [math.nan, -1.0, math.inf, None],
    "jitter": [math.nan, -1.0, 2.0, 1e-30, "j"],
    "shrinkage": [math.nan, -1.0, 2.0, "much"],
    "nesterov": [1, "yes", None],
    "adjust_lr_fn": ["nonsense", None, 3],
    "solver": ["lu", None, 3],
    "momentum_decay": [math.nan, -1.0, None],
    "nonfinite": ["ignore", None],
    "maximize": ["yes", None, 2],
    "capturable": ["yes", None, 2],
}
EDITS: dict[str, list[Any]] = {
    "lr": [3e-4, torch.tensor(2e-3)],
    "eps": [1e-6],
    "weight_decay": [0.1],
    "betas": [(0.8, 0.99)],
    "sgd_scale": [0.01],
    "jitter": [1e-4],
    "shrinkage": [0.1, "auto"],
    "nesterov": [True],
    "adjust_lr_fn": ["original"],
    "solver": ["cholesky"],
    "momentum_decay": [0.01],
    "nonfinite": ["raise"],
    "maximize": [True],
    "finish_beta": [0.9],
}


def _set_option(name: str, values: list[Any]) -> Operator:
    def work(saved: Saved, rng: random.Random) -> Any:
        value = rng.choice(values)
        names = [_option_name(group, name) for group in saved["param_groups"]]
        for group, full in zip(saved["param_groups"], names, strict=True):
            if full is not None:
                group[full] = value
        return any(names)

    return work


for _name, _values in NONSENSE.items():
    OPERATORS[f"option_{_name}"] = _set_option(_name, _values)
for _name, _values in EDITS.items():
    OPERATORS[f"edit_{_name}"] = _set_option(_name, _values)
    LEGAL.add(f"edit_{_name}")


@operator
def option_dropped(saved: Saved, rng: random.Random) -> Any:
    group = rng.choice(saved["param_groups"])
    names = [n for n in NONSENSE if _option_name(group, n)]
    del group[_option_name(group, rng.choice(names))]


@operator
def option_unknown(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"][0]["momentun"] = math.nan


def _format(saved: Saved) -> list[tuple[dict[str, Any], str]]:
    return [(g, n) for g in saved["param_groups"] for n in g if n.endswith("ggt_format")]


for _word, _value in {"future": 99, "negative": -1, "text": "2", "float": 2.5, "true": True, "none": None}.items():

    def _set_format(saved: Saved, rng: random.Random, value: Any = _value) -> Any:
        for group, name in _format(saved):
            group[name] = value

    OPERATORS[f"format_{_word}"] = _set_format


@operator
def format_missing(saved: Saved, rng: random.Random) -> Any:
    for group, name in _format(saved):
        del group[name]


# --- groups and keys ---


@operator
def groups_reordered(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"].reverse()
    return len(saved["param_groups"]) > 1


@operator
def group_lost(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"].pop()


@operator
def group_twice(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"].append(copy.deepcopy(saved["param_groups"][-1]))


@operator
def group_with_params_reversed(saved: Saved, rng: random.Random) -> Any:
    group = max(saved["param_groups"], key=lambda g: len(g["params"]))
    group["params"] = group["params"][::-1]
    return len(group["params"]) > 1


@operator
def group_with_unknown_param(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"][0]["params"][0] = 77


@operator
def group_with_param_less(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"][-1]["params"].pop()


@operator
def group_with_param_twice(saved: Saved, rng: random.Random) -> Any:
    params = saved["param_groups"][-1]["params"]
    params[0] = params[-1]
    return len(params) > 1


@operator
def group_no_dict(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"][0] = rng.choice([None, [], "group"])


@operator
def groups_missing(saved: Saved, rng: random.Random) -> Any:
    del saved["param_groups"]


@operator
def groups_none(saved: Saved, rng: random.Random) -> Any:
    saved["param_groups"] = None


@operator
def state_missing(saved: Saved, rng: random.Random) -> Any:
    del saved["state"]


@operator
def state_none(saved: Saved, rng: random.Random) -> Any:
    saved["state"] = rng.choice([None, [], "state"])


@operator
def state_empty(saved: Saved, rng: random.Random) -> Any:
    saved["state"] = {}


LEGAL.add("state_empty")  # no state at all is the state of an optimizer before its first step


@operator
def state_key_lost(saved: Saved, rng: random.Random) -> Any:
    del saved["state"][rng.choice(list(saved["state"]))]


@operator
def state_key_moved(saved: Saved, rng: random.Random) -> Any:
    key = rng.choice(list(saved["state"]))
    saved["state"][key + 50] = saved["state"].pop(key)


@operator
def state_key_text(saved: Saved, rng: random.Random) -> Any:
    key = rng.choice(list(saved["state"]))
    saved["state"][str(key)] = saved["state"].pop(key)


@operator
def state_key_extra(saved: Saved, rng: random.Random) -> Any:
    saved["state"][77] = copy.deepcopy(saved["state"][rng.choice(list(saved["state"]))])


@operator
def state_entry_no_dict(saved: Saved, rng: random.Random) -> Any:
    saved["state"][rng.choice(list(saved["state"]))] = rng.choice([None, [1, 2], "window", torch.zeros(3)])


@operator
def state_entry_extra(saved: Saved, rng: random.Random) -> Any:
    wrapped = any("whiten_window" in g for g in saved["param_groups"])
    saved["state"][rng.choice(list(saved["state"]))]["whiten_more" if wrapped else "more"] = torch.zeros(3)


@operator
def state_entry_of_another_parameter(saved: Saved, rng: random.Random) -> Any:
    one, other = rng.sample(list(saved["state"]), 2)
    saved["state"][one] = copy.deepcopy(saved["state"][other])


@operator
def state_entries_swapped(saved: Saved, rng: random.Random) -> Any:
    one, other = rng.sample(list(saved["state"]), 2)
    state = saved["state"]
    state[one], state[other] = state[other], state[one]


@operator
def state_of_matrix_moved(saved: Saved, rng: random.Random) -> Any:
    """The small state of the matrix, under another parameter."""
    states = list(saved["state"].values())
    one, other = states[0], states[-1]
    for name in [n for n in one if bare(n) in GRAMS + DECAYS + MOMENTA + POSITIONS + COUNTS]:
        other[name] = one.pop(name)


@operator
def saved_no_dict(saved: Saved, rng: random.Random) -> Any:
    saved.clear()


# --- the members whose states are damaged ---


def _parameters(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (4, 3), (5,))]


def _two_groups(**options: Any) -> Callable[[list[nn.Parameter]], Any]:
    return lambda p: GGT([{"params": p[:1]}, {"params": p[1:], "lr": 2e-3}], window=WINDOW, **options)


MEMBERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "ggt": lambda p: GGT(p, window=WINDOW),
    "ggt_decayed": lambda p: GGT(p, window=WINDOW, betas=(0.9, 0.95), weight_decay=0.01),
    "gradient": lambda p: GGT(p, window=WINDOW, history="gradient", betas=(0.9, 0.95)),
    "parameter": lambda p: GGT(p, window=WINDOW, scope="parameter"),
    "group_bf16": _two_groups(scope="group", window_dtype="bfloat16", betas=(0.9, 0.99)),
    "adam_rows": lambda p: GGT(p, window=WINDOW, finish="adam", history="gradient"),
    "polar_rows": lambda p: GGT(p, window=WINDOW, finish="polar_rows"),
    "rmsprop": lambda p: RMSprop(p, window=WINDOW, momentum=0.9),
    "nadam": lambda p: NAdam(p, window=WINDOW),
    "adadelta": lambda p: Adadelta(p, window=WINDOW),
    "adagrad": lambda p: AdaGrad(p, window=WINDOW),
    "whiten": lambda p: whiten(torch.optim.AdamW(p), window=WINDOW),
}


def train(parameters: list[nn.Parameter], optimizer: Any, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def build(member: str, steps: int, seed: int) -> tuple[list[nn.Parameter], Any]:
    parameters = _parameters(seed)
    optimizer = MEMBERS[member](parameters)
    train(parameters, optimizer, steps, seed + 1)
    return parameters, optimizer


def alike(one: Any, other: Any) -> bool:
    """Bitwise, through dicts and lists."""
    if torch.is_tensor(one) or torch.is_tensor(other):
        if not (torch.is_tensor(one) and torch.is_tensor(other) and one.dtype == other.dtype):
            return False
        return torch.equal(one, other) or (one.shape == other.shape and _bits(one) == _bits(other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def _bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


# --- the judge ---


def judge(member: str, name: str, seed: int, steps: int | None = None) -> str | None:
    """What becomes of one damage: the word of the outcome, or None where the operator has nothing to damage."""
    rng = random.Random(f"{member} {name} {seed}")
    steps = rng.choice((1, 4, WINDOW, WINDOW + 3)) if steps is None else steps
    saved = copy.deepcopy(build(member, steps, 10 + seed)[1].state_dict())
    damaged = copy.deepcopy(saved)
    if OPERATORS[name](damaged, rng) is False:
        return None
    parameters, optimizer = build(member, 3, 500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            optimizer.load_state_dict(damaged)
        except (ValueError, TypeError, RuntimeError) as error:
            return _refused(member, parameters, optimizer, str(error))
        except Exception as error:
            return f"VIOLATION: {type(error).__name__} at the load"
        return _accepted(member, name, saved, parameters, optimizer)


def _refused(member: str, parameters: list[nn.Parameter], optimizer: Any, message: str) -> str:
    twin_parameters, twin = build(member, 3, 500)
    for more in (0, 5):
        train(parameters, optimizer, more, 900)
        train(twin_parameters, twin, more, 900)
        if not (alike(parameters, twin_parameters) and alike(optimizer.state_dict(), twin.state_dict())):
            return "VIOLATION: refused, but the optimizer has changed"
    return "refused" if len(message) > 20 else "VIOLATION: refused without a message"


def _accepted(member: str, name: str, saved: Saved, parameters: list[nn.Parameter], optimizer: Any) -> str:
    twin_parameters, twin = build(member, 3, 500)
    twin.load_state_dict(saved)
    try:
        train(parameters, optimizer, 5, 900)
    except Exception as error:
        return f"VIOLATION: accepted, later {type(error).__name__}"
    train(twin_parameters, twin, 5, 900)
    if not all(p.isfinite().all() for p in parameters):
        return "VIOLATION: accepted, parameters not finite"
    if alike(parameters, twin_parameters):
        return "harmless"
    return "legal" if name in LEGAL else "VIOLATION: accepted, training changed"


def campaign(
    members: list[str], names: list[str], seeds: list[int], say: Callable[[str], object] = print
) -> dict[str, Counter[str]]:
    """The outcomes of every operator on every member with every seed, counted for each operator."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    for name in names:
        for member in members:
            for seed in seeds:
                outcome = judge(member, name, seed)
                if outcome is not None:
                    counts[name][outcome] += 1
                    if outcome.startswith("VIOLATION"):
                        say(f"{name} on {member}, seed {seed}: {outcome}")
    return counts
