"""What is installed: every package has an exact version in constraints.txt, and the command knows who brings it."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from ggt_lab.cli.commands import _EXTRAS

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import check_installed
import look_for_advisories

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"scikit-learn": "sklearn"}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirements, extras=("",)):
    """The installed packages that these requirements bring, and the packages that those bring."""
    found, left = set(), [Requirement(words) for words in requirements]
    while left:
        requirement = left.pop()
        if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": each}) for each in extras):
            continue
        name = plain(requirement.name)
        if name == "torch-ggt" or name in found:
            continue
        try:
            more = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        found.add(name)
        left += [Requirement(words) for words in more if "extra ==" not in words]
    return found


def test_every_package_has_an_exact_version():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pinned = {plain(line.partition("==")[0]): line.partition("==")[2] for line in lines}
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pinned.values())
    wanted = [
        *PROJECT["dependencies"],
        *(each for listed in PROJECT["optional-dependencies"].values() for each in listed),
    ]
    found = needed(wanted)
    assert {"torch", "numpy", "sympy", "mpmath"} <= found
    unpinned = {name for name in found - set(pinned) if not name.startswith(("nvidia-", "cuda-"))}
    assert not unpinned  # CUDA's packages follow the build of torch


def test_the_command_knows_which_extra_brings_a_package():
    for extra in ("lab", "bench"):
        names = {Requirement(words).name for words in PROJECT["optional-dependencies"][extra]}
        assert {IMPORTED_AS.get(name, name) for name in names} == {name for name, by in _EXTRAS.items() if by == extra}


def test_a_version_that_is_not_the_pinned_one_is_told():
    wanted = check_installed.pinned(ROOT / "constraints.txt")
    told = check_installed.version_problem
    assert told("torch", "2.13.0+cpu", wanted) is None  # a build of the version
    assert "names 2.13.0" in told("torch", "2.12.0", wanted)
    assert "does not name it" in told("surprise", "1.0", wanted)
    assert "does not name it" in told("pip-extra", "1.0", wanted)


def test_a_file_that_was_changed_after_its_installation_is_told(tmp_path):
    module, info = tmp_path / "small.py", tmp_path / "small-1.0.dist-info"
    module.write_bytes(b"x = 1\n")
    info.mkdir()
    (info / "METADATA").write_text("Name: small\nVersion: 1.0\n")
    digest = "nia_NpkRxFwkPGhBR7I_yeHc_PJX0pmhxjIBam_NM_Q"
    (info / "RECORD").write_text(f"small.py,sha256={digest},6\nsmall-1.0.dist-info/RECORD,,\n")
    small = importlib.metadata.PathDistribution(info)
    assert check_installed.changed_files(small) == []
    module.write_bytes(b"x = 2\n")
    assert "is not the file that was installed" in check_installed.changed_files(small)[0]
    module.unlink()
    assert "is missing" in check_installed.changed_files(small)[0]


def test_what_was_not_looked_up_is_no_good_news():
    """pip-audit itself says "No known vulnerabilities found" then."""
    sound = {"name": "sound", "version": "1", "vulns": []}
    bad = {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1"}]}
    unknown = {"name": "unknown", "skip_reason": "Dependency not found on PyPI and could not be audited"}
    verdicts = [
        look_for_advisories.verdict({"dependencies": found}) for found in ([sound], [bad], [sound, unknown], [])
    ]
    assert [well for _, well in verdicts] == [True, False, False, False]
    assert "bad 2: PYSEC-1" in verdicts[1][0]
    assert "1 of 2 packages were looked up" in verdicts[2][0]
    assert "unknown" in verdicts[2][0]
