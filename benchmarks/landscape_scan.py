"""Where do the orderings of S1 and S2 hold? Batch sizes, ε, starts, soft and hard windows, by paired tests.

    python benchmarks/landscape_scan.py OUT [--seeds 20]

writes ``OUT/scan.json``: for every case and method, the mean log₁₀ suboptimality over the run and over its last tenth,
for each seed at the learning rate that is best on average. The landscapes are those of `ggt_lab.problems`. All seeds
and all learning rates of a case are trained at once, as one batch of tensors, so that the scan takes minutes. A test
compares the methods with the optimizers of the lab.

- Methods: SGD; AdaGrad, diagonal and full-matrix, with all gradients; full-matrix AdaGrad with a soft window (each
  gradient loses weight by β₂ = 0.995 or 0.95 for each step of age) and with a hard window (the last 200 or 20).
- Learning rates: half decades, chosen for each method and measure by the mean over all seeds. A best rate at the edge
  of the grid is marked.
"""

import argparse
import functools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy import stats
from torch import Tensor

from ggt_lab.problems import problem_class
from ggt_lab.runs.environment import environment

RATES = tuple(10 ** (k / 2) for k in range(-7, 6))
STEPS, EVERY = 500, 10
MEASURES = ("over the run", "over the last tenth")


@dataclass(frozen=True)
class Method:
    """A preconditioner: what it is made of, and what it forgets."""

    name: str
    kind: str  # "none", "diagonal" or "full"
    decay: float = 1.0
    window: int = 0  # 0: all gradients


METHODS = (
    Method("SGD", "none"),
    Method("diagonal", "diagonal"),
    Method("full", "full"),
    Method("full, soft 0.995", "full", 0.995),
    Method("full, soft 0.95", "full", 0.95),
    Method("full, hard 200", "full", window=200),
    Method("full, hard 20", "full", window=20),
)


@dataclass(frozen=True)
class Case:
    """A landscape with a batch size (0: all samples) and an ε."""

    problem: str
    batch: int
    eps: float = 1e-4

    @property
    def name(self) -> str:
        return f"{self.problem}, batch {self.batch or 'full'}, ε {self.eps:g}"


CASES = (
    *(Case("logistic", batch) for batch in (1, 20, 200, 0)),
    *(Case("logistic", 20, eps) for eps in (1e-8, 1e-2, 1.0)),
    *(Case(problem, batch) for problem in ("barrier", "barrier-vertex") for batch in (1, 20, 200, 0)),
)


class Landscapes:
    """One landscape for each seed, as tensors (seeds, ...)."""

    def __init__(self, problem: str, seeds: int) -> None:
        made = [problem_class(problem)(seed, torch.device("cpu")) for seed in range(seeds)]
        self.samples = torch.stack([each.samples for each in made])
        self.start = torch.stack([each.point.detach() for each in made])
        self.infimum = torch.tensor([each.infimum for each in made], dtype=torch.float64)
        self.barrier = problem != "logistic"
        signs_or_offsets = "offsets" if self.barrier else "signs"
        self.second = torch.stack([getattr(each, signs_or_offsets) for each in made])

    def gradient(self, points: Tensor, index: Tensor | None) -> Tensor:
        """The gradients (seeds, rates, d) of the batch ``index`` (seeds, batch); None is all samples."""
        x, y = self._chosen(index)
        inner = points @ x.transpose(1, 2)
        weights = -1 / (inner + y[:, None]) if self.barrier else -y[:, None] * torch.sigmoid(-y[:, None] * inner)
        return weights @ x / x.shape[1]

    def suboptimality(self, points: Tensor) -> Tensor:
        """The suboptimality (seeds, rates)."""
        inner = points @ self.samples.transpose(1, 2)
        y = self.second[:, None]
        terms = -(inner + y).log() if self.barrier else torch.nn.functional.softplus(-y * inner)
        return terms.mean(2) - self.infimum[:, None]

    def inside(self, points: Tensor, before: Tensor) -> Tensor:
        """The points, with steps that leave the polytope halved until they stay inside, as in `ggt_lab.problems`.

        A step of t times its length stays inside if t < 1/r, where r is the largest share of a slack that it takes.
        """
        if not self.barrier:
            return points
        x = self.samples.transpose(1, 2)
        r = (-(points - before) @ x / (before @ x + self.second[:, None])).amax(2, keepdim=True)
        halvings = torch.where(r < 1, 0.0, r.clamp(min=1).log2().floor() + 1)
        inside = before + torch.exp2(-halvings) * (points - before)
        return torch.where(halvings <= 50, inside, before)  # also where the step is not finite

    def _chosen(self, index: Tensor | None) -> tuple[Tensor, Tensor]:
        if index is None:
            return self.samples, self.second
        wide = index[:, :, None].expand(-1, -1, self.samples.shape[2])
        return self.samples.gather(1, wide), self.second.gather(1, index)


@functools.cache
def landscapes(problem: str, seeds: int) -> Landscapes:
    """The landscapes; SciPy looks for their minima, which takes seconds."""
    return Landscapes(problem, seeds)


