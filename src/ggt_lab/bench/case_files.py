"""Files of measured cases: one JSON object per case, read back from folders of records."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ggt_lab.runs.results import Record

__all__ = ["existing_folders", "read_cases"]


def read_cases(folders: Iterable[Path]) -> list[Record]:
    """The measured cases below these folders, in the order of file names; of two files on one case the later counts."""
    return list({each["case"]: each for each in _objects(folders) if "case" in each and "kind" in each}.values())


def _objects(folders: Iterable[Path]) -> Iterator[Record]:
    """The objects in the JSON files below these folders. A file that a kill cut short is left out."""
    for folder in folders:
        for file in sorted(folder.rglob("*.json")):
            try:
                found = json.loads(file.read_text())
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def existing_folders(folders: Sequence[Path]) -> Sequence[Path]:
    """The folders themselves.

    Raises:
        ValueError: one of them does not exist.
    """
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ValueError(f"no such folder of records: {', '.join(missing)}")
    return folders
