"""Start Python with one source tree of the library, and no other, to import from."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = "REDESIGN_TREE"


def environment(tree, **variables):
    """The variables of a process that imports the library from ``tree``; PYTHONPATH wins over an editable install."""
    tree = Path(tree).resolve()
    if not (tree / "torch_ggt" / "__init__.py").is_file():
        sys.exit(f"{tree} holds no package torch_ggt; give the folder that contains it, such as PATH/src")
    return {**os.environ, "PYTHONPATH": str(tree), TREE: str(tree), **variables}


def start(script, tree, *arguments, variables=None, **options):
    """Start one of the scripts beside this file with the library of ``tree``; options are those of Popen."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    return subprocess.Popen(command, env=environment(tree, **(variables or {})), text=True, **options)


def check_imported(package):
    """Called by a script that was started: exit if its library came from another tree."""
    found, expected = Path(package.__file__).resolve(), Path(os.environ[TREE])
    if expected not in found.parents:
        sys.exit(f"torch_ggt was imported from {found}, but the tree to look at is {expected}")


def commit(tree):
    """The commit that is checked out where ``tree`` is, with a mark if files differ from it; None without git."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
