"""Start Python with one source tree of the library, and no other, to import from."""

import contextlib
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import torch

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


def wait_until(process, end):
    """Wait for a process; stop it when ``time.monotonic()`` reaches ``end``."""
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def commit(tree):
    """The commit of a tree, from a file COMMIT beside it, or from git with a mark if files differ; None without both.

    A tree that was unpacked from an archive inside of another checkout has no commit of its own, but such a file.
    """
    noted = Path(tree).resolve().parent / "COMMIT"
    if noted.is_file():
        return noted.read_text().strip()
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def about(arguments, command):
    """What a reader needs to make the figures of a command again."""
    found = {
        "command": " ".join(["python", "benchmarks/redesign", command, *sys.argv[2:]]),
        "old": {"tree": arguments.old, "commit": commit(arguments.old)},
        "new": {"tree": arguments.new, "commit": commit(arguments.new)},
        "load at the end": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if arguments.device == "cuda":
        found["gpu"], found["cuda"] = torch.cuda.get_device_name(), torch.version.cuda
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["triton"] = metadata.version("triton")
    return found
