"""The small hard problems: their data by hand, and what a perfect answer scores."""

import math

import pytest
import torch

from ggt_lab.problems import problem_class
from ggt_lab.problems.hard_networks import curve_images

CPU = torch.device("cpu")


def test_a_curve_is_drawn_where_it_runs():
    generator = torch.Generator().manual_seed(5)
    (image,) = curve_images(1, 12, generator).view(1, 12, 12)
    control = torch.rand(4, 2, generator=torch.Generator().manual_seed(5)) * 11
    ends = control[[0, 3]]
    for row, column in ends.tolist():  # a curve begins and ends at its outer control points
        pixel = round(row), round(column)
        distance = math.hypot(row - pixel[0], column - pixel[1])
        assert image[pixel].item() >= math.exp(-(distance**2)) - 1e-5
    assert image.max() <= 1
    far = max(((i, j) for i in (0, 11) for j in (0, 11)), key=lambda p: min(math.dist(p, c) for c in control.tolist()))
    assert image[far].item() < 0.5


def test_the_adding_problem():
    problem = problem_class("adding")(0, CPU)
    sequences, targets = problem._draw(500, torch.Generator().manual_seed(1))
    numbers, marks = sequences.unbind(2)
    assert torch.equal(marks[:, :15].sum(1), torch.ones(500))
    assert torch.equal(marks[:, 15:].sum(1), torch.ones(500))
    torch.testing.assert_close((numbers * marks).sum(1), targets)
    assert (targets - 1).square().mean().item() == pytest.approx(1 / 6, rel=0.15)  # the error of the constant answer
    hidden = problem.recurrent.weight_hh_l0
    torch.testing.assert_close(hidden @ hidden.T, torch.eye(32), atol=1e-5, rtol=0)


def test_the_factorization():
    problem = problem_class("factorization")(0, CPU)
    assert torch.linalg.cond(problem.target.double()).item() == pytest.approx(1e4, rel=0.02)
    u, s, v = torch.linalg.svd(problem.target)
    with torch.no_grad():
        problem.left.copy_(u * s.sqrt())
        problem.right.copy_(s.sqrt()[:, None] * v)
    assert problem.evaluate()["loss"] < 1e-12
    with torch.no_grad():
        problem.left.zero_()
    assert problem.evaluate()["loss"] == pytest.approx(1)


def test_splits_do_not_overlap():
    """What is tuned on is neither trained on nor reported."""
    curves = problem_class("curves")(0, CPU)
    parts = [curves.images, curves._aside, curves._test]
    assert [len(part) for part in parts] == [2000, 500, 500]
    digits, plain = problem_class("digits-split")(0, CPU), problem_class("digits")(0, CPU)
    assert torch.equal(digits.test_images, plain.test_images)
    assert torch.equal(torch.cat([digits._aside[0], digits.images]), plain.images)
    assert len(digits._aside[1]) == 287
    adding = problem_class("adding")(0, CPU)
    assert not torch.equal(adding._aside[0], adding._test[0])
