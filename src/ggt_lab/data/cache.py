"""Decoded arrays on disk with a checksum. A damaged cache is made again."""

import hashlib
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggt_lab.data.published_files import data_file, local_folder

__all__ = ["Arrays", "cache_folder", "cached", "digest", "loaded", "read_arrays", "write_arrays"]

Arrays = dict[str, NDArray[Any]]
_CHECKSUM = "sha256"


def cache_folder() -> Path:
    """``GGT_CACHE``, or ``~/.cache/torch-ggt``."""
    return Path(os.environ.get("GGT_CACHE") or "~/.cache/torch-ggt").expanduser()


def cached(name: str, make: Callable[[], Arrays], folder: Path | None = None) -> Arrays:
    """The arrays that the cache holds under ``name``. If it holds none, ``make`` makes them and the cache keeps them.

    Args:
        name: the name of the cache file, without ending. Another decoding must have another name.
        make: called if there is no cache file or a damaged one; a warning names the damaged file.
        folder: `cache_folder` unless given.
    """
    path = (folder or cache_folder()) / f"{name}.npz"
    try:
        return read_arrays(path)
    except FileNotFoundError:
        pass
    except _DamagedError as damage:
        warnings.warn(f"the cache {path} is damaged ({damage}); making it again", stacklevel=2)
    arrays = make()
    write_arrays(path, arrays)
    return arrays


def loaded(
    name: str, make: Callable[[Path | None, Path], Arrays], folder: Path | str | None, cache: Path | None
) -> Arrays:
    """The arrays of a data set: from the cache, or made from the local folder or a download.

    Args:
        name: the name of the cache file, without ending.
        make: makes the arrays; its arguments are the local folder, if there is one, and the folder for downloads.
        folder: the local folder; ``GGT_DATA`` unless given.
        cache: the folder for downloads and decoded arrays; `cache_folder` unless given.
    """
    local, cache = local_folder(folder), cache or cache_folder()
    return cached(name, lambda: make(local, cache), cache)


class _DamagedError(Exception):
    """Why a cache file cannot be used."""


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """The sha256 of the names, types, shapes and contents."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write an ``.npz`` file that holds its own checksum."""
    with data_file(path) as file:
        np.savez(file, **{_CHECKSUM: np.array(digest(arrays))}, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> Arrays:
    """What `write_arrays` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        _DamagedError: the content is not what was written.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        expected = str(arrays.pop(_CHECKSUM))
    except (OSError, EOFError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise _DamagedError(f"{type(error).__name__}: {error}") from error
    except (zipfile.BadZipFile, zlib.error, AttributeError) as error:  # np.load raises many errors on other bytes
        raise _DamagedError(f"{type(error).__name__}: {error}") from error
    if digest(arrays) != expected:
        raise _DamagedError("its contents do not have the checksum written beside them")
    return arrays
