"""The lists of cases: what is measured, and in which order. Cases with a promised figure come first."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ggt_lab.bench.training_step import MODELS
from ggt_lab.problems.unknown_name import unknown

__all__ = ["KINDS", "SELECTIONS", "Case", "cases", "measuring_command", "named"]

KINDS = ("steps", "paper", "training", "members", "scopes", "baselines", "root", "kernels", "host", "cpu")
"""The kinds of cases that ``--what`` may name. All kinds but cpu need a GPU at their full sizes."""

SELECTIONS = {
    "lean": (
        *(f"step_d5300000_r200_{dtype}" for dtype in ("int8", "int4")),
        *(f"step_d100000000_r50_{dtype}" for dtype in ("int8", "bfloat16", "int4")),
        *("members_gpt", "members_lstm", "training_lstm_captured"),
        *(f"scope_{scope}_gpt_r50_{dtype}" for dtype in ("bfloat16", "float32") for scope in ("model", "parameter")),
        *("host_d5300000_r200_int8", "kernels_d5300000_r200_int8", "members_gpt_captured", "members_lstm_captured"),
        *("kernels_d5300000_r200_int4", "host_d100000000_r16_int8", "host_d5300000_r50_bfloat16"),
        *("kernels_d100000000_r50_int8", "kernels_d100000000_r50_int4"),
    ),
}
"""Cases that ``--only`` may name together. "lean": rows of few bytes and members, what was promised of them first."""

GPU_BYTES = 120e9
"""The largest window that is measured: an NVIDIA H200 holds it beside gradients, parameters and buffers."""


def measuring_command(kind: str) -> str:
    """The command that measures the cases of a kind, as verdicts and ``speed.json`` name it."""
    return f"ggt bench --what {kind}"


@dataclass(frozen=True)
class Case:
    """One measurement, made in a process of its own.

    Attributes:
        name: the name of the case and of its JSON file.
        kind: one of `KINDS`.
        options: arguments of the function that measures the case; plain values.
        promised: whether a promised figure depends on the case.
    """

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    promised: bool = False


def named(names: Collection[str]) -> list[Case]:
    """The cases of these names, in this order. The name of a selection (`SELECTIONS`) stands for its cases.

    Raises:
        ValueError: there is no such case.
    """
    known = {case.name: case for case in cases(KINDS)}
    wanted = dict.fromkeys(each for name in names for each in SELECTIONS.get(name, (name,)))
    for name in wanted:
        if name not in known:
            raise unknown("case", name, [*SELECTIONS, *known], "`ggt bench --list` names all cases.")
    return [known[name] for name in wanted]


def cases(what: Collection[str], *, quick: bool = False) -> list[Case]:
    """The cases of these kinds: cases with a promised figure first, kinds in the order of `KINDS`.

    Args:
        what: names among `KINDS`.
        quick: only the cases with a promised figure.

    Raises:
        ValueError: there is no such kind.
    """
    for name in what:
        if name not in KINDS:
            raise unknown("kind of case", name, KINDS, "Several may be given.")
    found = [case for kind in KINDS if kind in what for case in _MAKERS[kind]()]
    promised = [case for case in found if case.promised]
    return promised if quick else promised + [case for case in found if not case.promised]


def _steps() -> list[Case]:
    targets = [(5_300_000, 200, "bfloat16"), (5_300_000, 200, "float32"), (100_000_000, 50, "bfloat16")]
    targets += [(d, r, dtype) for dtype in ("int8", "int4") for d, r in ((5_300_000, 200), (100_000_000, 50))]
    windows = {5_300_000: (10, 20, 50, 100, 200, 400)}
    grid = [
        (d, r, dtype)
        for d in (100_000, 1_000_000, 5_300_000, 100_000_000, 1_000_000_000)
        for r in windows.get(d, (10, 50, 200, 400))
        for dtype in ("bfloat16", "float32")
        # Beside the window there are parameters, gradients and two buffers in float32.
        if d * r * (2 if dtype == "bfloat16" else 4) + 16 * d <= GPU_BYTES
    ]
    sizes = dict.fromkeys([*targets, *grid])
    return [
        Case(
            f"step_d{d}_r{r}_{dtype}",
            "steps",
            {"optimizer": "GGT", "shapes": "odd", "d": d, "r": r, "dtype": dtype},
            promised=(d, r, dtype) in targets,
        )
        for d, r, dtype in sizes
    ]


def _paper() -> list[Case]:
    sizes = [(5_300_000, 200, "eigh"), (5_300_000, 200, "svd"), (1_000_000, 50, "eigh"), (1_000_000, 50, "svd")]
    # cuSOLVER has no SVD of the largest window; the next size has as many rows.
    sizes += [(1_000_000, 200, "eigh"), (1_000_000, 200, "svd"), (100_000, 20, "eigh"), (100_000, 20, "svd")]
    return [
        Case(
            f"paper_{method}_d{d}_r{r}",
            "paper",
            {"d": d, "r": r, "method": method},
            promised=(d, r, method) == (5_300_000, 200, "eigh"),
        )
        for d, r, method in sizes
    ]


def _training() -> list[Case]:
    return [
        Case(
            f"training_{model}_{mode}",
            "training",
            # Captured steps have no work of the host, and hardly vary.
            {"model": model, "mode": mode, **({"rounds": 24} if mode == "captured" else {})},
            promised=model in ("lstm", "shake-shake"),
        )
        for model in MODELS
        for mode in ("eager", "captured")
    ]


def _members() -> list[Case]:
    return [
        Case(f"members_{model}{suffix}", "members", {"model": model, **options}, promised=True)
        for suffix, options in (("", {}), ("_captured", {"mode": "captured"}))
        for model in ("gpt", "lstm")
    ]


def _host() -> list[Case]:
    sizes = ((5_300_000, 200, "int8"), (100_000_000, 16, "int8"), (5_300_000, 50, "bfloat16"))
    return [Case(f"host_d{d}_r{r}_{dtype}", "host", {"d": d, "r": r, "dtype": dtype}) for d, r, dtype in sizes]


def _scopes() -> list[Case]:
    return [
        Case(
            f"scope_{scope}_gpt_r50_{dtype}",
            "scopes",
            {"optimizer": "GGT", "shapes": "gpt", "r": 50, "dtype": dtype, "scope": scope},
            promised=True,
        )
        for dtype in ("float32", "bfloat16")
        for scope in ("model", "parameter")
    ]


def _baselines() -> list[Case]:
    named: list[tuple[str, int | None, str | None]]
    named = [("GGT", 200, "bfloat16"), ("GGT", 200, "float32"), ("GGT", 20, "float32"), ("torchzero GGT", 20, None)]
    named += [(name, None, None) for name in ("SGD", "Adam", "Muon", "SOAP", "Shampoo")]
    made = []
    for shapes in ("lstm", "gpt"):
        for optimizer, r, dtype in named:
            options: dict[str, Any] = {"optimizer": optimizer, "shapes": shapes}
            options.update({key: value for key, value in (("r", r), ("dtype", dtype)) if value is not None})
            label = "_".join(str(part).replace(" ", "-") for part in (optimizer, r and f"r{r}", dtype) if part)
            made.append(Case(f"baseline_{shapes}_{label}", "baselines", options))
    big = {"optimizer": "torchzero GGT", "shapes": "lstm", "r": 200}
    return [*made, Case("baseline_lstm_torchzero-GGT_r200", "baselines", big)]


def _root() -> list[Case]:
    sizes = ((20, 1), (50, 1), (100, 1), (200, 1), (400, 1), (50, 80), (20, 300))
    return [Case(f"root_r{r}_batch{batch}", "root", {"r": r, "batch": batch}) for r, batch in sizes]


def _kernels() -> list[Case]:
    sizes = [(5_300_000, 200, "bfloat16"), (5_300_000, 200, "float32"), (100_000_000, 50, "bfloat16")]
    sizes += [(100_000, 20, "float32"), (1_000_000, 50, "bfloat16")]
    sizes += [(d, r, dtype) for dtype in ("int8", "int4") for d, r in ((5_300_000, 200), (100_000_000, 50))]
    return [Case(f"kernels_d{d}_r{r}_{dtype}", "kernels", {"d": d, "r": r, "dtype": dtype}) for d, r, dtype in sizes]


def _cpu() -> list[Case]:
    return [
        Case("cpu_step_d300000_r100", "cpu", {"figure": "step", "d": 300_000, "r": 100}, promised=True),
        Case("cpu_step_d1000000_r100", "cpu", {"figure": "step", "d": 1_000_000, "r": 100}, promised=True),
        Case("cpu_memory_d4000000_r5", "cpu", {"figure": "memory", "d": 4_000_000, "r": 5}, promised=True),
        Case("cpu_members", "cpu", {"figure": "members", "model": "small-gpt", "dtype": "float32"}),
        Case("cpu_torchzero_d300000_r100", "cpu", {"figure": "torchzero", "d": 300_000, "r": 100}),
        Case("cpu_bfloat16_d300000_r100", "cpu", {"figure": "step", "d": 300_000, "r": 100, "dtype": "bfloat16"}),
        Case(
            "cpu_growth_in_d",
            "cpu",
            {"figure": "growth", "sizes": [[d, 50] for d in (125_000, 250_000, 500_000, 1_000_000)]},
        ),
        Case("cpu_growth_in_r", "cpu", {"figure": "growth", "sizes": [[1_000_000, r] for r in (25, 50, 100, 200)]}),
    ]


_MAKERS = {
    "steps": _steps,
    "paper": _paper,
    "training": _training,
    "members": _members,
    "scopes": _scopes,
    "baselines": _baselines,
    "root": _root,
    "kernels": _kernels,
    "host": _host,
    "cpu": _cpu,
}
