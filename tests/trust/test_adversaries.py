"""Generated adversaries against an oracle of 50 digits; see adversaries.py."""

import random
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import kin
from adversaries import STREAMS, generate, violations

from torch_ggt import finish, step


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.randoms(use_true_random=False))
def test_no_adversary_breaks_a_step(rng):
    case = generate(rng, most_steps=6)
    found, _ = violations(case)
    assert not found, f"{found}\n{case}"


def test_more_adversaries():
    """As above, with numbers that hypothesis would not choose: it likes simple ones."""
    cases = {seed: generate(random.Random(seed)) for seed in range(150)}
    assert {case.kind for case in cases.values()} == set(STREAMS)
    assert {seed: found for seed, case in cases.items() if (found := violations(case)[0])} == {}


def test_adversaries_of_the_relatives():
    cases = {seed: kin.generate(random.Random(seed)) for seed in range(200)}
    assert {case.member for case in cases.values()} == set(kin.MEMBERS)
    assert {seed: found for seed, case in cases.items() if (found := kin.violations(case)[0])} == {}


@pytest.mark.soak
def test_many_adversaries():
    assert [seed for seed in range(20_000, 22_000) if violations(generate(random.Random(seed)))[0]] == []
    assert [seed for seed in range(20_000, 22_000) if kin.violations(kin.generate(random.Random(seed)))[0]] == []


def spoilt_solve(spoil):
    def solve(block, a, real=step.solve):
        return spoil(real(block, a))

    return solve


def spoilt_push(block, taken, real=step.push):
    newest = real(block, taken)
    block.window.decay.mul_(1 + 1e-6)
    return newest


SPOILT = {
    "a step that is 1 % too long": ("solve", spoilt_solve(lambda c: c * 1.01)),
    "a coefficient that is off by 1e-2": ("solve", spoilt_solve(lambda c: c + 1e-2 * c.roll(1, -1))),
    "coefficients in bfloat16": ("solve", spoilt_solve(lambda c: c.bfloat16().double())),
    "weights that do not age well": ("push", spoilt_push),
    "skipping is forgotten": ("judged", lambda blocks, taken: torch.ones_like(taken)),
}


@pytest.mark.parametrize("name", list(SPOILT))
def test_a_step_that_is_wrong_is_found(name, monkeypatch):
    """The oracle has teeth."""
    monkeypatch.setattr(step, *SPOILT[name])
    assert any(violations(generate(random.Random(seed)))[0] for seed in range(40))


@pytest.mark.parametrize("member", kin.MEMBERS)
def test_a_relative_that_is_wrong_is_found(member, monkeypatch):
    monkeypatch.setattr(step, "solve", spoilt_solve(lambda c: c * 1.001))
    cases = [kin.generate(random.Random(seed)) for seed in range(150)]
    assert any(kin.violations(case)[0] for case in cases if case.member == member)


def test_a_polar_factor_that_is_wrong_is_found(monkeypatch):
    def worse(matrices, real=finish.polar, **how):
        found = real(matrices, **how)
        return found + 0.1 * found.roll(1, -1)

    monkeypatch.setattr(finish, "polar", worse)
    for name in ("polar", "polar_exact"):
        cases = [case for seed in range(300) if (case := generate(random.Random(seed))).options["finish"] == name]
        assert any("polar factor is off" in " ".join(violations(case)[0]) for case in cases), name
