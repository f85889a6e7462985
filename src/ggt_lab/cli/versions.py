"""Versions of this package and of torch, found without importing them: torch takes seconds to import."""

import importlib.metadata
import importlib.util
import platform
import re
from pathlib import Path

__all__ = ["own_version", "torch_version", "versions"]


def own_version() -> str:
    """The version of the package that would be imported, be it installed or not."""
    found = importlib.util.find_spec("torch_ggt")
    text = Path(found.origin).read_text(encoding="utf-8") if found is not None and found.origin is not None else ""
    match = re.search(r'^__version__ = "(.+)"', text, flags=re.MULTILINE)
    return match.group(1) if match else "of an unknown version"


def torch_version() -> str | None:
    """The version of torch; None if it is not installed."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> str:
    """What ``ggt --version`` says."""
    return f"torch-ggt {own_version()}, torch {torch_version() or 'not installed'}, Python {platform.python_version()}"
