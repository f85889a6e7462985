"""What a GGT step costs on a GPU: the kernels alone, the r × r part, whole steps, and the paper's step beside them.

Times are medians of CUDA events after a warm-up; the floor is 2·r·d·bytes divided by the copy bandwidth measured in the
same run. One JSON per case, with the environment, goes to --out.

    python benchmarks/gpu_step.py [--what kernels root steps scopes paper] [--quick] [--out out/gpu]
"""

import argparse
import json
import math
import os
import platform
import statistics
from pathlib import Path

import torch

from torch_ggt import GGT, inverse_root, products

GIB = 2**30


def median_ms(call, *, warmup=5, repeats=30):
    """Median milliseconds of ``call`` on the device, each call between two events of its own."""
    for _ in range(warmup):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def captured(call, *, warmup=3):
    """The same call as a CUDA graph: what the device needs when the host is not in the way."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def copy_bandwidth():
    """Bytes per second, read and written, of a device copy of 4 GiB."""
    source = torch.empty(GIB, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / (median_ms(lambda: target.copy_(source)) * 1e-3)


def environment():
    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "triton": _version("triton"),
    }


def _version(name):
    try:
        return __import__(name).__version__
    except ImportError:
        return None


def attempt(call, *arguments, **options):
    """The result, or the error as text: one variant that fails must not take the others with it."""
    try:
        return call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


# ---- the two passes ------------------------------------------------------------------------------------------------


def kernels(d, r, dtype, bandwidth):
    """Every variant of both passes, in milliseconds, beside cuBLAS and plain torch; and their errors."""
    from torch_ggt.kernels import gpu  # noqa: PLC0415 - needs Triton
    from torch_ggt.kernels.spans import Spans  # noqa: PLC0415

    d = -(-d // 64) * 64
    rows = torch.empty(r, d, dtype=dtype, device="cuda")
    for row in rows:
        row.normal_()
    v, c = rows[r // 2].float(), torch.randn(1, r, dtype=torch.float64, device="cuda")
    out = torch.empty(d, dtype=torch.float32, device="cuda")
    spans = Spans([0, d], r, "cuda")
    floor = r * d * dtype.itemsize / bandwidth * 1e3
    result = {"floor of one pass, ms": floor, "W v": {}, "WT c": {}, "WT c and update": {}, "errors": {}}

    result["W v"]["cuBLAS, no float64"] = attempt(median_ms, lambda: torch.mv(rows, v.to(dtype)))
    result["WT c"]["cuBLAS, no float64"] = attempt(median_ms, lambda: torch.mv(rows.t(), c[0].to(dtype)))
    if r * d < 2**30:
        result["W v"]["plain torch"] = attempt(median_ms, lambda: products._gram_row_by_blocks(rows, v.to(dtype)))
        result["WT c"]["plain torch"] = attempt(median_ms, lambda: products._expand_by_blocks(rows, c[0], out))
    for bits in (True, False):
        for block_rows, block_columns in ((8, 256), (8, 512), (4, 512), (16, 256), (4, 1024)):
            for warps in (4, 8):
                options = {"bits": bits, "block_rows": block_rows, "block_columns": block_columns, "warps": warps}
                result["W v"][json.dumps(options)] = attempt(
                    median_ms, lambda o=options: gpu.gram_row(rows, v, spans, **o)
                )
    for arithmetic in ("float64", "pair"):
        for block, warps in ((512, 4), (1024, 4), (1024, 8), (2048, 8), (2048, 4), (256, 2)):
            options = {"arithmetic": arithmetic, "block": block, "warps": warps}
            result["WT c"][json.dumps(options)] = attempt(
                median_ms, lambda o=options: gpu.expand(rows, c, spans, out, **o)
            )
    addresses = gpu.Addresses([d], rows.device)
    target, taken = torch.zeros(d, device="cuda"), torch.ones((), dtype=torch.bool, device="cuda")
    table = addresses.of([target])
    update = {"separate": False, "lr": 1e-3, "weight_decay": 0.1, "taken": taken}
    for block, warps in ((512, 4), (1024, 4), (1024, 8), (2048, 8), (2048, 4), (256, 2)):
        options = {"block": block, "warps": warps}
        result["WT c and update"][json.dumps(options)] = attempt(
            median_ms,
            lambda o=options: gpu.update(rows, c, table, addresses, torch.float32, spans, (0, 1), **update, **o),
        )
    if r * d < 2**30:
        exact = products._gram_row_by_blocks(rows, v.to(dtype))
        scale = exact[-1].item()
        found = gpu.gram_row(rows, v, spans)[0]
        result["errors"]["W v"] = ((found - exact).abs().max() / scale).item()
        for arithmetic in ("float64", "pair"):
            want = torch.empty(d, dtype=torch.float32, device="cuda")
            products._expand_by_blocks(rows, c[0], want)
            gpu.expand(rows, c, spans, out.fill_(math.nan), arithmetic=arithmetic)
            result["errors"][f"WT c, {arithmetic}"] = ((out - want).norm() / want.norm()).item()
    for name in ("W v", "WT c", "WT c and update"):
        times = {key: value for key, value in result[name].items() if isinstance(value, float)}
        best = min((key for key in times if key.startswith("{")), key=times.get, default=None)
        result[f"best {name}"] = best and {"variant": best, "ms": times[best], "of the floor": times[best] / floor}
    return result


# ---- the r × r part ------------------------------------------------------------------------------------------------


def root(r, batch):
    """Milliseconds of c = (N + εI)⁻¹ a, and the relative error of the step against eigh."""
    G = torch.randn(batch, r + 50, r, dtype=torch.float64, device="cuda") * torch.logspace(
        0, -4, r, dtype=torch.float64, device="cuda"
    )
    M, a = G.mT @ G, torch.zeros(batch, r, dtype=torch.float64, device="cuda")
    a[:, r // 3] = 1
    result = {}
    exact = inverse_root.coefficients(M, a, eps=1e-8, jitter=1e-6, solver="eigh")
    u = (G @ exact[..., None]).squeeze(-1)
    if batch <= 4:
        result["eigh"] = median_ms(
            lambda: inverse_root.coefficients(M, a, eps=1e-8, jitter=1e-6, solver="eigh"), repeats=10
        )
    for tolerance in (1e-6, 1e-8):

        def solve(tolerance=tolerance):
            return inverse_root.coefficients(M, a, eps=1e-8, jitter=1e-6, solver="cholesky", tolerance=tolerance)

        name = f"cholesky {tolerance:.0e}"
        result[name] = attempt(median_ms, solve)
        result[f"{name}, captured"] = attempt(lambda solve=solve: median_ms(captured(solve)))
        result[f"{name}, error"] = relative_error(G, solve(), u)
    decay = torch.ones_like(a)
    for warps, panel, block in ((4, 64, 32), (8, 64, 32), (8, 128, 32), (4, 32, 32), (4, 64, 16), (2, 32, 16)):
        variant = {"warps": warps, "panel": panel, "block": block}
        name = f"kernel {json.dumps(variant)}"

        def solve(variant=variant):
            from torch_ggt.kernels import gpu  # noqa: PLC0415 - needs Triton

            return gpu.coefficients(M, decay, a, eps=1e-8, jitter=1e-6, tolerance=1e-8, **variant)

        result[name] = attempt(median_ms, solve)
        result[f"{name}, captured"] = attempt(lambda solve=solve: median_ms(captured(solve)))
        result[f"{name}, error"] = attempt(lambda solve=solve: relative_error(G, solve(), u))
    return result


def relative_error(G, c, u):
    """Of the step G c, the largest of a batch."""
    return (((G @ c[..., None]).squeeze(-1) - u).norm(dim=-1) / u.norm(dim=-1)).max().item()


# ---- whole steps ---------------------------------------------------------------------------------------------------


def make_parameters(d, tensors):
    """``tensors`` parameters of d elements together, of all sizes, odd ones among them, with gradients."""
    shares = torch.linspace(0.2, 1.8, tensors, dtype=torch.float64)
    sizes = [max(1, int(share)) for share in shares / shares.sum() * d]
    sizes[-1] += d - sum(sizes)
    parameters = [torch.nn.Parameter(torch.zeros(size, device="cuda")) for size in sizes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


def step(d, r, dtype, bandwidth, *, tensors=20, scope="model", repeats=30):
    """A step in eager mode and captured, its share of the floor, launches and memory."""
    torch.cuda.empty_cache()
    parameters = make_parameters(d, tensors)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    optimizer = GGT(parameters, lr=1e-3, window=r, window_dtype=dtype, scope=scope, capturable=True)
    optimizer.step()
    # A window of noise: filling it step by step would take most of the time of this benchmark.
    for state in optimizer.state.values():
        state["window"].normal_()
    for state in optimizer.state.values():
        if "gram" in state:
            state["count"].fill_(r)
            state["decay"].fill_(1.0)
            for name in ("gram", "position"):
                state[name].zero_()
            state["gram"].copy_(torch.eye(r, dtype=torch.float64, device="cuda") * d)
    for p in parameters:
        p.grad.normal_()
    for _ in range(3):
        optimizer.step()
    peak = torch.cuda.max_memory_allocated() - before
    floor = 2 * r * d * dtype.itemsize / bandwidth * 1e3
    eager = median_ms(optimizer.step, repeats=repeats)
    replayed = attempt(lambda: median_ms(captured(optimizer.step), repeats=repeats))
    torch.cuda.set_sync_debug_mode("error")
    syncs = attempt(optimizer.step)
    torch.cuda.set_sync_debug_mode("default")
    return {
        "floor, ms": floor,
        "eager, ms": eager,
        "captured, ms": replayed,
        "eager / floor": eager / floor,
        "captured / floor": replayed / floor if isinstance(replayed, float) else None,
        "host synchronizations": syncs or 0,
        "launches": attempt(launches, optimizer.step),
        "memory beyond window, in d float32": (peak - r * d * dtype.itemsize) / (4 * d),
    }


def launches(call):
    """How many kernels and copies one call starts, and the microseconds of the slowest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    launched = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    by_name = {}
    for event in launched:
        by_name[event.name[:80]] = by_name.get(event.name[:80], 0.0) + event.time_range.elapsed_us()
    return {"count": len(launched), "us": dict(sorted(by_name.items(), key=lambda item: -item[1])[:14])}


