"""Published files of data: their checksums, how they are written, and where a user keeps them."""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ggt_lab.data import atomic_files

__all__ = [
    "DataError",
    "DownloadError",
    "PublishedFile",
    "check",
    "check_bytes",
    "data_file",
    "find_together",
    "local_folder",
    "missing",
]

_WRITE_PROBLEMS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "no room on the disk"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "no permission to write there"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "its folder is not a folder"),
}


class DataError(ValueError):
    """Data is missing or damaged, or there is no room for it; the message says what to do."""


class DownloadError(DataError):
    """None of its addresses gave a file."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        self.summary = f"{name} could not be downloaded ({'; '.join(reasons)})"
        super().__init__(
            f"{self.summary}. Nothing was kept. Try again later, or get the file elsewhere and name its folder in the "
            "environment: GGT_DATA=DIR."
        )


@dataclass(frozen=True)
class PublishedFile:
    """A file as its authors published it."""

    name: str
    checksum: str
    """The algorithm and the digest: ``"sha256:fcea…"``."""
    size: int
    """The size in bytes: it tells whether a wrong file was cut off."""
    urls: tuple[str, ...] = ()
    """Where to download it, tried in this order."""

    def hasher(self) -> "hashlib._Hash":
        """A fresh hash object of the algorithm in the checksum."""
        return hashlib.new(self.checksum.partition(":")[0])

    def complaint(self, size: int, digest: str) -> str | None:
        """What is wrong with content of this size and digest; None if nothing is."""
        algorithm, _, expected = self.checksum.partition(":")
        if digest == expected:
            return None
        cut_off = ": it seems cut off" if size < self.size else ""
        return f"expected {algorithm} {expected} ({self.size} bytes), got {digest} ({size} bytes){cut_off}"


def check(path: Path, published: PublishedFile) -> None:
    """Compare a file of the user with the published file.

    Raises:
        DataError: they differ.
    """
    hasher, size = published.hasher(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
            size += len(block)
    _refuse(str(path), published, published.complaint(size, hasher.hexdigest()))


def check_bytes(content: bytes, published: PublishedFile, where: str) -> None:
    """Compare content that was decoded from the file ``where`` with the published file."""
    hasher = published.hasher()
    hasher.update(content)
    _refuse(f"what {where} holds", published, published.complaint(len(content), hasher.hexdigest()))


def _refuse(what: str, published: PublishedFile, complaint: str | None) -> None:
    if complaint is not None:
        raise DataError(
            f"{what} is not {published.name} as published: {complaint}. "
            "Replace it by a good copy, or remove it and let it be downloaded."
        )


@contextmanager
def data_file(path: Path) -> Iterator[BinaryIO]:
    """`atomic_file` for data: several processes may write it at once, and errors say what to do.

    Raises:
        DataError: no room on the disk, no permission, or no folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_files.atomic_file(path, draft=path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")) as file:
            yield file
    except OSError as error:
        problem = _WRITE_PROBLEMS.get(error.errno or 0)
        if problem is None:
            raise
        raise DataError(
            f"could not write {path}: {problem} ({error.strerror}). Nothing was kept. "
            "Make room, or set GGT_CACHE to another folder, and run again."
        ) from error


def local_folder(folder: Path | str | None) -> Path | None:
    """The folder in which the user keeps data: ``folder``, else ``GGT_DATA``, else None.

    Raises:
        DataError: there is no such folder.
    """
    named = folder or os.environ.get("GGT_DATA")
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.is_dir():
        by = "--data" if folder else "GGT_DATA"
        raise DataError(f"{by} names {path}, which is not a folder; give one that holds the data, or leave it away")
    return path


def find_together(folder: Path, subfolders: Sequence[str], names: Sequence[str]) -> list[Path] | None:
    """The paths of ``names``, if one of the subfolders holds all of them; else None.

    Raises:
        DataError: a subfolder holds some of them and not all.
    """
    for subfolder in subfolders:
        paths = [folder / subfolder / name for name in names]
        absent = [path.name for path in paths if not path.is_file()]
        if not absent:
            return paths
        if len(absent) < len(paths):
            raise DataError(f"{folder / subfolder} lacks {', '.join(absent)}; add what is missing, or remove the rest")
    return None


def missing(
    what: str, files: Sequence[PublishedFile], folder: Path | None, layouts: str, error: DownloadError
) -> DataError:
    """The error for data that is in no folder and cannot be downloaded; it says the two ways to get the data."""
    size = sum(file.size for file in files) / 1e6
    looked = "no local folder was named" if folder is None else f"nothing of it in {folder}"
    return DataError(
        f"{what} is not here: {looked}, and {error.summary}. Two ways to get it:\n"
        f"  1. with a connection, run the same command again: it downloads {size:.0f} MB "
        f"({', '.join(file.urls[0] if file.urls else file.name for file in files)});\n"
        f"  2. put {layouts} into a folder and name it in the environment: GGT_DATA=DIR."
    )
