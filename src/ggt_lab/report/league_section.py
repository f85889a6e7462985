"""A league as a part of the report: its tables and its figures, from ``league.json``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggt_lab.data.json_files import read_object
from ggt_lab.experiments.verdicts import Figure
from ggt_lab.league.protocol import PROTOCOL
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
    except KeyError as error:
        raise ValueError(_without(summary, str(error.args[0]), path.parent)) from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"it is not the summary of a league ({type(error).__name__}: {error})") from error
    figures = tuple(
        Figure(path.with_name(name), alt) for name, alt in _FIGURES.items() if path.with_name(name).exists()
    )
    return League(made, figures)


def _without(summary: Mapping[str, Any], key: str, folder: Path) -> str:
    """What is said of a summary that lacks a key: another version of torch-ggt may have made it."""
    protocol = summary.get("protocol")
    if not isinstance(protocol, dict):
        return f"it is not the summary of a league (it has no {key})"
    if protocol.get("season", 1) != PROTOCOL.season:
        return (
            f"it is the summary of another season of the league, which this version does not read (it has no {key}); "
            "the league.md beside it has the tables"
        )
    return f"it has no {key}; if an older version made it, `ggt league --summary --out {folder}` writes it again"
