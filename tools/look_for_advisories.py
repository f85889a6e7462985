"""Does an advisory name a version of constraints.txt? ``make audit`` runs this with the Python that has pip-audit.

pip-audit ends well, and says "No known vulnerabilities found", when the service that it asks knows none of the
packages: an index of packages that has no advisories is enough for that. So its answers are counted here. A package
that was not looked up is a failure, as an advisory is.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ["-m", "pip_audit", "--requirement", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip"]
OPTIONS = ["--format", "json", "--progress-spinner", "off"]


def verdict(answer: dict[str, Any]) -> tuple[str, bool]:
    """What pip-audit's answer says, in words, and whether all is well."""
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
        shown = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        lines.append(
            f"Not looked up: {shown}. The service has no advisories for them: it is an index of packages alone, or it "
            "is not reached. Run this where https://pypi.org can be reached."
        )
    return "\n".join(lines), bool(packages) and not skipped and not named


def main() -> None:
    """Run pip-audit; end with 1 unless every package was looked up, and no advisory names it."""
    done = subprocess.run([sys.executable, *COMMAND, *OPTIONS], capture_output=True, text=True, check=False)
    try:
        words, well = verdict(json.loads(done.stdout))
    except (ValueError, KeyError):
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        words, well = f"No advisory was looked up: pip-audit could not ask. {last[0][:300]}", False
    print(words)
    sys.exit(not well)


if __name__ == "__main__":
    main()
