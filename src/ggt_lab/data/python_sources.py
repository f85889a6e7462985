"""A text of bytes: the Python sources of pinned packages. ``python tools/python_sources.py DIR`` makes it.

The packages are pure Python, so that their wheels are alike on all machines. The files are sorted by the sha256 of
their names. The last twentieths are the test text and the validation text; the rest is the training text.
"""

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ggt_lab.data.cache import read_arrays, write_arrays
from ggt_lab.data.ptb import Text
from ggt_lab.data.published_files import DataError, local_folder

__all__ = ["FILE", "PACKAGES", "load_python_sources", "make_python_sources"]

FILE = "python-sources.npz"
PACKAGES = ("sympy==1.14.0", "networkx==3.6.1", "setuptools==84.2.1", "plotly==7.1.0", "rich==15.0.0")
"""What the text is made of; the wheel of each of them is on PyPI."""
_SHARE = 20


def make_python_sources(wheels: Iterable[Path], path: Path) -> Path:
    """Write the text of the sources in ``wheels`` to ``path``."""
    sources: dict[str, bytes] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    sources[name] = archive.read(name)
    if not sources:
        raise DataError("the wheels hold no Python sources")
    order = sorted(sources, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    every = np.frombuffer(b"\n".join(sources[name] for name in order), np.uint8)
    part = len(every) // _SHARE
    parts = {"train": every[: -2 * part], "valid": every[-2 * part : -part], "test": every[-part:]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(path, parts)
    return path


def load_python_sources(folder: Path | str | None = None) -> Text:
    """The text as codes from 0 to 255.

    Args:
        folder: the folder with ``python-sources.npz``; ``GGT_DATA`` unless given.

    Raises:
        DataError: the file is not there.
    """
    local = local_folder(folder)
    path = None if local is None else local / FILE
    if path is None or not path.exists():
        where = "no folder was named" if local is None else f"{local} does not hold it"
        raise DataError(
            f"{FILE} is needed, and {where}. Make it with `python tools/python_sources.py DIR`, and give --data DIR."
        )
    arrays = read_arrays(path)
    return Text(arrays["train"], arrays["valid"], arrays["test"], tuple(map(str, range(256))))
