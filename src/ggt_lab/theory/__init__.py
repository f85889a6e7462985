r"""The paper's theory, made runnable: AdaGrad with averaging, the hard window, the adaptive ratio, the schedule.

Algorithm 2 (`adagrad`) is full-matrix AdaGrad for convex functions; its output is the averaged iterate. Algorithm 3
(`hard_window`) runs it again and again on :math:`f_t(x) = f(x) + \lambda\|x - x_t\|^2`, forgetting all gradients in
between, and reaches :math:`E\|\nabla f\| \le \epsilon` on smooth non-convex functions (`schedule` gives its T and w).

Errata of the paper that are corrected here: the gradient of the proximal term is 2λ(x - x_t), of which the paper's
oracle has only half; the lemma's μ²σ² is μσ, as in its own proof; λ must be larger than L/2, not equal.
"""

from ggt_lab.theory.adagrad import AdaGradRun, adagrad
from ggt_lab.theory.hard_window import HardWindowRun, Schedule, hard_window, schedule
from ggt_lab.theory.oracles import Oracle, Proximal, SparseNoise
from ggt_lab.theory.ratio import adaptive_ratio

__all__ = [
    "AdaGradRun",
    "HardWindowRun",
    "Oracle",
    "Proximal",
    "Schedule",
    "SparseNoise",
    "adagrad",
    "adaptive_ratio",
    "hard_window",
    "schedule",
]
