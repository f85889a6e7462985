"""The code on docs/integrations.md runs. A block whose fence says "needs <package>" is skipped without that package."""

import contextlib
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text()
BLOCKS = re.findall(r"^```python(?: needs (\w+))?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: BLOCKS[number][0] or "torch")
def test_a_block_runs(number, tmp_path):
    package, code = BLOCKS[number]
    if package:
        pytest.importorskip(package, exc_type=(ImportError, RuntimeError))
    names = {"torch": torch}
    if package in ("tensorboard", "hydra"):  # they go on with the model and the optimizer of the first block
        exec(compile(BLOCKS[0][1], "docs/integrations.md", "exec"), names)
    with contextlib.chdir(tmp_path):
        exec(compile(code, f"docs/integrations.md: {package}", "exec"), names)


def test_there_is_a_block_for_each_package():
    packages = ("", "tensorboard", "lightning", "transformers", "accelerate", "hydra", "timm", "torchtitan")
    assert tuple(package for package, _ in BLOCKS) == packages


def test_the_versions_in_the_table_are_the_pinned_ones():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.replace("-", "_").split("==") for line in lines if "==" in line and line[0] != "#")
    rows = re.findall(
        r"^\| ([\w, -]+?)(?:, (?:for|with) [^|]*)? \| (?:`[\w-]+`)? ?\| ([\d., ]+) \|", PAGE, re.MULTILINE
    )
    found = {}
    for names, versions in rows:
        found |= dict(zip(names.replace("-", "_").split(", "), versions.split(", "), strict=True))
    assert len(found) == 11
    assert found == {name: pinned[name] for name in found}
