"""Make the text of the task gpt-bytes: the Python sources of pinned packages.

    python tools/python_sources.py DIR

downloads the wheels with pip, and writes DIR/python-sources.npz.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from ggt_lab.data.python_sources import FILE, PACKAGES, load_python_sources, make_python_sources


def main() -> None:
    """Download, write, and say how long the texts are."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as kept:
        pip = [sys.executable, "-m", "pip"]
        command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", kept, *PACKAGES]
        subprocess.run(command, check=True)
        path = make_python_sources(sorted(Path(kept).glob("*.whl")), folder / FILE)
    text = load_python_sources(folder)
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in (("train", text.train), ("valid", text.valid)))
    print(f"{path}: {sizes}, test {len(text.test):,} bytes")


if __name__ == "__main__":
    main()
