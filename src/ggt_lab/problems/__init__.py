"""Problems to train on, by name or from a file of a user."""

from ggt_lab.problems import hard_networks, image_problems, league_problems, pinn_problems, text_problems
from ggt_lab.problems.registry import Problem, problem_class, problem_names
from ggt_lab.problems.small_networks import Digits, StdlibChars
from ggt_lab.problems.synthetic_landscapes import Barrier, BarrierVertex, Logistic, SparseNoiseQuadratic

__all__ = [
    "Barrier",
    "BarrierVertex",
    "Digits",
    "Logistic",
    "Problem",
    "SparseNoiseQuadratic",
    "StdlibChars",
    "hard_networks",
    "image_problems",
    "league_problems",
    "pinn_problems",
    "problem_class",
    "problem_names",
    "text_problems",
]
