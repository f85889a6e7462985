"""A league as a part of the report: its tables and its figures, from ``league.json``."""

from dataclasses import dataclass
from pathlib import Path

from ggt_lab.data.json_files import read_object
from ggt_lab.experiments.verdicts import Figure
from ggt_lab.league.tables import Part, parts

__all__ = ["League", "read_league"]

_FIGURES = {
    "cells.png": "The number of every run with a fresh seed, for every entrant on every task",
    "profiles.png": "Performance profiles: the share of tasks solved within a multiple of the cheapest entrant's cost",
}


@dataclass(frozen=True)
class League:
    """What a league found."""

    parts: tuple[Part, ...]
    figures: tuple[Figure, ...]


def read_league(path: Path) -> League:
    """Read ``league.json``, and the figures beside it.

    Raises:
        ValueError: the file is not the summary of a league.
        OSError: the file cannot be read.
    """
    summary = read_object(path)
    try:
        made = tuple(parts(summary))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"it is not the summary of a league ({type(error).__name__}: {error})") from error
    figures = tuple(
        Figure(path.with_name(name), alt) for name, alt in _FIGURES.items() if path.with_name(name).exists()
    )
    return League(made, figures)
