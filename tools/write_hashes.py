"""Write hashes.txt anew: the sha256 of every file that the index of packages has for a version of constraints.txt.

pip says which packages the project needs here, without installing them. Their own requirements say which of them
another system or another Python needs. Run this after every change of constraints.txt: ``make hashes``.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from check_installed import pinned, plain
from package_index import PackageIndex
from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
OURS = "torch-ggt"
EXTRAS = ("dev", "docs", "bench")
BUILDER = ("editables", *tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
# hatchling asks for editables when it is used. CUDA's packages follow the build of torch.
LEFT_OUT = ("nvidia-", "cuda-")
SYSTEMS = {"Linux": "linux", "Darwin": "darwin"}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
HEAD = """\
# The sha256 of every file that CI installs, for every system and Python that the index of packages has files for.
# `make hashes` writes this file from constraints.txt. Do not edit it.
#
# CI sets HASHED=1, and the Makefile then installs in this order:
#   1. everything in this file. pip refuses a file whose sha256 is not here, builds nothing and fetches nothing else.
#   2. torch alone, in its exact version. It has no hash here, because its CPU build is not on the index of packages.
#   3. torch-ggt and torch-ggt-cpu, with --no-index. pip can fetch nothing any more, and stops if something is missing.
# What builds our packages (hatchling and what it needs) is in this file, too. Step 3 uses it as it is installed.
# Not covered are torch, pip itself, which comes with Python, and the packages of `make integrations` and `make audit`.
#
# `make test` and `make demo` of a user install from constraints.txt, without hashes. There are three reasons. A build
# of torch with CUDA brings packages that are not here, and step 3 would refuse it. Windows needs packages that
# constraints.txt does not name (colorama, cffi). Step 1 takes no package that must be built, and a system or a
# Python for which a package has no wheel would be left without it.
"""


def resolved() -> dict[str, dict[str, Any]]:
    """What pip says about every package that the project, its extras and its builder need here, by name."""
    wanted = [f"{ROOT}[{','.join(EXTRAS)}]", *BUILDER]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "-c", str(ROOT / "constraints.txt"), *wanted]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text())["install"]
    return {plain(each["metadata"]["name"]): each["metadata"] for each in found}


def needed(packages: dict[str, dict[str, Any]], environment: dict[str, str]) -> set[str]:
    """The names of the packages that an environment needs."""
    left = [(OURS, extra) for extra in ("", *EXTRAS)] + [(plain(Requirement(words).name), "") for words in BUILDER]
    found: set[tuple[str, str]] = set()
    while left:
        name, extra = left.pop()
        if (name, extra) in found or name.startswith(LEFT_OUT):
            continue
        found.add((name, extra))
        if name not in packages:
            continue  # the versions say whether it has one
        for words in packages[name].get("requires_dist", []):
            more = Requirement(words)
            if more.marker is None or more.marker.evaluate({**environment, "extra": extra}):
                left += [(plain(more.name), each) for each in ("", *more.extras)]
    return {name for name, _ in found} - {OURS, "torch"}


def marker(where: set[tuple[str, str]]) -> str:
    """The condition that is true in these pairs of a system and a Python."""
    if where == set(itertools.product(SYSTEMS, PYTHONS)):
        return ""
    systems, pythons = ({pair[part] for pair in where} for part in (0, 1))
    if where != set(itertools.product(systems, pythons)):
        raise SystemExit(f"No simple condition says {sorted(where)}")
    parts = []
    for key, all_of_them, these in (("platform_system", SYSTEMS, systems), ("python_version", PYTHONS, pythons)):
        if these != set(all_of_them):
            either = " or ".join(f'{key} == "{each}"' for each in sorted(these))
            parts.append(either if len(these) == 1 else f"({either})")
    return " ; " + " and ".join(parts)


def hashes(index: PackageIndex, name: str, version: str) -> list[str]:
    """The sha256 of each wheel and source archive of a version."""
    found = set()
    for file, sha256 in index.files(name):
        parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
        try:
            its_version = parse(file)[1]
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue  # eggs and installers, which pip does not install
        if str(its_version) == version:
            if sha256 is None:
                raise SystemExit(f"The index of packages names no sha256 for {file}")
            found.add(sha256)
    if not found:
        raise SystemExit(f"The index of packages has no file of {name} {version}")
    return sorted(found)


def main() -> None:
    """Write hashes.txt; stop if a package has no version in constraints.txt, or no file on the index."""
    versions, packages, index = pinned(ROOT / "constraints.txt"), resolved(), PackageIndex()
    where: dict[str, set[tuple[str, str]]] = {}
    for system, python in itertools.product(SYSTEMS, PYTHONS):
        environment = {
            "platform_system": system,
            "sys_platform": SYSTEMS[system],
            "os_name": "posix",
            "python_version": python,
            "python_full_version": f"{python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }
        for name in needed(packages, environment):
            where.setdefault(name, set()).add((system, python))
    unpinned = sorted(set(where) - set(versions))
    if unpinned:
        raise SystemExit(f"constraints.txt has no version of {', '.join(unpinned)}")
    rows, number = [], 0
    for name in sorted(where):
        found = hashes(index, name, versions[name])
        number += len(found)
        lines = [f"{name}=={versions[name]}{marker(where[name])}", *(f"    --hash=sha256:{each}" for each in found)]
        rows.append(" \\\n".join(lines) + "\n")
    (ROOT / "hashes.txt").write_text(HEAD + "\n" + "".join(rows))
    print(f"hashes.txt: {len(rows)} packages, {number} files")


if __name__ == "__main__":
    main()
