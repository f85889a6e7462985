"""The Triton kernels without a GPU: run by Triton's interpreter, in a process of its own."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
def test_kernels_under_the_interpreter(pytestconfig):
    """Triton reads TRITON_INTERPRET when it is imported, so that this needs a new process."""
    source = HERE.parent / "src"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "KERNEL_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(source), str(HERE), os.environ.get("PYTHONPATH", "")])
    chosen = ["-m", pytestconfig.getoption("markexpr")]  # of `make soak`: the slow cases, too
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *chosen,
        str(HERE / "gpu/test_kernels.py"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=HERE.parent)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100


@needs_triton
def test_kernels_are_started_as_triton_does():
    """Compiled for a GPU, with a driver that only looks at what would be started."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, str(HERE / "driver_without_gpu.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    names = ("_gather", "_gram_partials", "_sum_partials", "_admit", "_write", "_solve", "_update")
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == {**dict.fromkeys(names, 8), "_noise": 4}
    names = ("_gather", "_encode", "_gram_partials", "_sum_partials", "_admit", "_write", "_solve")
    assert ast.literal_eval(done.stdout.splitlines()[-2]) == {  # of integers
        **dict.fromkeys(names, 8), "_update": 6, "_expand": 2, "_noise": 2,
    }  # fmt: skip
    names = ("_gather", "_gram_partials", "_sum_partials", "_admit", "_write", "_noise", "_solve", "_update")
    assert ast.literal_eval(done.stdout.splitlines()[-3]) == dict.fromkeys(names, 2)  # of a whitening
