"""T3: how much of the adaptive ratio μ is bias, and how much is variance?

    python benchmarks/variance_of_mu.py OUT

AdaGrad works on each coordinate of the basis of the noise, as in experiment T3: ‖x‖² seen through noise ±z, 1,000
steps, averaged iterates x̄. Its learning rate is that of T3's grid with the least mean μ over 20 draws of the noise.
200 other draws are reported. μ is √T·‖x̄‖². Its mean is √T·‖E x̄‖², the bias, and the rest, the variance. The square of
a mean over n draws is too large by 1/n of the variance, so that this is subtracted.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

STEPS, TUNING, DRAWS = 1000, 20, 200
RATES = tuple(10 ** (k / 4) for k in range(-10, 5))  # T3's grid
CASES = [(d, nonzeros) for d in (10, 100, 1000) for nonzeros in (1, d)]


def averages(dimension: int, nonzeros: int, rates: Tensor, generator: torch.Generator, steps: int) -> Tensor:
    """x̄ of one run for each of ``rates``, all with noise of their own, shape (runs, dimension)."""
    runs = torch.arange(len(rates))
    x = torch.zeros(len(rates), dimension, dtype=torch.float64)
    x[:, :nonzeros] = 1 / math.sqrt(nonzeros)
    total, squares = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(steps):
        total += x
        g = 2 * x
        signs = 1.0 - 2.0 * torch.randint(2, (len(rates),), generator=generator).double()
        g[runs, torch.randint(dimension, (len(rates),), generator=generator)] += signs
        squares.addcmul_(g, g)
        x -= rates[:, None] * g / (squares.sqrt() + 1e-8)
    return total / steps


def measure(dimension: int, nonzeros: int, *, steps: int = STEPS, tuning: int = TUNING, draws: int = DRAWS) -> dict:
    """μ of a case at its best rate, and the share of the bias in it."""
    generator = torch.Generator().manual_seed(dimension + nonzeros)
    trials = torch.tensor(RATES, dtype=torch.float64).repeat_interleave(tuning)
    errors = averages(dimension, nonzeros, trials, generator, steps).square().sum(1)
    rate = RATES[int(errors.view(len(RATES), tuning).mean(1).nan_to_num(math.inf).argmin())]
    found = averages(dimension, nonzeros, torch.full((draws,), rate, dtype=torch.float64), generator, steps)
    size, variance = float(found.square().sum(1).mean()), float(found.var(0).sum())
    bias = max(0.0, float(found.mean(0).square().sum()) - variance / draws)
    start = "sparse" if nonzeros == 1 else "dense"
    about = {"d": dimension, "start": start, "rate": rate, "draws": draws, "steps": steps}
    return {**about, "mu": math.sqrt(steps) * size, "share_of_bias": bias / size}


def table(cases: list[dict]) -> str:
    """Markdown: a row for each case."""
    rows = [f"| {c['d']} | {c['start']} | {c['mu']:.4f} | {100 * c['share_of_bias']:.1f} % |" for c in cases]
    return "\n".join(["| d | start | μ | share of the bias |", "|---|---|---|---|", *rows])


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    cases = [measure(*case) for case in CASES]
    (out / "variance.json").write_text(json.dumps({"torch": torch.__version__, "cases": cases}, indent=1) + "\n")
    print(table(cases))


if __name__ == "__main__":
    main()
