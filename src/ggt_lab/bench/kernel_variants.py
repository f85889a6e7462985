"""Every variant of the GPU kernels, timed by itself. The defaults of the kernels were chosen by these times."""

import itertools
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ggt_lab.bench.timing import attempt, captured, measure
from torch_ggt import coefficients
from torch_ggt.backends import plain
from torch_ggt.formats import BlockFormat, format_of
from torch_ggt.layout import ALIGNMENT

__all__ = ["kernels", "relative_error", "root"]

_LARGEST_CHECKED = 2**30  # elements of W that plain torch is still tried on
_EPS, _JITTER = 1e-8, 1e-6


def kernels(device: torch.device, bandwidth: float, *, d: int, r: int, dtype: str) -> dict[str, Any]:
    """Milliseconds of the variants of both passes over a window, beside cuBLAS and plain torch, and their errors.

    Args:
        device: a GPU.
        bandwidth: bytes per second of a copy.
        d: the number of columns; it is rounded up to whole vectors.
        r: the number of rows.
        dtype: the format of the rows.
    """
    from torch_ggt.backends.triton import passes as gpu  # noqa: PLC0415 - needs Triton
    from torch_ggt.backends.triton import tensors  # noqa: PLC0415
    from torch_ggt.backends.triton.spans import Spans  # noqa: PLC0415

    d = -(-d // ALIGNMENT) * ALIGNMENT
    stored = format_of(dtype)
    if isinstance(stored, BlockFormat):
        return _integer_kernels(device, bandwidth, stored, d=d, r=r)
    kind: torch.dtype = stored.dtype
    rows = torch.empty(r, d, dtype=kind, device=device)
    for row in rows:
        row.normal_()
    v, c = rows[r // 2].float(), torch.randn(1, r, dtype=torch.float64, device=device)
    out = torch.empty(d, dtype=torch.float32, device=device)
    spans = Spans([0, d], r, device)
    floor = r * d * kind.itemsize / bandwidth * 1e3

    def ms(call: Callable[[], object]) -> Any:  # noqa: ANN401 - a time, or an error in words
        return attempt(_ms, call, device)

    passes: dict[str, dict[str, Any]] = {"W v": {}, "WT c": {}, "WT c and update": {}}
    result: dict[str, Any] = {"d": d, "r": r, "dtype": dtype, "floor_of_one_pass_ms": floor, "errors": {}}
    passes["W v"]["cuBLAS, no float64"] = ms(lambda: torch.mv(rows, v.to(kind)))
    passes["WT c"]["cuBLAS, no float64"] = ms(lambda: torch.mv(rows.t(), c[0].to(kind)))
    checked = r * d < _LARGEST_CHECKED
    if checked:
        passes["W v"]["plain torch"] = ms(lambda: plain.gram_row_by_blocks(rows, v.to(kind)))
        passes["WT c"]["plain torch"] = ms(lambda: plain.expand_by_blocks(rows, c[0], out))
    passes["W v"]["default"] = ms(lambda: gpu.gram_row(rows, v, spans))
    shapes = ((4, 1024, 4), (4, 2048, 8), (8, 1024, 4), (8, 512, 4))
    for (block_rows, block_columns, warps), stages, vector in itertools.product(
        shapes, (1, 3), (4, 16 // kind.itemsize)
    ):
        gram: dict[str, Any] = {"block_rows": block_rows, "block_columns": block_columns, "warps": warps}
        gram |= {"stages": stages, "vector": vector}
        passes["W v"][json.dumps(gram)] = ms(partial(gpu.gram_row, rows, v, spans, **gram))
    blocks = ((512, 4), (1024, 4), (2048, 8), (2048, 4))
    for block, warps in blocks:
        expand: dict[str, Any] = {"block": block, "warps": warps}
        passes["WT c"][json.dumps(expand)] = ms(partial(gpu.expand, rows, c, spans, out, **expand))
    target = torch.zeros_like(out)
    update = _update_of(target)
    for block, warps in blocks:
        options: dict[str, Any] = {"block": block, "warps": warps}
        passes["WT c and update"][json.dumps(options)] = ms(
            partial(tensors.update, rows, c, spans=spans, **update, **options)
        )
    if checked:
        exact = plain.gram_row_by_blocks(rows, v.to(kind))
        found = gpu.gram_row(rows, v, spans)[0]
        result["errors"]["W v"] = ((found - exact).abs().max() / exact[-1]).item()
        want = torch.empty(d, dtype=torch.float32, device=device)
        plain.expand_by_blocks(rows, c[0], want)
        gpu.expand(rows, c, spans, out.fill_(math.nan))
        result["errors"]["WT c"] = ((out - want).norm() / want.norm()).item()
    return {**result, **_best(passes, floor), **passes}


def _update_of(target: Tensor) -> dict[str, Any]:
    """What `tensors.update` is given beside the window, to change one parameter. It must live on."""
    from torch_ggt.backends.triton import tensors  # noqa: PLC0415 - needs Triton

    addresses = tensors.Addresses([target.numel()], target.device)
    assert addresses.hold([target])
    taken = torch.ones((), dtype=torch.bool, device=target.device)
    given = {"parameters": addresses, "chosen": (0, 1), "matrix_of": None, "taken": taken}
    return {**given, "lr": 1e-3, "weight_decay": 0.1}


def _best(passes: Mapping[str, Mapping[str, Any]], floor: float) -> dict[str, Any]:
    """The fastest variant of each pass."""
    found = {}
    for name, times in passes.items():
        ran = {key: value for key, value in times.items() if isinstance(value, float) and key.startswith("{")}
        if ran:
            best = min(ran, key=lambda key: ran[key])
            found[f"best {name}"] = {"variant": best, "ms": ran[best], "of_the_floor": ran[best] / floor}
    return found


_GRAM_TILES = {  # block_rows, block, warps, stages
    "int8": ((4, 2048, 4, 1), (4, 2048, 8, 1), (4, 2048, 4, 3), (8, 2048, 4, 1), (4, 1024, 2, 1), (8, 1024, 4, 1)),
    "int4": ((4, 4096, 4, 1), (4, 4096, 8, 1), (4, 4096, 4, 3), (2, 4096, 4, 1), (4, 2048, 2, 1), (8, 4096, 8, 1)),
}
_EXPAND_TILES = ((2048, 4, 1), (1024, 4, 1), (2048, 8, 1), (1024, 2, 1), (4096, 8, 1), (1024, 4, 2))
# Block, warps, and how many times as many rows are loaded together as by default.


def _integer_kernels(
    device: torch.device, bandwidth: float, stored: BlockFormat, *, d: int, r: int, tiles: int | None = None
) -> dict[str, Any]:
    """As `kernels` for rows of integers: also the time to encode a row, and to write it. At most ``tiles`` variants."""
    from torch_ggt.backends.triton import coded as gpu  # noqa: PLC0415 - needs Triton
    from torch_ggt.backends.triton import tensors  # noqa: PLC0415
    from torch_ggt.backends.triton.spans import Spans  # noqa: PLC0415

    rows = stored.allocate(r, d, device)
    for slot in range(r):
        rows.write(slot, torch.randn(d, device=device))
    v, c = torch.randn(d, device=device), torch.randn(1, r, dtype=torch.float64, device=device)
    out, spans = torch.zeros(d, device=device), Spans([0, d], r, device)
    slots = torch.full((1,), r // 2, dtype=torch.int64, device=device)
    floor = stored.bytes(r, d) / bandwidth * 1e3

    def ms(call: Callable[[], object]) -> Any:  # noqa: ANN401 - a time, or an error in words
        return attempt(_ms, call, device)

    kept = torch.full((1,), 0.5, dtype=torch.float64, device=device), v
    target = torch.zeros_like(out)
    update = _update_of(target) | {"kept": kept}
    passes: dict[str, dict[str, Any]] = {"W v": {}, "WT c": {}, "WT c and update": {}, "the row": {}}
    passes["the row"]["encode"] = ms(lambda: gpu.encode(v, stored))
    passes["the row"]["write"] = ms(lambda: gpu.write(rows, v, slots, spans))
    passes["W v"]["default"] = ms(lambda: gpu.gram_row(rows, v, spans))
    passes["WT c"]["default, with v"] = ms(lambda: gpu.expand(rows, c, spans, out, kept=kept[0]))
    passes["WT c and update"]["default, gradients"] = ms(
        lambda: tensors.update(rows, c, spans=spans, **update, replace=True)
    )
    result: dict[str, Any] = {"d": d, "r": r, "dtype": stored.name, "floor_of_one_pass_ms": floor, "errors": {}}
    if r * d < _LARGEST_CHECKED:
        exact, found = plain.gram_row(rows, v), gpu.gram_row(rows, v, spans)[0]
        result["errors"]["W v"] = ((found - exact).abs().max() / exact[-1]).item()
        want = plain.expand(rows, c[0], torch.eye(r, dtype=torch.float64, device=device), torch.empty_like(out))
        gpu.expand(rows, c, spans, out.fill_(math.nan))
        result["errors"]["WT c"] = ((out - want).norm() / want.norm()).item()
    for block_rows, block, warps, stages in _GRAM_TILES[stored.name][:tiles]:
        gram = {"block_rows": block_rows, "block": block, "warps": warps, "stages": stages}
        passes["W v"][json.dumps(gram)] = ms(partial(gpu.gram_row, rows, v, spans, **gram))
    for block, warps, unroll in _EXPAND_TILES[:tiles]:
        tile: dict[str, Any] = {"block": block, "warps": warps, "unroll": unroll * gpu.rows_at_a_time(r)}
        passes["WT c"][json.dumps(tile)] = ms(partial(gpu.expand, rows, c, spans, out, **tile))
        passes["WT c and update"][json.dumps(tile)] = ms(
            partial(tensors.update, rows, c, spans=spans, **update, **tile)
        )
    return {**result, **_best(passes, floor), **passes}


def root(device: torch.device, bandwidth: float, *, r: int, batch: int) -> dict[str, Any]:
    """Milliseconds of c = (N + εI)⁻¹ a by each solver, and the relative error of the step against eigh.

    Args:
        device: the device; the kernels need a GPU.
        bandwidth: bandwidth of a copy; every kind of case has this argument, and it is not needed here.
        r: the size of a matrix.
        batch: the number of matrices.
    """
    del bandwidth
    options: Any = {"dtype": torch.float64, "device": device}
    G = torch.randn(batch, r + 50, r, **options) * torch.logspace(0, -4, r, **options)
    M, a = G.mT @ G, torch.zeros(batch, r, **options)
    a[:, r // 3] = 1

    def by_torch(solver: str, tolerance: float = 1e-8) -> Tensor:
        return coefficients(M, a, eps=_EPS, jitter=_JITTER, solver=solver, tolerance=tolerance)

    u = (G @ by_torch("eigh")[..., None]).squeeze(-1)
    result: dict[str, Any] = {"r": r, "batch": batch}
    if batch <= 4:  # a loop over the matrices, on a GPU
        result["eigh"] = measure(lambda: by_torch("eigh"), device, repeats=10).median_ms
    for tolerance in (1e-6, 1e-8):
        name = f"cholesky {tolerance:.0e}"
        result[name] = attempt(_ms, partial(by_torch, "cholesky", tolerance), device)
        result[f"{name}, error"] = relative_error(G, by_torch("cholesky", tolerance), u)
    if device.type != "cuda":
        return result
    decay = torch.ones_like(a)
    variants: list[dict[str, int]] = [{}]  # the default first
    sizes = ((4, 64, 32), (4, 64, 16), (4, 32, 16), (8, 128, 16))
    variants += [{"warps": warps, "panel": panel, "block": block} for warps, panel, block in sizes]
    for variant in variants:
        name = f"kernel {json.dumps(variant)}" if variant else "kernel"

        def solve(variant: dict[str, int] = variant) -> Tensor:
            from torch_ggt.backends.triton import root  # noqa: PLC0415 - needs Triton

            found: Tensor = root.coefficients(M, decay, a, eps=_EPS, jitter=_JITTER, tolerance=1e-8, **variant)
            return found

        result[name] = attempt(_ms, solve, device)
        result[f"{name}, captured"] = attempt(_captured_ms, solve, device)
        result[f"{name}, error"] = attempt(_error_of, solve, G, u)
    # This comes last: torch's batched Cholesky cannot be captured everywhere, and a failed capture spoils the process.
    result["cholesky 1e-08, captured"] = attempt(_captured_ms, partial(by_torch, "cholesky"), device)
    return result


def _ms(call: Callable[[], object], device: torch.device) -> float:
    return measure(call, device).median_ms


def _captured_ms(call: Callable[[], object], device: torch.device) -> float:
    return measure(captured(call), device).median_ms


def _error_of(solve: Callable[[], Tensor], G: Tensor, u: Tensor) -> float:
    return relative_error(G, solve(), u)


def relative_error(G: Tensor, c: Tensor, u: Tensor) -> float:
    """The relative error of the step G c against u, the largest in a batch."""
    return float((((G @ c[..., None]).squeeze(-1) - u).norm(dim=-1) / u.norm(dim=-1)).max())
