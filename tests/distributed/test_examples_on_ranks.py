"""The examples run, by torchrun too; DDP, FSDP2 and HSDP are one run, and it goes on from each other's checkpoints."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import on_ranks

ROOT = Path(__file__).parents[2]


def run_example(name, runs):
    """The last loss of each run of an example with these words, on the ranks that are there."""
    sys.path.insert(0, str(ROOT / "examples" / "distributed"))
    return [importlib.import_module(name).main(words) for words in runs]


def test_each_goes_on_from_the_others_checkpoints(tmp_path):
    folder = ["--save", str(tmp_path), "--window", "3", "--every", "2"]
    (whole,) = on_ranks(1, run_example, "chars_ddp", [["--steps", "8", "--window", "3"]])[0]
    first = on_ranks(2, run_example, "chars_ddp", [["--steps", "3", *folder]])
    second = on_ranks(4, run_example, "chars_fsdp2", [["--steps", "5", *folder, "--replicas", "2"]])
    third = on_ranks(2, run_example, "chars_fsdp2", [["--steps", "7", *folder]])
    last = on_ranks(1, run_example, "chars_ddp", [["--steps", "8", *folder]])
    assert sorted(f.parent.name[-1] for f in tmp_path.glob("step-*/.metadata")) == ["2", "3", "4", "5", "6", "7", "8"]
    for results in (first, second, third):
        assert len({loss for (loss,) in results}) == 1  # all ranks say the same
    assert last[0][0] == pytest.approx(whole, rel=1e-4)
    assert last[0][0] < third[0][0] < first[0][0]


def threads_left_by(name, words):
    """The names of this process' threads after an example has run and left."""
    run_example(name, [words])
    importlib.import_module("chars_ranks").leave()
    return [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the names of the threads")
@pytest.mark.parametrize(
    ("example", "more"), [("chars_ddp", []), ("chars_fsdp2", []), ("chars_fsdp2", ["--replicas", "2"])]
)
def test_no_thread_of_gloo_is_left_to_abort_a_process_that_ends(tmp_path, example, more):
    words = ["--steps", "1", "--window", "3", "--save", str(tmp_path), *more]
    for names in on_ranks(2, threads_left_by, example, words):
        assert not [name for name in names if "gloo" in name]


@pytest.mark.parametrize("example", ["chars_fsdp2", pytest.param("chars_ddp", marks=pytest.mark.soak)])
def test_torchrun_starts_them(tmp_path, example):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [
        str(ROOT / "examples" / "distributed" / f"{example}.py"),
        "--steps",
        "2",
        "--window",
        "3",
        "--save",
        str(tmp_path),
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"loss ([\d.]+)", done.stdout))
    assert last < first < 6
    assert (tmp_path / "step-000002" / ".metadata").exists()
