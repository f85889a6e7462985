"""Problems to race optimizers on, by name or from a user's own file."""

from ggt_lab.problems import images, text
from ggt_lab.problems.base import Problem, problem_class, problem_names
from ggt_lab.problems.small_nets import Digits, StdlibChars
from ggt_lab.problems.synthetic import Barrier, BarrierVertex, Logistic, SparseNoiseQuadratic

__all__ = [
    "Barrier",
    "BarrierVertex",
    "Digits",
    "Logistic",
    "Problem",
    "SparseNoiseQuadratic",
    "StdlibChars",
    "images",
    "problem_class",
    "problem_names",
    "text",
]
