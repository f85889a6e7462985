"""Damaged states: each is refused and nothing has changed, or it is harmless; see mutations.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutations import MEMBERS, OPERATORS, campaign, judge

NAMES, TURNS = list(OPERATORS), list(MEMBERS)


def test_every_damage_is_refused_or_harmless():
    """Every operator on one of the members, in turn."""
    outcomes = {}
    for number, name in enumerate(NAMES):
        tried = (judge(TURNS[(number + turn) % len(TURNS)], name, seed=0) for turn in range(len(TURNS)))
        outcomes[name] = next((outcome for outcome in tried if outcome is not None), None)
    assert None not in outcomes.values()  # each has something to damage
    assert {name: outcome for name, outcome in outcomes.items() if outcome.startswith("VIOLATION")} == {}
    refused = [name for name, outcome in outcomes.items() if outcome == "refused"]
    assert len(refused) > 100


@pytest.mark.soak
@pytest.mark.parametrize("member", TURNS)
def test_every_damage_to_every_member(member):
    counts = campaign([member], NAMES, [1, 2])
    assert not [name for name, found in counts.items() if any(word.startswith("VIOLATION") for word in found)]
