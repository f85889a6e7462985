"""What is installed: every package has an exact version in constraints.txt, and the command knows who brings it."""

import importlib.metadata
import re
import sys
import sysconfig
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from ggt_lab.cli.commands import _EXTRAS

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import check_installed
import look_for_advisories
import write_hashes

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HASHED = r"(?P<name>\S+)==(?P<version>\S+)(?P<marker> ; .+?)?(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)"
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


def hashed():
    """What hashes.txt says of each package; a line that says something else is an error."""
    lines = (ROOT / "hashes.txt").read_text().replace("\\\n", "").splitlines()
    found = [re.fullmatch(HASHED, line) for line in lines if line and line[0] != "#"]
    return {each["name"]: each for each in found}


def test_every_hash_is_for_the_pinned_version():
    pinned = check_installed.pinned(ROOT / "constraints.txt")
    versions = {name: each["version"] for name, each in hashed().items()}
    assert versions == {name: pinned[name] for name in versions}
    assert list(versions) == sorted(versions)
    assert {"numpy", "sympy", "sphinx", "hatchling", "editables"} <= set(versions)
    assert {name: each["marker"] for name, each in hashed().items() if each["marker"]} == {
        "triton": ' ; platform_system == "Linux"'
    }


def test_every_package_that_ci_installs_has_hashes():
    extras = ("dev", "lab", "test", "docs", "bench")
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in PROJECT["optional-dependencies"][extra])]
    found = needed(wanted)
    assert {"torch", "numpy", "sympy", "mpmath"} <= found
    if (Path(sys.prefix) / ".ready-hashed").exists():  # CI: there is nothing else
        installed = importlib.metadata.distributions(
            path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        )
        found = {plain(each.name) for each in installed}  # other tests put the packages inside setuptools on sys.path
    left_out = {"torch", "pip", *check_installed.OURS}
    assert not {name for name in found - left_out - set(hashed()) if not name.startswith(("nvidia-", "cuda-"))}


def test_a_package_of_some_systems_or_pythons_has_a_condition():
    packages = {
        "torch-ggt": {"requires_dist": ["a", "b; platform_system == 'Linux'", "torch", "c[fast]; extra == 'dev'"]},
        "c": {"requires_dist": ["d; extra == 'fast' and python_version < '3.12'", "e; extra == 'slow'"]},
    }
    here = {"platform_system": "Linux", "python_version": "3.11"}
    builder = {"hatchling", "editables"}
    assert write_hashes.needed(packages, here) == {"a", "b", "c", "d"} | builder
    there = {"platform_system": "Darwin", "python_version": "3.12"}
    assert write_hashes.needed(packages, there) == {"a", "c"} | builder
    both = [(system, python) for system in write_hashes.SYSTEMS for python in write_hashes.PYTHONS]
    assert write_hashes.marker(set(both)) == ""
    assert write_hashes.marker({pair for pair in both if pair[0] == "Linux"}) == ' ; platform_system == "Linux"'
    some = {pair for pair in both if pair[1] in {"3.11", "3.12"}}
    assert write_hashes.marker(some) == ' ; (python_version == "3.11" or python_version == "3.12")'


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


def test_project_pages_answer_for_their_newest_version_alone():
    def page(version, *ids):
        return {"info": {"version": version}, "vulnerabilities": [{"id": each, "withdrawn": None} for each in ids]}

    def asked(pages):
        answer = {"dependencies": [{"name": name, "skip_reason": "not found"} for name in ("newest", "older", "bad")]}
        versions = {"newest": "2", "older": "1", "bad": "3"}
        words = look_for_advisories.ask_project_pages(answer, versions, pages.get)
        return words, *look_for_advisories.verdict(answer)

    pages = {"newest": page("2"), "older": page("2", "PYSEC-2"), "bad": page("3", "PYSEC-3")}
    how, words, well = asked({**pages, "pycrypto": page("2.6.1", "PYSEC-2017-94")})
    assert "answered for 2 of them" in how
    assert "2 of 3 packages were looked up; advisories name 1" in words
    assert "bad 3: PYSEC-3" in words
    assert "Not looked up: older." in words
    assert not well
    # Pages without any advisories are no good news, and neither are pages that are not there.
    for more in ({"pycrypto": page("2.6.1")}, {}):
        how, words, well = asked({**pages, **more})
        assert "do not name PYSEC-2017-94" in how
        assert "0 of 3 packages were looked up" in words
        assert not well
    withdrawn = page("2", "PYSEC-2")
    withdrawn["vulnerabilities"][0]["withdrawn"] = "2026-01-01T00:00:00Z"
    assert look_for_advisories.advisories_of_newest(withdrawn, "2") == []
