"""The paper's experiments by name: ``ggt reproduce S1``."""

from ggt_lab.names import unknown
from ggt_lab.reproduce.ablations import Ablations
from ggt_lab.reproduce.base import Experiment, Outcome, Settings, reproduce
from ggt_lab.reproduce.deep import DEEP_EXPERIMENTS
from ggt_lab.reproduce.hard_window import HardWindow
from ggt_lab.reproduce.landscapes import Landscape
from ggt_lab.reproduce.sparse_noise import RatioGrowth, SparseStarts

__all__ = ["Experiment", "Outcome", "Settings", "experiment", "experiment_names", "reproduce"]

_EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Landscape(
            "S1",
            "Logistic regression",
            problems={"logistic": ""},
            rates=range(6),
            forgetting=("a window improves convergence, but not drastically", False),
        ),
        Landscape(
            "S2",
            "Analytic centre of a polytope",
            problems={"barrier": ", from the origin", "barrier-vertex": ", from near a vertex"},
            rates=range(-8, 0),
            forgetting=("the improvement afforded by the window is much clearer", True),
        ),
        HardWindow(),
        RatioGrowth(),
        SparseStarts(),
        Ablations(),
        *DEEP_EXPERIMENTS,
    )
}


def experiment_names() -> list[str]:
    """What can be reproduced."""
    return list(_EXPERIMENTS)


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: no such experiment; the message names the closest ones.
    """
    if name not in _EXPERIMENTS:
        raise unknown("experiment", name, _EXPERIMENTS, "Names are those of the paper's claims, see `ggt list`.")
    return _EXPERIMENTS[name]
