"""What an integration says when its package is missing or too old, or an argument is wrong."""

import importlib.metadata
import re

__all__ = ["check_every", "need"]


def need(package: str, oldest: str, because: str) -> None:
    """Raise ImportError unless ``package`` is installed in the version ``oldest`` or a newer one.

    The message says what to install. The extra of torch-ggt has the name of the package.

    Args:
        package: its name on PyPI.
        oldest: the oldest version that has what the integration uses, e.g. "4.47".
        because: what an older version lacks.
    """
    install = f'pip install "torch-ggt[{package}]"'
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"torch_ggt.integrations.{package} needs the package {package}: {install}") from None
    if _numbers(found) < _numbers(oldest):
        raise ImportError(
            f"torch_ggt.integrations.{package} needs {package} {oldest} or newer ({because}), and {found} is "
            f"installed: {install} --upgrade"
        )


def check_every(callback: str, every: int) -> int:
    """``every``, if it is a number of steps; ValueError names the callback."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"{callback}: every must be an integer of at least 1, got every={every!r}")
    return every


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
