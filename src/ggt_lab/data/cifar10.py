"""CIFAR-10 (Krizhevsky 2009): 60,000 colour images of 32 × 32 pixels in ten classes.

The images are read from the published binary archive, from the ``.bin`` files in it, or from their lossless ``.medxz``
form. Nothing is unpickled.
"""

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ggt_lab.data import medxz
from ggt_lab.data.cache import Arrays, loaded
from ggt_lab.data.download import Progress, download, to_stderr
from ggt_lab.data.published_files import (
    DataError,
    DownloadError,
    PublishedFile,
    check,
    check_bytes,
    find_together,
    missing,
)

__all__ = ["RELEASE", "Images", "Release", "load_cifar10"]

RECORD = 1 + 3 * 32 * 32
_SUBFOLDERS = (".", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin")


@dataclass(frozen=True)
class Images:
    """Images (count, 3, 32, 32) and labels (count,), all uint8."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


@dataclass(frozen=True)
class Release:
    """The published files: the archive, and the batches in it, the test batch last."""

    archive: PublishedFile
    batches: tuple[PublishedFile, ...]


# The page of the authors gives the md5 of the archive, which a forger can meet; public loaders of the binary version
# check this sha256. We computed the digests of the files in it, which public loaders check too.
RELEASE = Release(
    PublishedFile(
        "cifar-10-binary.tar.gz",
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170_052_171,
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    ),
    tuple(
        PublishedFile(f"{name}.bin", f"sha256:{digest}", 10_000 * RECORD)
        for name, digest in (
            ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
)


def load_cifar10(
    folder: Path | str | None = None,
    *,
    release: Release = RELEASE,
    cache: Path | None = None,
    progress: Progress | None = to_stderr,
) -> Images:
    """All images, from the cache, the local folder or a download, in this order.

    Args:
        folder: a folder with the archive, its ``.bin`` files or their ``.medxz`` forms, at the top, in ``cifar10`` or
            in ``cifar-10-batches-bin``; ``GGT_DATA`` unless given.
        release: the published files.
        cache: the folder for downloads and decoded arrays; `cache_folder` unless given.
        progress: called during a download; None for silence.

    Raises:
        DataError: the images are damaged, or neither here nor to be downloaded.
    """

    def make(local: Path | None, cache: Path) -> Arrays:
        batches = _from_folder(local, release) if local is not None else None
        if batches is None:
            batches = _from_download(local, cache, release, progress)
        return _decode(batches)

    return Images(**loaded("cifar10-v1", make, folder, cache))


def _from_folder(folder: Path, release: Release) -> list[bytes] | None:
    archive = find_together(folder, _SUBFOLDERS, [release.archive.name])
    if archive is not None:
        check(archive[0], release.archive)
        return _read_archive(archive[0], release)
    names = [batch.name for batch in release.batches]
    plain = find_together(folder, _SUBFOLDERS, names)
    if plain is not None:
        for path, batch in zip(plain, release.batches, strict=True):
            check(path, batch)
        return [path.read_bytes() for path in plain]
    packed = find_together(folder, _SUBFOLDERS, [name.replace(".bin", ".medxz") for name in names])
    if packed is None:
        return None
    contents = []
    for path, batch in zip(packed, release.batches, strict=True):
        try:
            contents.append(medxz.decode(path.read_bytes()))
        except ValueError as error:
            raise DataError(f"{path} is damaged: {error}. Replace it by a good copy, or remove it.") from error
        check_bytes(contents[-1], batch, str(path))
    return contents


def _from_download(local: Path | None, cache: Path, release: Release, progress: Progress | None) -> list[bytes]:
    try:
        archive = download(release.archive, cache, progress=progress)
    except DownloadError as error:
        layouts = f"{release.archive.name} (or the .bin files in it)"
        raise missing("CIFAR-10", [release.archive], local, layouts, error) from error
    return _read_archive(archive, release)


def _read_archive(path: Path, release: Release) -> list[bytes]:
    """The batches in the archive, found by name in any folder of it."""
    wanted = {batch.name for batch in release.batches}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                content = archive.extractfile(member) if member.isfile() and name in wanted else None
                if content is not None:
                    found[name] = content.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} cannot be read as an archive ({error}); remove it and run again") from error
    absent = sorted(wanted - set(found))
    if absent:
        raise DataError(f"{path} holds no {', '.join(absent)}; it is not the binary version of CIFAR-10")
    for batch in release.batches:
        check_bytes(found[batch.name], batch, f"{path}, {batch.name},")
    return [found[batch.name] for batch in release.batches]


def _decode(batches: list[bytes]) -> Arrays:
    for batch in batches:
        if len(batch) % RECORD:
            raise DataError(f"a batch of {len(batch)} bytes is no whole number of images of {RECORD} bytes")
    train, test = (np.frombuffer(b"".join(part), np.uint8).reshape(-1, RECORD) for part in (batches[:-1], batches[-1:]))
    return {
        "train_images": train[:, 1:].reshape(-1, 3, 32, 32).copy(),
        "train_labels": train[:, 0].copy(),
        "test_images": test[:, 1:].reshape(-1, 3, 32, 32).copy(),
        "test_labels": test[:, 0].copy(),
    }
