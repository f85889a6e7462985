"""Files that are complete or not there at all, whatever comes between."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_file", "write_atomically"]


@contextlib.contextmanager
def atomic_file(path: Path, draft: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write. It gets its name only when it is complete and on disk.

    Args:
        path: the final name; until then an older file keeps this name.
        draft: the name while it is written. By default it is always the same, so that the next call writes over what
            a kill left. Where several processes write one file at once, each needs a draft of its own.
    """
    draft = draft or path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):  # in a folder that cannot be written there is nothing to remove
            draft.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> Path:
    """Write a text with `atomic_file`, and return its path."""
    with atomic_file(path) as file:
        file.write(text.encode())
    return path
