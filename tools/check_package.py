"""Build the wheel and the source archive, look into both, and use the wheel in empty environments.

``make package`` runs this. It needs pip and a source of packages, and it writes the two files into ``dist``. The first
environment gets the wheel and nothing that the lab needs; the second gets the wheel with the extra ``lab``.
"""

import argparse
import statistics
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = {"wheel": 1_000_000, "source": 1_000_000}  # bytes
DATA_FILES = (
    "torch_ggt/py.typed",
    "ggt_lab/report/page.html",
    "ggt_lab/report/page.css",
    "ggt_lab/report/page.js",
    "ggt_lab/planning/calibration.json",
    "ggt_lab/cli/known_names.json",
    "ggt_lab/problems/template.py",
)
STEP = """
import torch
from torch_ggt import GGT
weight = torch.nn.Parameter(torch.ones(3))
optimizer = GGT([weight], lr=0.3, window=5)
for _ in range(20):
    optimizer.zero_grad()
    (weight**2).sum().backward()
    optimizer.step()
assert weight.norm() < 1, weight
"""
# Seconds of the processor, because other programs may run. pip has compiled the files, as it does for every user.
IMPORTS = "import time, torch; start = time.process_time(); import torch_ggt; print(time.process_time() - start)"
LONGEST_IMPORT = 0.030  # seconds


def main() -> None:
    """Build, look, install, use; the first thing that is wrong ends the program."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder of the two files")
    options.add_argument("--without-lab", action="store_true", help="leave out the environment with the extra lab")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel, source = build(Path(folder) / "build", given.dist)
        look_into(wheel, source)
        use_the_library(Path(folder) / "plain", wheel)
        if not given.without_lab:
            use_the_lab(Path(folder) / "lab", wheel)
    say("The package is sound.")


def say(words: str) -> None:
    """Print at once."""
    print(words, flush=True)


def environment(folder: Path, *packages: str) -> Path:
    """A fresh environment with these packages; the folder of its programs."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    quiet = ["--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    run(programs / "python", "-m", "pip", "install", *quiet, *packages)
    run(programs / "python", "-m", "pip", "check")
    return programs


def run(*command: object, status: int = 0, cwd: Path | None = None) -> str:
    """What a command says; another status than ``status`` ends the program."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode != status:
        words = f"{' '.join(map(str, command))} ended with status {done.returncode}, expected {status}"
        sys.exit(f"{words}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def require(condition: bool, words: str) -> None:
    """End the program if something is wrong."""
    if not condition:
        sys.exit(words)


def build(folder: Path, dist: Path) -> tuple[Path, Path]:
    """The wheel and the source archive, fresh."""
    programs = environment(folder, "hatchling")
    for old in [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]:
        old.unlink()
    run(programs / "python", "-m", "hatchling", "build", "-d", dist, cwd=ROOT)
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, source


def look_into(wheel: Path, source: Path) -> None:
    """Both files are small, complete, and hold nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    strange = [name for name in names if not name.startswith(("torch_ggt/", "ggt_lab/", "torch_ggt-"))]
    require(not strange, f"{wheel.name} holds {strange}")
    missing = [name for name in DATA_FILES if name not in names]
    require(not missing, f"{wheel.name} lacks {missing}")
    with tarfile.open(source) as archive:
        packed = archive.getnames()
    strange = [name for name in packed if "/records/" in name or name.endswith((".pt", ".npz", ".jsonl"))]
    require(not strange, f"{source.name} holds {strange[:5]}")
    for kind, file in (("wheel", wheel), ("source", source)):
        size = file.stat().st_size
        require(size < LARGEST[kind], f"{file.name} has {size:,} bytes; {LARGEST[kind]:,} are allowed")
        say(f"{file.name}: {size:,} bytes")


def use_the_library(folder: Path, wheel: Path) -> None:
    """The wheel alone: the optimizer works, and the command says what it needs."""
    programs = environment(folder, str(wheel))
    run(programs / "python", "-c", STEP, cwd=folder)
    say(run(programs / "ggt", "--version", cwd=folder).strip())
    run(programs / "ggt", "list", cwd=folder)
    words = run(programs / "ggt", "race", "logistic", status=2, cwd=folder)
    require("pip install 'torch-ggt[lab]'" in words and "Traceback" not in words, f"ggt race says {words!r}")
    quiet = (programs / "python", "-W", "ignore", "-c", IMPORTS)  # torch warns without NumPy
    times = [float(run(*quiet, cwd=folder)) for _ in range(5)]
    median = statistics.median(times)
    say(f"import torch_ggt adds {1e3 * median:.0f} ms to import torch (median of {len(times)})")
    require(median < LONGEST_IMPORT, f"import torch_ggt takes longer than {1e3 * LONGEST_IMPORT:.0f} ms")


def use_the_lab(folder: Path, wheel: Path) -> None:
    """The wheel with the extra: a race and its page."""
    programs = environment(folder, f"{wheel}[lab]")
    race = ["race", "logistic", "--optimizers", "SGD", "GGT", "--lrs", "0.1", "--seeds", "1", "--steps", "5"]
    run(programs / "ggt", *race, "--workers", "1", "--out", "r", cwd=folder)
    run(programs / "ggt", "report", "r", cwd=folder)
    require((folder / "r" / "report.html").stat().st_size > 1_000_000, "the page is not whole")
    say("A race and its report work.")


if __name__ == "__main__":
    main()
