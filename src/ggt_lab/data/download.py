"""Downloads that are complete or not there."""

import http.client
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ggt_lab.data.published_files import DataError, DownloadError, PublishedFile, check, data_file

__all__ = ["download", "to_stderr"]

Progress = Callable[[str, int, int], None]
"""Called with the name of the file, the bytes so far and the bytes in all."""


def to_stderr(name: str, done: int, size: int) -> None:
    """Show progress as one line that is written over; if stderr is no terminal, as one line at the end."""
    if sys.stderr.isatty():
        print(f"\r{name}: {done / 1e6:.1f} of {size / 1e6:.1f} MB", end="", file=sys.stderr, flush=True)
    if done >= size:
        print(f"\r{name}: {done / 1e6:.1f} MB downloaded", file=sys.stderr, flush=True)


def download(
    published: PublishedFile, folder: Path, *, progress: Progress | None = to_stderr, timeout: float = 30.0
) -> Path:
    """Download a file into ``folder``, unless it is there, from the first of its addresses that has it.

    A damaged file of that name is replaced. A download without the published checksum is not kept.

    Args:
        published: name, checksum and addresses.
        folder: the folder; it is made if it does not exist.
        progress: called for every block that arrives; None for silence.
        timeout: the seconds without a byte after which an address is given up.

    Raises:
        DownloadError: no address gave the file; the message has the reason for each.
        DataError: there is no room for the file.
    """
    target = folder / published.name
    if target.is_file():
        try:
            check(target, published)
        except DataError:
            pass  # download it again
        else:
            return target
    reasons = []
    for url in published.urls:
        try:
            complaint = _download_from(url, published, target, progress, timeout)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, DataError):  # no room: another address would not help
                raise
            complaint = f"{type(error).__name__}: {error}"
        if complaint is None:
            return target
        reasons.append(f"{url}: {complaint}")
    raise DownloadError(published.name, reasons or ["no address is known"])


class _RefusedError(Exception):
    """The download is not the published file. It is raised inside `data_file`, which then keeps nothing."""


def _download_from(
    url: str, published: PublishedFile, target: Path, progress: Progress | None, timeout: float
) -> str | None:
    """Try one address; what is wrong with the download, or None."""
    hasher, size = published.hasher(), 0
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response, data_file(target) as file:
            while block := response.read(1 << 18):
                file.write(block)
                hasher.update(block)
                size += len(block)
                if progress is not None:
                    progress(published.name, size, published.size)
            complaint = published.complaint(size, hasher.hexdigest())
            if complaint is not None:
                raise _RefusedError(complaint)
    except _RefusedError as refused:
        return str(refused)
    return None
