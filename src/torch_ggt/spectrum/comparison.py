r"""Compare the full-matrix step of a window with the steps that cheaper methods make of its rows.

Symbols as in `window`: G (d × r) holds the decayed rows as columns, M = GᵀG, v = G e is the newest row, and
u = G [(M + δI)^½ + εI]⁻¹ e is its full-matrix step. A step in the span of the rows is G c. The inner products of such
steps, cᵀ M c, need no pass over the rows. The diagonal step v/√diag(GGᵀ) is not in the span, and needs one pass.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_ggt.distributed.columns import Columns, Local
from torch_ggt.layout import ALIGNMENT
from torch_ggt.shrinkage import noise_share, shrunk
from torch_ggt.solver import coefficients, robust_eigh
from torch_ggt.window import Window

__all__ = ["StepComparison", "compare_steps", "newest_first", "rounding_level"]

# How many elements of the rows are widened to float64 at a time.
_BLOCK = 1_048_576


@dataclass(frozen=True)
class StepComparison:
    """The cosines of one full-matrix step with cheaper steps from its window; NaN if a step is zero."""

    diagonal: float  #: Cosine with v/√diag(GGᵀ), the step of diagonal AdaGrad, RMSprop and Adam.
    sgd: float  #: Cosine with v itself, the step of SGD, or of SGD with momentum if the window holds momentum.
    by_window: dict[int, float]  #: Cosine with the step of the newest s rows alone, for s = 1, 2, 5, 10, … and all.
    noise: float = math.nan  #: The mean share of a row that lies outside the span of the other rows; NaN if v is zero.


@torch.no_grad()
def compare_steps(
    window: Window,
    *,
    eps: float = 1e-8,
    jitter: float = 1e-6,
    shrinkage: float | str = 0.0,
    columns: Columns | None = None,
) -> StepComparison:
    """Compare u = G [(M + δI)^½ + εI]⁻¹ e with the steps of cheaper methods, in one pass over the rows.

    Args:
        window: a window with at least one row; it is only read.
        eps: ε of the full-matrix step and of the diagonal step.
        jitter: δ = jitter·tr(M)/r.
        shrinkage: as in GGT; the diagonal step has none.
        columns: where the columns of the window are; None if all of them are in this process.
    """
    filled = int(window.count)
    if filled == 0:
        raise ValueError("the window is empty: take a step with a gradient that is not zero first")
    slots = newest_first(window).cpu()
    moment, gram = (matrix.cpu()[slots][:, slots] for matrix in (window.moment(), window.gram))
    ladder = (digit * 10**power for power in range(len(str(filled))) for digit in (1, 2, 5))
    sizes = [*(s for s in ladder if s < filled), filled]
    if moment[0, 0] == 0:  # v = 0: the cosines would compare rounding errors
        return StepComparison(diagonal=math.nan, sgd=math.nan, by_window=dict.fromkeys(sizes, math.nan))
    root = _root(moment)

    def step(rows: int) -> Tensor:
        newest, own = torch.eye(rows, dtype=torch.float64)[0], moment[:rows, :rows]
        if shrinkage != 0:
            own = shrunk(own, noise_share(gram[:rows, :rows]) if isinstance(shrinkage, str) else shrinkage)
        return coefficients(own, newest, eps=eps, jitter=jitter)

    def cosine(product: float, norm: float) -> float:
        length = norm * float(u.norm())
        return max(-1.0, min(1.0, product / length)) if length > 0 else math.nan

    c = step(window.size)
    u = root @ c
    product, square = _products_with_diagonal_step(window, c[slots.argsort()], eps, columns or Local())
    others = {s: root[:, :s] @ step(s) if s < filled else u for s in sizes}
    return StepComparison(
        diagonal=cosine(product, math.sqrt(square)),
        sgd=cosine(float(root[:, 0] @ u), float(root[:, 0].norm())),
        by_window={s: cosine(float(other @ u), float(other.norm())) for s, other in others.items()},
        noise=float(noise_share(gram[:filled, :filled])),
    )


def newest_first(window: Window) -> Tensor:
    """The slots of the ring by age; empty slots come last."""
    return (window.position - 1 - window.slots).remainder(window.size)


def rounding_level(dtype: torch.dtype, rows: int) -> float:
    """The share λ/Σλ below which an eigenvalue of GᵀG may be zero: rounding hides the difference.

    Rows of unit roundoff u move singular values by up to u·√Σλ. The float64 Gram matrix is correct to about r·2⁻⁵².
    """
    return max((torch.finfo(dtype).eps / 2) ** 2, max(rows, 16) * 2.0**-52)


def _root(moment: Tensor) -> Tensor:
    """A root with ‖G c‖ = ‖root c‖, because cᵀ M c cancels if rows are nearly collinear.

    We drop eigenvalues at rounding level, because c is large in their directions.
    """
    eigenvalues, vectors = robust_eigh(moment)
    noise = rounding_level(torch.float64, moment.shape[0]) * moment.trace()
    return torch.where(eigenvalues > noise, eigenvalues, 0.0).sqrt()[:, None] * vectors.mT


def _products_with_diagonal_step(window: Window, c: Tensor, eps: float, where: Columns) -> tuple[float, float]:
    """(u·p, p·p) for u = G c and the diagonal step p, computed by blocks of columns."""
    c = c.to(window.rows.device)
    newest = newest_first(window)[:1]
    total = torch.zeros(2, dtype=torch.float64, device=c.device)
    width = max(ALIGNMENT, _BLOCK // window.size // ALIGNMENT * ALIGNMENT)
    for run, weight in window.weighed_runs():
        for left in range(run.start, run.stop, width):
            columns = window.decay[:, None] * window.rows[:, left : min(left + width, run.stop)].double()
            v = columns.index_select(0, newest).squeeze(0)
            diagonal = columns.square().sum(0).sqrt()
            p = torch.where(diagonal > 0, v / (diagonal + eps), 0.0)
            total += weight * torch.stack([(c @ columns) @ p, p @ p])
    product, square = where.total(total).tolist()
    return product, square
