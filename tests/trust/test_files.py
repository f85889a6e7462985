"""Damaged files and killed processes: nothing is loaded in silence that would change training."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from damage import outcomes_of_damage, outcomes_of_kills


def violations(outcomes):
    return {outcome: number for outcome, number in outcomes.items() if "VIOLATION" in outcome}


def test_no_damaged_file_is_loaded_in_silence(tmp_path):
    found = outcomes_of_damage(tmp_path, 100)
    assert violations(found) == {}
    assert found["refused"] > 0  # torch.load does not see these


def test_a_run_that_is_killed_resumes_bitwise(tmp_path):
    assert violations(outcomes_of_kills(tmp_path, 3)) == {}


@pytest.mark.soak
def test_a_thousand_damaged_files(tmp_path):
    assert violations(outcomes_of_damage(tmp_path, 1100, seed=1)) == {}


@pytest.mark.soak
def test_a_hundred_kills(tmp_path):
    assert violations(outcomes_of_kills(tmp_path, 100, seed=1)) == {}
