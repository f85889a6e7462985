"""What one late warp of `ring.admit` does to later steps, on a CPU: ``python tests/trust/late_warp.py OUT.json``.

Without its barrier, a warp that is late reads the position after it has moved. It then puts its entries of the new row
of the Gram matrix, and of the age weights, where the next row belongs. Here this happens once, in a full window; all
admissions before and after it are right. A step with "original" length is at most one.
"""

import json
import platform
import sys
from pathlib import Path

import torch

from torch_ggt import Window, solver
from torch_ggt.backends.plain import TorchBackend

BETAS = (0.9, 0.999)
WARPS = 4  # of the kernel; thread t has the entries t and t + 128


def admit(window, row, late=None):
    """Push a row; the entries of warp ``late`` go where the next row belongs. e_newest."""
    if late is None:
        return window.push(row, window.measure(row), betas=BETAS)
    sums, slot, i = window.measure(row).sums, int(window.position), torch.arange(window.size)
    taken = torch.where(i % (32 * WARPS) // 32 == late, (slot + 1) % window.size, slot)
    entries = torch.where(i == taken, sums[-1], sums[:-1])
    window.gram[taken, i] = entries
    window.gram[i, taken] = entries
    for weights, beta in ((window.decay, BETAS[1]), (window.momentum, BETAS[0])):
        weights.copy_(torch.where(i == taken, 1.0, beta * weights))
    window.rows[slot] = row.to(window.rows.dtype)
    window.position.copy_((window.position + 1) % window.size)
    window.count.copy_((window.count + 1).clamp(max=window.size))
    return torch.zeros(window.size, dtype=torch.float64).index_fill_(0, torch.tensor([slot]), 1.0)


def lengths(size, late, seed, *, columns=2300, steps=None):
    """The lengths of the steps after one admission in which warp ``late`` was late, with bfloat16 rows."""
    generator = torch.Generator().manual_seed(seed)
    window, v = Window(size, columns, dtype=torch.bfloat16, backend=TorchBackend()), torch.zeros(columns)

    def row():
        return v.mul_(BETAS[0]).add_(torch.randn(columns, generator=generator))

    for _ in range(size + size // 2 + seed):
        admit(window, row())
    newest, found = admit(window, row(), late), []
    for _ in range(size if steps is None else steps):
        c = solver.coefficients(window.moment(), newest, eps=1e-8, jitter=1e-6, solver="cholesky", tolerance=1e-8)
        found.append(float(window.expand(c, torch.zeros(columns)).double().norm()))
        newest = admit(window, row())
    return found


def main(target):
    torch.set_num_threads(1)
    found = []
    for size in (20, 64, 200):
        for late in (None, *range(1, WARPS)):
            if late is not None and 32 * late >= size:
                continue  # such a warp has no entry
            for seed in range(3 if size < 200 else 2):
                steps = lengths(size, late, seed)
                finite = [length for length in steps if length < float("inf")]
                found.append({
                    "rows": size, "late warp": late, "seed": seed, "longest": max(finite), "steps": len(steps),
                    "longer than 1.01": sum(not length <= 1.01 for length in steps),
                    "not finite": len(steps) - len(finite),
                })  # fmt: skip
                print(found[-1], flush=True)
    result = {"torch": torch.__version__, "python": platform.python_version(), "found": found}
    Path(target).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
