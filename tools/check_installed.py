"""Is what is installed what was pinned? CI runs this, and ``make audit`` does; it needs no network.

Two questions are asked of every package in this environment. Is its version the version of constraints.txt? Is every
file that it brought the file whose sha256 pip wrote down when it installed the package? What a network is needed for,
the search for known advisories, is left to pip-audit.
"""

import argparse
import base64
import csv
import hashlib
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ("torch-ggt", "torch-ggt-cpu")
# pip comes with the environment. The packages of CUDA follow the build of torch.
NOT_PINNED = ("nvidia-", "cuda-")


def plain(name: str) -> str:
    """A name as the index of packages spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    """The versions of a file of constraints, by name."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return {plain(line.partition("==")[0]): line.partition("==")[2] for line in lines if line}


def version_problem(name: str, version: str, wanted: dict[str, str]) -> str | None:
    """What is wrong with a version, in words; builds of one version (2.13.0+cpu) count as that version."""
    if name in (*OURS, "pip") or name.startswith(NOT_PINNED):
        return None
    if name not in wanted:
        return f"{name} {version} is installed, and constraints.txt does not name it"
    if version.partition("+")[0] != wanted[name]:
        return f"{name} {version} is installed, and constraints.txt names {wanted[name]}"
    return None


def changed_files(distribution: Distribution) -> list[str]:
    """The files of a package that are not those that pip has installed."""
    found = []
    # Since Python 3.12 distribution.files leaves missing files out, so pip's own list is read here.
    for name, written, _ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if not written or name.endswith(".pyc"):
            continue
        path = Path(str(distribution.locate_file(name)))
        if not path.exists():
            found.append(f"{path} is missing")
            continue
        kind, _, value = written.partition("=")
        made = hashlib.new(kind, path.read_bytes()).digest()
        if base64.urlsafe_b64encode(made).rstrip(b"=").decode() != value:
            found.append(f"{path} is not the file that was installed")
    return found


def main() -> None:
    """Print every problem; the exit status is 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    given = parser.parse_args()
    wanted, problems, number = pinned(given.constraints), [], 0
    for distribution in distributions():
        number += 1
        problem = version_problem(plain(distribution.name), distribution.version, wanted)
        problems += [problem] if problem else []
        problems += changed_files(distribution) if plain(distribution.name) not in OURS else []
    for problem in problems:
        print(problem)
    print(f"{number} packages are installed; {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
