"""What the documentation shows is true: examples run, links lead somewhere, the demo demonstrates."""

import ast
import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest
import torch

import ggt_lab
import torch_ggt

ROOT = Path(__file__).parent.parent
MODULES = [
    m.name for package in (torch_ggt, ggt_lab) for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", ["torch_ggt", *MODULES])
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


@pytest.mark.parametrize("name", ["torch_ggt", *MODULES])
def test_every_public_name_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for public in getattr(module, "__all__", []):
        thing = getattr(module, public)
        assert not callable(thing) or thing.__doc__, public


def test_links_in_markdown():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_the_library_imports_torch_alone():
    for source in (ROOT / "src" / "torch_ggt").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in {"torch", "torch_ggt", *sys.stdlib_module_names}, (source.name, name)
