"""Everything below a folder of results, read into sections: races, verdicts, figures, spectra and leagues.

A damaged file does not hide the other files. It is left out, and a warning names it.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ggt_lab.data.json_files import (
    COUNT,
    LIST,
    NUMBERS,
    OBJECT,
    POSITIVE,
    TEXT,
    flaw,
    optional,
    read_object,
    regular_bytes,
    there,
)
from ggt_lab.experiments.verdicts import Experimented, Figure, Verdict, read_verdicts
from ggt_lab.report.league_section import League, read_league
from ggt_lab.report.races import Race, split_into_races, tuned_and_decided
from ggt_lab.runs.race import FRESH
from ggt_lab.runs.race_seconds import STEP_SECONDS, read_step_seconds
from ggt_lab.runs.results import Record, Results
from ggt_lab.spectra.eigenvalue_filters import above_rounding

__all__ = ["Collection", "Section", "Spectrum", "collect"]

_T = TypeVar("_T")

_SPECTRUM = {
    "steps": NUMBERS,
    "singular_values": LIST,
    "label": optional(TEXT),
    "window": optional(COUNT),
    "diagnosis": optional(OBJECT),
}
_DIAGNOSIS = {"summary": optional(TEXT), "numbers": optional(OBJECT)}
_IMAGE_SUFFIXES = (".png", ".svg", ".jpg", ".jpeg")
_LINK_SUFFIXES = (".png", ".pdf")


@dataclass(frozen=True)
class Spectrum:
    """The singular values of the window during one training run."""

    label: str
    window: int
    steps: tuple[float, ...]
    singular_values: tuple[tuple[float, ...], ...]
    """One tuple for each step, in descending order. While the window fills, tuples are shorter than the window."""
    summary: str
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """One folder that holds something."""

    folder: Path
    title: str
    races: tuple[Race, ...]
    verdicts: tuple[Verdict, ...]
    figures: tuple[Figure, ...]
    spectra: tuple[Spectrum, ...]
    league: League | None
    environments: tuple[tuple[Record, int], ...]
    """The machines on which records were made, and the number of records from each."""
    others: int
    """The number of records without a curve."""
    links: tuple[Path, ...]
    """Pictures and documents beside the results."""

    @property
    def environment_keys(self) -> list[str]:
        """All keys of the environments."""
        return list(dict.fromkeys(key for environment, _ in self.environments for key in environment))


@dataclass(frozen=True)
class Collection:
    """All sections, and warnings about files that could not be read."""

    sections: tuple[Section, ...]
    warnings: tuple[str, ...]


def collect(folder: Path) -> Collection:
    """Read everything in ``folder`` and below it, in the order of paths.

    Raises:
        ValueError: there is no such folder, or it holds nothing that a report could show.
    """
    if not folder.is_dir():
        what = "is a file; give the folder that holds it" if folder.exists() else "does not exist"
        raise ValueError(f"a report needs a folder of results, and {folder} {what}")
    complaints: list[str] = []
    inside = sorted(path for path in folder.rglob("*") if path.is_dir())
    # A link may lead to a folder that has its section already.
    folders = {os.path.realpath(path): path for path in [*reversed(inside), folder]}
    sections = tuple(
        section
        for each in sorted(folders.values())
        if (section := _read_section(each, folder, complaints.append)) is not None
    )
    if not sections:
        damaged = "".join(f"\n- {complaint}" for complaint in complaints)
        raise ValueError(
            f"nothing to report under {folder}: looked for results.jsonl (made by `ggt race PROBLEM --out {folder}`), "
            "verdicts.json (made by `ggt reproduce`), league.json (made by `ggt league`) and spectrum*.json"
            + (f"; what was there could not be read:{damaged}" if damaged else "")
        )
    return Collection(_told_apart(sections), tuple(complaints))


def _told_apart(sections: Sequence[Section]) -> tuple[Section, ...]:
    """The sections, in which the races that tune are told from those of fresh seeds, which decide and come first."""
    found = {section.folder: section for section in sections}
    around = [section for section in sections if section.folder.name != FRESH]
    named = sum(len(section.races) for section in around) > 1
    for section in around:
        beside = found.get(section.folder / FRESH)
        tuned, decided = tuned_and_decided(section.races, beside.races if beside is not None else (), named=named)
        found[section.folder] = _with_races(section, tuned)
        if beside is not None:
            found[beside.folder] = _with_races(beside, decided)
    order = {folder: folder.parent if folder.name == FRESH else folder for folder in found}
    return tuple(found[folder] for folder in sorted(found, key=lambda each: (order[each], each == order[each])))


def _with_races(section: Section, races: tuple[Race, ...]) -> Section:
    """The section with these races, and with their titles if it had the titles of the races before."""
    old, new = (", ".join(race.title for race in each) for each in (section.races, races))
    return replace(section, races=races, title=new if section.title == old else section.title)


def _read_section(folder: Path, root: Path, complain: Callable[[str], None]) -> Section | None:
    records = _read_records(folder / "results.jsonl", complain)
    step_seconds = _attempt(read_step_seconds, folder / STEP_SECONDS, complain) or {}
    races = split_into_races((record for record in records if "curve" in record), step_seconds)
    experiment = _attempt(read_verdicts, folder / "verdicts.json", complain)
    spectra = tuple(
        spectrum
        for path in sorted(folder.glob("spectrum*.json"))
        if (spectrum := _attempt(_read_spectrum, path, complain)) is not None
    )
    league = _attempt(read_league, folder / "league.json", complain)
    if not records and experiment is None and not spectra and league is None:
        return None
    experiment = experiment or Experimented("", (), (), smoke=False)
    shown = (*experiment.figures, *(league.figures if league is not None else ()))
    figures = tuple(figure for figure in shown if _may_be_embedded(figure, root, complain))
    titles = [race.title for race in races] or [spectrum.label for spectrum in spectra]
    return Section(
        folder=folder,
        title=experiment.title or ", ".join(titles) or ("The league" if league else folder.resolve().name),
        races=races,
        verdicts=experiment.verdicts,
        figures=figures,
        spectra=spectra,
        league=league,
        environments=_count_environments(records),
        others=sum("curve" not in record for record in records),
        links=tuple(path for path in sorted(folder.iterdir()) if path.suffix.lower() in _LINK_SUFFIXES),
    )


def _attempt(read: Callable[[Path], _T], path: Path, complain: Callable[[str], None]) -> _T | None:
    """What ``read`` returns for ``path``. If the file is damaged: None, and a complaint that names it."""
    if not there(path):
        return None
    try:
        return read(path)
    except (ValueError, OSError) as error:
        complain(f"{path} is left out: {error}")
        return None


def _read_records(path: Path, complain: Callable[[str], None]) -> list[Record]:
    try:
        return list(Results(path).read(complain))
    except (ValueError, OSError) as error:
        complain(f"{path} is left out: {error}")
        return []


def _count_environments(records: Iterable[Record]) -> tuple[tuple[Record, int], ...]:
    counts: dict[str, tuple[Record, int]] = {}
    for record in records:
        environment = record.get("environment")
        if isinstance(environment, dict):
            key = json.dumps(environment, sort_keys=True)
            counts[key] = (environment, counts.get(key, (environment, 0))[1] + 1)
    return tuple(counts.values())


def _may_be_embedded(figure: Figure, root: Path, complain: Callable[[str], None]) -> bool:
    """Whether a figure may be in the report. A report is passed on: no file from outside the results may be in it."""
    try:
        content = regular_bytes(figure.path) if there(figure.path) else None
        inside = figure.path.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # unreadable; a name with a NUL; links in a circle
        complain(f"figure {figure.path} is left out: {error}")
        return False
    if not inside:
        complain(f"figure {figure.path} is left out: it lies outside of {root}")
    elif content is None:
        complain(f"figure {figure.path} is left out: there is no such file")
    elif figure.path.suffix.lower() not in _IMAGE_SUFFIXES:
        complain(f"figure {figure.path} is left out: only {', '.join(_IMAGE_SUFFIXES)} can be embedded")
    else:
        return True
    return False


def _read_spectrum(path: Path) -> Spectrum:
    content = read_object(path)
    diagnosis = content.get("diagnosis") or {}
    found = flaw(content, _SPECTRUM) or flaw(diagnosis, _DIAGNOSIS)
    if found is not None:
        raise ValueError(found)
    steps, values, numbers = content["steps"], content["singular_values"], diagnosis.get("numbers") or {}
    if not all(map(NUMBERS.test, values)) or not all(value >= 0 for row in values for value in row):
        raise ValueError(
            "its singular_values should be lists of finite numbers that are not negative, one list per step"
        )
    if len(steps) != len(values) or not steps:
        raise ValueError(
            f"it has {len(steps)} steps and {len(values)} lists of singular values; both should be as many"
        )
    if not all(math.isfinite(value * value) for row in values for value in row):
        raise ValueError("the squares of its singular values should be finite")
    if not POSITIVE.test(numbers.get("rounding", 1.0)):
        raise ValueError(f"the rounding of its diagnosis is {numbers['rounding']!r}, and should be a positive number")
    if not any(above_rounding(row, numbers) for row in values):
        raise ValueError("none of its singular values is positive and above rounding: there is nothing to draw")
    return Spectrum(
        label=content.get("label") or path.stem,
        window=content.get("window") or max(map(len, values)),
        steps=tuple(steps),
        singular_values=tuple(map(tuple, values)),
        summary=diagnosis.get("summary") or "",
        numbers=numbers,
    )