def paper(d, r):
    """The paper's step as it is usually written: the full Gram in float32, eigh, and the products."""
    G = torch.randn(d, r, device="cuda")
    v = G[:, 0].clone()

    def by_eigh():
        values, vectors = torch.linalg.eigh(G.t() @ G)
        root = values.clamp_min(1e-6).sqrt()
        U = G @ (vectors / root)
        projected = U.t() @ v
        return (v - U @ projected) / 1e-8 + U @ (projected / (root + 1e-8))

    def by_eigh_in_the_span():
        values, vectors = torch.linalg.eigh(G.t() @ G)
        return G @ (vectors @ (vectors[0] / (values.clamp_min(0).sqrt() + 1e-8)))

    def full_gram():
        return G.t() @ G

    return {
        "full Gram, ms": attempt(median_ms, full_gram, repeats=10),
        "literal, with U, ms": attempt(median_ms, by_eigh, warmup=2, repeats=10),
        "full Gram + eigh + one product, ms": attempt(median_ms, by_eigh_in_the_span, warmup=2, repeats=10),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = ["kernels", "root", "steps", "scopes", "paper"]
    parser.add_argument("--what", nargs="+", choices=choices, default=choices)
    parser.add_argument("--quick", action="store_true", help="the cases with a target only")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out/gpu")))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch sees none")
    torch.manual_seed(0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    bandwidth = copy_bandwidth()
    print(json.dumps({**environment(), "copy bandwidth, TB/s": bandwidth / 1e12}))

    float32, bfloat16 = torch.float32, torch.bfloat16
    targets = [(5_300_000, 200, bfloat16), (5_300_000, 200, float32), (100_000_000, 50, bfloat16)]
    grid = [
        (d, r, t)
        for d in (100_000, 1_000_000, 5_300_000)
        for r in (10, 20, 50, 100, 200, 400)
        for t in (bfloat16, float32)
    ]
    grid += [(100_000_000, r, t) for r in (10, 20, 50, 100) for t in (bfloat16, float32)]
    sizes = targets if arguments.quick else list(dict.fromkeys([*targets, *grid]))

    def record(name, what, make):
        torch.cuda.empty_cache()
        result = attempt(make)
        case = {"case": name, **what, "result": result, "copy bandwidth": bandwidth, "environment": environment()}
        (arguments.out / f"{name}.json").write_text(json.dumps(case, indent=2))
        print(name, json.dumps(result, indent=1), flush=True)

    for d, r, dtype in sizes:
        what = {"d": d, "r": r, "dtype": str(dtype)}
        label = f"d{d}_r{r}_{str(dtype).removeprefix('torch.')}"
        if "kernels" in arguments.what and (d, r, dtype) in [
            *targets,
            (100_000, 20, float32),
            (1_000_000, 50, bfloat16),
        ]:
            record(f"kernels_{label}", what, lambda d=d, r=r, t=dtype: kernels(d, r, t, bandwidth))
        if "steps" in arguments.what:
            record(f"step_{label}", what, lambda d=d, r=r, t=dtype: step(d, r, t, bandwidth))
    if "root" in arguments.what:
        for r, batch in ((20, 1), (50, 1), (100, 1), (200, 1), (400, 1), (50, 80), (20, 300)):
            record(f"root_r{r}_batch{batch}", {"r": r, "batch": batch}, lambda r=r, b=batch: root(r, b))
    if "scopes" in arguments.what:
        for scope in ("model", "parameter"):
            what = {"d": 10_000_000, "r": 50, "dtype": str(float32), "scope": scope, "tensors": 80}
            record(
                f"scope_{scope}",
                what,
                lambda s=scope: step(10_000_000, 50, float32, bandwidth, tensors=80, scope=s, repeats=15),
            )
    if "paper" in arguments.what:
        record("paper_d5300000_r200", {"d": 5_300_000, "r": 200}, lambda: paper(5_300_000, 200))


if __name__ == "__main__":
    main()
