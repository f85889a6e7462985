"""Draw the pictures of docs/derivation.md: ``python docs/draw_derivation.py``.

The numbers in the pictures come from the functions of the library. The files are SVG without dates, so that drawing
again changes nothing.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from torch_ggt import coefficients
from torch_ggt.polar import polar
from torch_ggt.quadrature import inverse_sqrt_nodes

IMAGES = Path(__file__).resolve().parent / "images"
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#00795a", "#6b7683"


def save(figure: Figure, name: str) -> None:
    """Write an SVG with nothing in it that changes from run to run."""
    figure.savefig(IMAGES / f"derivation-{name}.svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def draw_polar() -> None:
    """Two gradients in the plane, and their polar factor."""
    gradients = torch.tensor([[1.6, 2.2], [1.0, 0.2]], dtype=torch.float64)
    moment = gradients @ gradients.T
    values, vectors = torch.linalg.eigh(moment)
    whitened = vectors @ torch.diag(values.rsqrt()) @ vectors.T @ gradients
    circle = torch.stack([f(torch.linspace(0, 2 * np.pi, 200, dtype=torch.float64)) for f in (torch.cos, torch.sin)])
    ellipse = vectors @ torch.diag(values.sqrt()) @ circle
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, columns, border, title in (
        (panels[0], gradients, ellipse, "the last gradients G, and (GGᵀ)^½ of the circle"),
        (panels[1], whitened, circle, "(GGᵀ)^(−½) G: the polar factor"),
    ):
        axes.plot(*border.numpy(), color=GREY, linewidth=1, linestyle="--")
        for column, colour, name in zip(columns.T.numpy(), (BLUE, ORANGE), ("g₁", "g₂ = v"), strict=True):
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2}
            axes.annotate("", xy=column, xytext=(0, 0), arrowprops=arrow)
            axes.annotate(name, xy=1.06 * column, color=colour, fontsize=11)
        axes.set(title=title, aspect="equal")
        axes.margins(0.25)
        axes.grid(alpha=0.3)
    save(figure, "polar")


def _box(axes: Axes, x: float, y: float, width: float, height: float, words: str, colour: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="black", alpha=0.35))
    axes.text(x + width / 2, y + height / 2, words, ha="center", va="center", fontsize=10)


def draw_passes() -> None:
    """The shapes of a step."""
    figure, axes = plt.subplots(figsize=(9, 3.9), layout="constrained")
    for row in range(5):
        newest = row == 2
        words = "newest row v" if newest else ""
        _box(axes, 0, 3.2 - 0.45 * row, 6, 0.4, words, ORANGE if newest else BLUE)
    axes.text(3, 3.75, "the window: r rows of d numbers", ha="center", fontsize=11)
    _box(axes, 7.6, 1.6, 1.8, 1.8, "", GREEN)
    _box(axes, 7.6, 2.35, 1.8, 0.3, "the new row", ORANGE)
    axes.text(8.5, 3.1, "GᵀG: r × r", ha="center", va="center", fontsize=10)
    _box(axes, 10.4, 1.6, 0.5, 1.8, "c", GREEN)
    _box(axes, 0, 0.2, 6, 0.45, "step u = G c, d numbers", ORANGE)
    head = {"arrowstyle": "-|>", "linewidth": 1.6, "color": "black"}
    axes.annotate("", xy=(7.5, 2.5), xytext=(6.1, 2.5), arrowprops=head)
    axes.text(6.8, 2.7, "pass 1\nk = Gᵀv", ha="center", fontsize=10)
    axes.annotate("", xy=(10.3, 2.5), xytext=(9.5, 2.5), arrowprops=head)
    axes.text(9.9, 2.7, "solve", ha="center", fontsize=10)
    axes.annotate("", xy=(6.1, 0.4), xytext=(10.65, 1.5), arrowprops=head)
    axes.text(8.9, 0.55, "pass 2: the weights c of the rows", ha="center", fontsize=10)
    axes.set(xlim=(-0.2, 11.3), ylim=(0, 4.1))
    axes.axis("off")
    save(figure, "passes")


def draw_cholesky() -> None:
    """The sum of shifted inverses, and its error."""
    spectrum = np.logspace(-8, 0, 161)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    nodes = inverse_sqrt_nodes(1e-4, 1.0, 1e-3)
    for number, (shift, weight) in enumerate(zip(*nodes, strict=True)):
        label = "the terms w / (t² + λ)" if number == 0 else None
        left.loglog(spectrum, weight / (shift + spectrum), color=BLUE, linewidth=0.9, label=label)
    total = sum(weight / (shift + spectrum) for shift, weight in zip(*nodes, strict=True))
    left.loglog(spectrum, total, color=ORANGE, linewidth=4, alpha=0.6, label=f"their sum, {len(nodes.shifts)} terms")
    left.loglog(spectrum, spectrum**-0.5, color="black", linewidth=1, linestyle="--", label="1/√λ")
    left.set(xlabel="λ", ylim=(0.3, 3e4), title="One root as a sum of inverses")
    left.legend(fontsize=8)
    counts, errors = [], []
    for digits in range(1, 13):
        nodes = inverse_sqrt_nodes(1e-4, 1.0, 10.0**-digits)
        total = sum(weight / (shift + spectrum) for shift, weight in zip(*nodes, strict=True))
        counts.append(len(nodes.shifts))
        errors.append(np.abs(total * spectrum**0.5 - 1).max())
    right.semilogy(counts, errors, "o-", color=BLUE)
    right.set(xlabel="number of Cholesky solves", title="Largest relative error, λ from 1e-8 to 1")
    right.grid(alpha=0.3)
    save(figure, "cholesky")


def draw_twice() -> None:
    """The singular values of a layer's step after each of the two formulas, and after both."""
    generator = torch.Generator().manual_seed(0)
    rows, columns, window = 24, 24, 50

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    left, right = (torch.linalg.qr(random(n, n))[0] for n in (rows, columns))
    scales = torch.logspace(0, -2, rows, dtype=torch.float64)
    signal = (left * scales) @ right
    history = torch.stack([(signal * (1 + 0.3 * random(rows, columns))).flatten() for _ in range(window)], dim=1)
    newest = torch.zeros(window, dtype=torch.float64)
    newest[-1] = 1
    whitened = history @ coefficients(history.T @ history, newest, eps=0.0, jitter=1e-6)
    steps = {
        "the gradient": history[:, -1],
        "whitened over time": whitened,
        "polar factor (Muon)": polar(history[:, -1].view(1, rows, columns), exact=True).flatten(),
        "whitened, then polar": polar(whitened.view(1, rows, columns), exact=True).flatten(),
    }
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for (name, step), style in zip(steps.items(), ("o-", "s-", "^-", "x--"), strict=True):
        values = torch.linalg.svdvals(step.view(rows, columns))
        axes.semilogy(range(1, rows + 1), values / values[0], style, label=name, markersize=4)
    axes.set(xlabel="number of the singular value", ylabel="divided by the largest", title="One layer of 24 × 24")
    axes.legend(fontsize=9)
    axes.grid(alpha=0.3)
    save(figure, "twice")


def main() -> None:
    """Draw all."""
    mpl.rcParams["svg.hashsalt"] = "torch-ggt"  # ids that do not change
    mpl.rcParams["path.simplify_threshold"] = 0.5
    for draw in (draw_polar, draw_passes, draw_cholesky, draw_twice):
        draw()


if __name__ == "__main__":
    main()
