"""Problems to race optimizers on, by name or from a user's own file."""

from ggt_lab.problems.base import Problem, problem_class, problem_names
from ggt_lab.problems.small_nets import Digits, StdlibChars
from ggt_lab.problems.synthetic import Barrier, Logistic, SparseNoiseQuadratic

__all__ = [
    "Barrier",
    "Digits",
    "Logistic",
    "Problem",
    "SparseNoiseQuadratic",
    "StdlibChars",
    "problem_class",
    "problem_names",
]
