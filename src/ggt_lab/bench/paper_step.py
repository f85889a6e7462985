"""The step of the paper, in O(dr²): the whole Gram and its eigenvectors, or the SVD of the window (claim O2)."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ggt_lab.bench.optimizer_step import fill, make_optimizer, make_parameters
from ggt_lab.bench.timing import attempt, interleaved, seconds_of, summarize

__all__ = ["METHODS", "by_eigh", "by_eigh_in_the_span", "by_svd", "paper"]

_EPS = 1e-8
_BLOCK = 5  # steps between two waits for the device; in training the host runs ahead as well
_LONG = 0.1  # seconds of a call after which waiting for the device no longer matters
_SMALLEST = 1e-6  # smaller eigenvalues, in units of the mean, are rounding noise of float32


def by_eigh(G: Tensor, v: Tensor) -> Tensor:
    """The paper's formula with U from GᵀG = V Λ Vᵀ: u = U [(√Λ + ε)⁻¹] Uᵀ v + (v − U Uᵀ v)/ε.

    Args:
        G: (d, r), float32.
        v: (d,).
    """
    values, vectors = torch.linalg.eigh(G.t() @ G)
    root = values.clamp_min(_SMALLEST * values.mean()).sqrt()
    U = G @ (vectors / root)
    return _apply(U, root, v)


def by_svd(G: Tensor, v: Tensor, *, driver: str | None = None) -> Tensor:
    """The paper's formula with U from the thin SVD of G, the method that claim O2 calls slower.

    Args:
        G: (d, r), float32.
        v: (d,).
        driver: a driver of cuSOLVER. torch's own choice, gesvdj, fails on large windows.
    """
    U, root, _ = torch.linalg.svd(G, full_matrices=False, driver=driver)
    return _apply(U, root, v)


def by_eigh_in_the_span(G: Tensor, v: Tensor) -> Tensor:
    """The cheapest form: v is the first column of G, so that after eigh one product with G is enough."""
    del v
    values, vectors = torch.linalg.eigh(G.t() @ G)
    root = values.clamp_min(_SMALLEST * values.mean()).sqrt()
    u: Tensor = G @ (vectors @ (vectors[0] / (root + _EPS)))
    return u


def _apply(U: Tensor, root: Tensor, v: Tensor) -> Tensor:
    projected = U.t() @ v
    u: Tensor = U @ (projected / (root + _EPS)) + (v - U @ projected) / _EPS
    return u


METHODS: dict[str, dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "eigh": {"full Gram + eigh, literal": by_eigh, "full Gram + eigh, one product": by_eigh_in_the_span},
    "svd": {
        "SVD, literal": by_svd,
        **{f"SVD by {driver}": functools.partial(by_svd, driver=driver) for driver in ("gesvda", "gesvd")},
    },
}
"""The variants that a case of each method times."""


def paper(
    device: torch.device, bandwidth: float, *, d: int, r: int, method: str, rounds: int = 10, seconds: float = 60.0
) -> dict[str, Any]:
    """Times of the paper's step and of the GGT step, in turn in one process, and how many times faster GGT is.

    The comparison favours the paper's step. Its G exists already, and its time includes neither momentum nor the update
    of the parameters, while the GGT step is timed as a whole. Products are true float32 (no TF32).

    Args:
        device: the device.
        bandwidth: bandwidth of a copy; every kind of case has this argument, and it is not needed here.
        d: the number of parameters.
        r: the number of rows of the window.
        method: "eigh" or "svd".
        rounds: the number of timed blocks of each. A block is five calls, or one call if a call takes long.
        seconds: the time that all blocks may take, roughly.
    """
    del bandwidth
    assert torch.get_float32_matmul_precision() == "highest"
    result: dict[str, Any] = {"d": d, "r": r, "method": method}
    block = _BLOCK
    calls: dict[str, Callable[[], object]] = {}
    for dtype in ("float32", "bfloat16"):
        parameters = make_parameters("odd", device, d=d)
        calls[f"GGT {dtype}"] = make_optimizer("GGT", parameters, r=r, dtype=dtype)
        fill(calls[f"GGT {dtype}"], parameters, times=r + 2)
    G = torch.randn(d, r, device=device)
    v = G[:, 0].clone()
    for name, function in METHODS[method].items():
        attempt(function, G, v)  # workspaces and handles are made here
        calls[name] = functools.partial(function, G, v)
        single = attempt(seconds_of, calls[name], device)
        if isinstance(single, str):
            result.setdefault("errors", {})[name] = single
            del calls[name]
            continue
        block = 1 if single > _LONG else block
        rounds = max(3, min(rounds, int(seconds / (single * block))))
    times = interleaved(calls, device, rounds=rounds, block=block)
    result["times"] = {name: summarize(values).as_dict() for name, values in times.items()}
    for dtype in ("float32", "bfloat16"):
        ours = result["times"][f"GGT {dtype}"]["median_ms"]
        result[f"over_GGT_{dtype}"] = {
            name: result["times"][name]["median_ms"] / ours for name in calls if not name.startswith("GGT")
        }
    if "errors" in result and len(result["errors"]) == len(METHODS[method]):
        raise RuntimeError(f"none of the paper's variants ran: {result['errors']}")
    return result
