"""Does an advisory name a version of constraints.txt? ``make audit`` runs this with the Python that has pip-audit.

pip-audit ends well, and says "No known vulnerabilities found", when the service that it asks knows none of the
packages: an index of packages that has no advisories is enough for that. So its answers are counted here. A package
that was not looked up is a failure, as an advisory is.

pip-audit asks for the page of each version. Some copies of the index have none, and have the page of each project. That
page has the same advisories, for the newest version alone. So what pip-audit did not look up is looked up there.
"""

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from check_installed import pinned, plain
from package_index import PackageIndex

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ["-m", "pip_audit", "--requirement", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip"]
OPTIONS = ["--format", "json", "--progress-spinner", "off"]
# Its last version has had this advisory since 2017. A page that does not name it has no advisories at all.
KNOWN_TO_BE_BAD = ("pycrypto", "2.6.1", "PYSEC-2017-94")

Page = dict[str, Any] | None


def advisories_of_newest(page: Page, version: str) -> list[dict[str, str]] | None:
    """The advisories that a project page has for a version; None if another version is the newest one."""
    if page is None or "vulnerabilities" not in page or page.get("info", {}).get("version") != version:
        return None
    return [{"id": found["id"]} for found in page["vulnerabilities"] if not found.get("withdrawn")]


def ask_project_pages(answer: dict[str, Any], versions: dict[str, str], page_of: Callable[[str], Page]) -> str:
    """Put into pip-audit's answer what the project pages say of the packages it skipped; how that went, in words."""
    skipped = [package for package in answer["dependencies"] if "skip_reason" in package]
    name, version, advisory = KNOWN_TO_BE_BAD
    known = advisories_of_newest(page_of(name), version) or []
    if advisory not in [found["id"] for found in known]:
        return f"The project pages of the index were not used: they do not name {advisory} for {name} {version}."
    number = 0
    for package in skipped:
        version = versions[plain(package["name"])]
        found = advisories_of_newest(page_of(package["name"]), version)
        if found is not None:
            del package["skip_reason"]
            package.update(version=version, vulns=found)
            number += 1
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"pip-audit did not look up {len(skipped)} packages. The project pages of the index answered for {number} of "
        f"them on {today}: those whose pinned version is the newest one."
    )


def verdict(answer: dict[str, Any]) -> tuple[str, bool]:
    """What the answer says, in words, and whether all is well."""
    packages = answer["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    named = [
        f"{package['name']} {package['version']}: {', '.join(found['id'] for found in package['vulns'])}"
        for package in packages
        if package.get("vulns")
    ]
    looked_up = len(packages) - len(skipped)
    words = f"{looked_up} of {len(packages)} packages were looked up; advisories name {len(named)} of them."
    lines = [words, *named]
    if skipped:
        lines.append(
            f"Not looked up: {', '.join(skipped)}. The service has no advisories for these versions, or it was not "
            "reached. Run this where the public package index itself can be reached."
        )
    return "\n".join(lines), bool(packages) and not skipped and not named


def main() -> None:
    """Run pip-audit, then ask the project pages; end with 1 unless all was looked up, and no advisory names it."""
    versions = pinned(ROOT / "constraints.txt")
    done = subprocess.run([sys.executable, *COMMAND, *OPTIONS], capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
        packages = answer["dependencies"]
    except (ValueError, KeyError):
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        print(f"pip-audit could not ask. {last[0][:300]}")
        packages = [{"name": name, "skip_reason": "pip-audit could not ask"} for name in versions]
        answer = {"dependencies": packages}
    if any("skip_reason" in package for package in packages):
        print(ask_project_pages(answer, versions, PackageIndex().project))
    words, well = verdict(answer)
    print(words)
    sys.exit(not well)


if __name__ == "__main__":
    main()
