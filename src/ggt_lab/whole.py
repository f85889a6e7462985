"""Files that are there as a whole or not at all, whatever comes between."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["whole_file", "write_whole"]


@contextlib.contextmanager
def whole_file(path: Path, draft: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write that bears its name only once it is complete and on disk.

    Args:
        path: what it will be called; until then that name keeps what it had.
        draft: where it is written, beside it. By default always the same place, so that what a kill left there is
            written over; where several write at once, each needs its own.
    """
    draft = draft or path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):  # a folder that cannot be written or reached has nothing of ours
            draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> Path:
    """Write a text so; the path."""
    with whole_file(path) as file:
        file.write(text.encode())
    return path