def step_of(method: Method, eps: float, gradients: Iterator[Tensor]) -> Iterator[Tensor]:
    """Preconditioned gradients, one for each gradient (seeds, rates, d)."""
    total: Tensor | None = None
    kept: list[Tensor] = []
    for g in gradients:
        if method.kind == "none":
            yield g
            continue
        square = g * g if method.kind == "diagonal" else g[..., :, None] * g[..., None, :]
        total = square if total is None else total * method.decay**2 + square
        if method.window:
            kept.append(square)
            if len(kept) > method.window:
                total = total - kept.pop(0)
        if method.kind == "diagonal":
            yield g / (total.sqrt() + eps)
            continue
        # A point may end so near to a facet that its gradient overflows: such a run has ended, and its step is zero.
        size = total.abs().sum((-2, -1), keepdim=True)
        total = torch.where(size < 1e20, total, torch.eye(g.shape[-1], dtype=g.dtype))
        usable = torch.where(size[..., 0] < 1e20, g, 0.0)
        values, vectors = torch.linalg.eigh(total)
        inner = vectors.transpose(-1, -2) @ usable[..., None]
        yield (vectors @ (inner / (values.clamp(min=0).sqrt() + eps)[..., None]))[..., 0]


def train(case: Case, method: Method, seeds: int, steps: int = STEPS) -> Tensor:
    """log₁₀ of the suboptimality at every tenth step: (points, seeds, rates); infinite where it is not finite."""
    world = landscapes(case.problem, seeds)
    rates = torch.tensor(RATES, dtype=torch.float64)[None, :, None]
    points = world.start[:, None].expand(-1, len(RATES), -1).clone()
    generators = [torch.Generator().manual_seed(1000 + seed) for seed in range(seeds)]
    curve = []

    def gradients() -> Iterator[Tensor]:
        while True:
            index = None
            if case.batch:
                size, count = (case.batch,), world.samples.shape[1]
                index = torch.stack([torch.randint(0, count, size, generator=each) for each in generators])
            yield world.gradient(points, index)

    for number, step in enumerate(step_of(method, case.eps, gradients()), start=1):
        points = world.inside(points - rates * step, points)
        if number % EVERY == 0:
            value = world.suboptimality(points).clamp(min=1e-16).log10()
            curve.append(torch.where(value.isfinite(), value, torch.inf))
        if number == steps:
            break
    return torch.stack(curve)


def scores(curve: Tensor) -> dict[str, dict[str, object]]:
    """For each measure: the values of all seeds at the best rate, the rate, and whether it is at the edge."""
    found = {}
    for measure, part in zip(MEASURES, (curve, curve[-max(1, len(curve) // 10) :]), strict=True):
        by_rate = part.mean(0)  # (seeds, rates)
        best = int(by_rate.mean(0).argmin())
        values = [round(v, 5) for v in by_rate[:, best].tolist()]
        found[measure] = {"lr": float(f"{RATES[best]:.4g}"), "edge": best in (0, len(RATES) - 1), "values": values}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    path = options.out / "scan.json"
    kept = json.loads(path.read_text())["cases"] if path.exists() else {}
    for case in CASES:
        if case.name in kept:
            continue
        kept[case.name] = {m.name: scores(train(case, m, options.seeds)) for m in METHODS}
        options.out.mkdir(parents=True, exist_ok=True)
        content = {"environment": environment(), "seeds": options.seeds, "steps": STEPS, "cases": kept}
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(case.name, flush=True)
    (options.out / "scan.md").write_text(page(kept))


# ---- the paired tests -----------------------------------------------------------------------------------------------

STATEMENTS = (
    ("diagonal below SGD", "diagonal", ("SGD",)),
    ("full below diagonal", "full", ("diagonal",)),
    ("soft window below full", ("full, soft 0.995", "full, soft 0.95"), ("full",)),
    ("hard window below full", ("full, hard 200", "full, hard 20"), ("full",)),
)


def paired(one: list[float], other: list[float]) -> str:
    """The mean difference, its 95 % interval by Student's paired test, and a verdict."""
    gaps = [a - b for a, b in zip(one, other, strict=True)]
    if not all(map(math.isfinite, gaps)):
        return "diverged"
    n, mean = len(gaps), sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (n - 1) / n) * float(stats.t.ppf(0.975, n - 1))
    verdict = "holds" if mean < -spread else "**reverse**" if mean > spread else "undecided"
    return f"{mean:+.3f} ± {spread:.3f} {verdict}"


def page(cases: dict[str, dict[str, dict[str, dict[str, object]]]]) -> str:
    """The tests as Markdown tables."""
    lines = ["Differences of mean log₁₀ suboptimality, ± half of the 95 % interval (Student's paired test)."]
    for measure in MEASURES:
        lines += ["", f"## {measure}", "", f"| case | {' | '.join(words for words, _, _ in STATEMENTS)} |"]
        lines.append("|---" * (1 + len(STATEMENTS)) + "|")
        for case, methods in cases.items():
            cells = []
            for _, better, worse in STATEMENTS:
                names = (better,) if isinstance(better, str) else better
                best = min(names, key=lambda name: sum(methods[name][measure]["values"]))
                one, other = methods[best][measure], methods[worse[0]][measure]
                edge = " (edge)" if one["edge"] or other["edge"] else ""
                cells.append(paired(one["values"], other["values"]) + edge)
            lines.append(f"| {case} | {' | '.join(cells)} |")
    lines += ["", "(edge): a best rate is the lowest or the highest of the grid."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
