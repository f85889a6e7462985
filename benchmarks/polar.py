"""Which iteration makes the polar factor: singular values, angle and time of the candidates behind ``finish="polar"``.

    python benchmarks/polar.py [--out polar.json]

Each candidate gets Gaussian matrices, matrices of a given condition (singular values on a logarithmic scale), and the
gradients of a small network in training. The table says between which numbers the singular values end, the cosine of
the angle to the factor of the SVD, and the milliseconds on this machine. The iterations run in float32 and bfloat16.
"""

import argparse
import json
import math
import platform
import time

import torch
from torch import Tensor, nn

from torch_ggt.polar import chain, polar

MUON = ((3.4445, -4.7750, 2.0315),) * 5  # torch.optim.Muon
SIZES = ((256, 256), (128, 512))


def newton_schulz(matrix: Tensor, polynomials, dtype, *, by_gram_norm: bool) -> Tensor:
    """a X + (b A + c A²) X for each of the polynomials, A = X Xᵀ; the norm is that of X, or of its Gram matrix."""
    X = _scaled(matrix, dtype, by_gram_norm)
    for a, b, c in polynomials:
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return X.float()


def gram_newton_schulz(matrix: Tensor, polynomials, dtype, *, by_gram_norm: bool) -> Tensor:
    """The Gram form: the polynomials act on R = X Xᵀ, of the smaller side, and X is multiplied once, at the end."""
    X = _scaled(matrix, dtype, by_gram_norm)
    R, Q = X @ X.mT, torch.eye(X.shape[0], dtype=dtype)
    for a, b, c in polynomials:
        Z = a * torch.eye(X.shape[0], dtype=dtype) + b * R + c * (R @ R)
        Q, R = Z @ Q, Z @ R @ Z
    return (Q @ X).float()


def _scaled(matrix: Tensor, dtype, by_gram_norm: bool) -> Tensor:
    X = matrix / matrix.norm()
    if by_gram_norm:
        X = X / (1.01 * (X @ X.mT).norm().sqrt())
    return X.to(dtype)


def candidates():
    """name: function(matrix, dtype)."""
    named = {
        "Muon, 5 steps": (newton_schulz, MUON, False),
        "Polar Express from 1e-3, 5 steps": (newton_schulz, chain(1e-3, 5), False),
        "Polar Express from 1e-3, 6 steps": (newton_schulz, chain(1e-3, 6), False),
        "from 3e-3, 5 steps": (newton_schulz, chain(3e-3, 5), False),
        "from 3e-3, 5 steps, norm of the Gram matrix": (newton_schulz, chain(3e-3, 5), True),
        "the same, Gram form": (gram_newton_schulz, chain(3e-3, 5), True),
    }
    made = {
        name: (lambda matrix, dtype, f=f, p=p, g=g: f(matrix, p, dtype, by_gram_norm=g))
        for name, (f, p, g) in named.items()
    }
    made["torch_ggt.polar"] = lambda matrix, dtype: polar(matrix[None], dtype=dtype)[0]
    made["torch_ggt.polar, exact"] = lambda matrix, _: polar(matrix[None], exact=True)[0]
    return made


def matrices():
    """(name, matrix in float32, wide)."""
    generator = torch.Generator().manual_seed(0)
    for rows, columns in SIZES:
        random = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        yield f"Gaussian {rows}×{columns}", random.float()
        U, _, Vt = torch.linalg.svd(random, full_matrices=False)
        for condition in (100, 1e4):
            sigma = torch.logspace(0, -math.log10(condition), rows, dtype=torch.float64)
            yield f"condition {condition:.0e} {rows}×{columns}", (U * sigma @ Vt).float()
    yield "gradient 128×128", trained_gradient()


def trained_gradient() -> Tensor:
    """The gradient of the middle layer of an MLP after 50 steps of regression, in batches of 64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    target = torch.randn(16, 4)
    for _ in range(50):
        x = torch.randn(64, 16)
        optimizer.zero_grad()
        (model(x) - torch.sin(x @ target)).square().mean().backward()
        optimizer.step()
    return model[2].weight.grad.clone()


def measured(function, matrix: Tensor, dtype) -> dict[str, float]:
    """Smallest and largest singular value, cosine to the factor of the SVD (of singular values above 1e-6), time."""
    U, sigma, Vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    kept = sigma > 1e-6 * sigma[0]
    exact = U[:, kept] @ Vt[kept]
    found = function(matrix, dtype).double()
    singular = torch.linalg.svdvals(found)[: int(kept.sum())]
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        function(matrix, dtype)
        best = min(best, time.perf_counter() - start)
    cosine = float((found * exact).sum() / found.norm() / exact.norm())
    return {"low": float(singular.min()), "high": float(singular.max()), "cosine": cosine, "ms": 1e3 * best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    rows = []
    for what, matrix in matrices():
        print(f"\n{what}\n| iteration | float32 | cosine | ms | bfloat16 | cosine |\n|---|---|---|---|---|---|")
        for name, function in candidates().items():
            both = [measured(function, matrix, dtype) for dtype in (torch.float32, torch.bfloat16)]
            rows.append({"matrix": what, "iteration": name, "float32": both[0], "bfloat16": both[1]})
            cells = [f"{b['low']:.3f} to {b['high']:.3f} | {b['cosine']:.4f}" for b in both]
            print(f"| {name} | {cells[0]} | {both[0]['ms']:.2f} | {cells[1]} |")
    if out:
        environment = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
        with open(out, "w") as file:
            json.dump({"environment": environment, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
