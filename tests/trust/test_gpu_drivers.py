"""The drivers for a GPU, without one: what they read, what they count, and what a late warp does."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import admit_race
import late_warp
import sanitizer

OUTPUT = """
========= COMPUTE-SANITIZER
CASE admit 7 1 0
LAUNCHED {"ring._admit float64 bool {'SIZE': 8}": 9}
DONE admit 7 1 0 0.5
CASE step 3
========= Invalid __global__ write of size 8 bytes
=========     at _admit+0x5c0 in ring.py:80
=========     by thread (3,0,0) in block (0,0,0)
=========     Access at 0x7f0000000808 is out of bounds
=========
========= Invalid __global__ write of size 8 bytes
=========     at _admit+0x5c0 in ring.py:80
=========     by thread (4,0,0) in block (0,0,0)
=========     Access at 0x7f0000000810 is out of bounds
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_gather_kernel<(int)16, long>(char *, char *)+0x80
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Error: Race reported between Write access at _solve+0x90 in root.py:99
=========     and Read access at _solve+0x120 in root.py:101 [16 hazards]
=========
FAILED step 3 RuntimeError: CUDA error
========= ERROR SUMMARY: 4 errors
"""


def test_findings_are_read():
    found = sanitizer.summary_of(OUTPUT, {"_admit", "_solve", "_gather"})
    assert [case for case, _ in found["ours"]] == ["step 3"] * 3
    assert [words.split(" | ")[0] for _, words in found["elsewhere"]] == [
        "Uninitialized __global__ memory read of size 4 bytes"
    ]
    assert [entry["number"] for entry in sanitizer.grouped(found["ours"])] == [2, 1]
    assert (found["begun"], found["done"], len(found["failed"])) == (2, 1, 1)
    assert sum(found["launched"].values()) == 9
    assert found["summaries"] == ["ERROR SUMMARY: 4 errors"]


def test_every_kernel_is_an_entry_or_is_called():
    entries, helpers = sanitizer.kernels()
    text = "".join(path.read_text() for path in sanitizer.KERNELS.glob("*.py"))
    assert len(entries) + len(helpers) == text.count("@triton.jit\n")
    assert {name.split(".")[1] for name in entries} == set(re.findall(r"launch\(\s*(_\w+),", text))


# ---- the race --------------------------------------------------------------------------------------------------------


def late_ring(late, size):
    """`ring.admit` in torch; the entries ``late`` of a row belong to warps that read the position after it moved."""

    def admit(sums, accept, state, betas):
        gram, decay, momentum, position, count = state
        slot = position.clone()
        entries = sums[:, :-1].clone()
        for matrix in range(len(sums)):
            taken = torch.full((size,), int(slot[matrix]))
            taken[late] = (slot[matrix] + 1) % size
            i = torch.arange(size)
            row = torch.where(i == taken, sums[matrix, -1], entries[matrix])
            gram[matrix, taken, i] = row
            gram[matrix, i, taken] = row
            for weights, beta in ((decay, betas[1]), (momentum, betas[0])):
                weights[matrix] = torch.where(i == taken, 1.0, beta * weights[matrix])
        newest = torch.zeros_like(decay).scatter_(1, slot[:, None], 1.0)
        position.copy_((slot + 1) % size)
        count.add_(1).clamp_(max=size)
        return newest, slot

    return types.SimpleNamespace(admit=admit)


@pytest.mark.parametrize("late", [[], [5, 6]], ids=["none", "two of seven"])
def test_wrong_admissions_are_counted(late):
    found, turns = {}, iter(range(12))

    def report(numbers):
        found.update(numbers())
        return next(turns) == 11

    admit_race.admissions(
        torch, late_ring(late, 7), "cpu", 7, admit_race.OwnLoad(torch, wanted=False, device="cpu"), report
    )
    assert found["admissions"] == 2 * 14
    assert found["wrong"]["any"] == (28 if late else 0)
    assert (found["wrong"]["Gram matrix"] > 0) == bool(late)
    assert found["wrong"]["position or count"] == 0


def test_the_versions_differ_in_what_they_say(tmp_path):
    pytest.importorskip("triton")
    texts = {}
    for kind in admit_race.KINDS:
        admit_race.ring_of(kind, tmp_path)
        texts[kind] = (tmp_path / f"ring_{admit_race.KINDS.index(kind)}.py").read_text().splitlines()
    assert [line for line in texts["barrier"] if line not in texts["no barrier"]] == ["        tl.debug_barrier()"]
    assert len(texts["barrier"]) == len(texts["no barrier"]) + 1
    assert any("clock64" in line for line in texts["late, barrier"])
    assert admit_race.BARRIER in "\n".join(texts["late, barrier"]) + "\n"


def test_one_late_warp_makes_steps_that_are_far_too_long():
    assert max(late_warp.lengths(40, None, 0, columns=500)) <= 1.001
    assert max(late_warp.lengths(40, 1, 0, columns=500)) > 10
