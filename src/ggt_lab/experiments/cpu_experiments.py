"""The experiments that take minutes on a CPU."""

from ggt_lab.experiments.ablations import Ablations
from ggt_lab.experiments.experiment import Experiment
from ggt_lab.experiments.full_matrix_relatives import Relatives
from ggt_lab.experiments.hard_window_bound import HardWindow
from ggt_lab.experiments.landscapes import Landscape
from ggt_lab.experiments.sparse_noise import RatioGrowth, SparseStarts

__all__ = ["CPU_EXPERIMENTS"]

CPU_EXPERIMENTS: tuple[Experiment, ...] = (
    Landscape(
        "S1",
        "Logistic regression",
        problems={"logistic": ""},
        rates=range(6),
        forgetting="a window improves convergence, but not drastically",
    ),
    Landscape(
        "S2",
        "Analytic centre of a polytope",
        problems={"barrier": ", from the origin", "barrier-vertex": ", from near a vertex"},
        rates=range(-8, 0),
        forgetting="the improvement afforded by the window is much clearer",
    ),
    HardWindow(),
    RatioGrowth(),
    SparseStarts(),
    Ablations(),
    Relatives(),
)
