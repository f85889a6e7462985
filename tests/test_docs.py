"""What the documentation shows is true: examples run, links lead somewhere, the demo demonstrates."""

import ast
import doctest
import importlib
import os
import pkgutil
import re
import subprocess
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


def load(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        pytest.skip("Triton is not installed")
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))  # the package of an integration


@pytest.mark.parametrize("name", ["torch_ggt", *MODULES])
def test_examples_in_docstrings(name):
    module = load(name)
    failures, _ = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


@pytest.mark.parametrize("name", ["torch_ggt", *MODULES])
def test_every_public_name_is_documented(name):
    module = load(name)
    assert module.__doc__
    for public in getattr(module, "__all__", []):
        thing = getattr(module, public)
        assert not callable(thing) or thing.__doc__, public


def test_links_in_markdown_lead_somewhere_and_no_text_is_missing():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        assert not re.findall(r"\b(?:[A-Z0-9]+WORDS|TODO|FIXME|TBD|XXX)\b", page.read_text()), page.name
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            # `make docs` makes the pages of the gallery from the examples.
            source = re.sub(r"^gallery/(.*)\.rst$", r"../examples/\1.py", target)
            assert (page.parent / source).exists(), (page.name, target)


def test_the_library_imports_torch_alone():
    for source in (ROOT / "src" / "torch_ggt").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                allowed = {"torch", "torch_ggt", *sys.stdlib_module_names}
                if source.parent.name == "triton":
                    allowed.add("triton")  # comes with torch where it has CUDA, and is imported only there
                if source.parent.name == "integrations" and source.stem in ("lightning", "transformers"):
                    allowed.add(source.stem)  # its own package, and no other
                assert name.split(".")[0] in allowed, (source.name, name)


def test_triton_is_imported_on_a_gpu_only():
    script = "import sys, torch_ggt; sys.exit('torch_ggt.backends.triton' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=environment).returncode == 0


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text()
    described = re.findall(r"^\.\. auto(?:class|function):: (\w+)", page, re.MULTILINE)
    assert sorted(described) == sorted(torch_ggt.__all__)
