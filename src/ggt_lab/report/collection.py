"""Everything below a folder of results, read into sections: races, verdicts, figures and spectra.

A damaged file does not hide the other files. It is left out, and a warning names it.
"""

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ggt_lab.experiments.verdicts import Experimented, Figure, Verdict, read_verdicts
from ggt_lab.runs.results import Record, Results

__all__ = ["Collection", "Race", "Section", "Spectrum", "collect"]

_T = TypeVar("_T")

_RACE_KEYS = ("problem", "optimizer", "lr", "seed", "metric", "status")
_IMAGE_SUFFIXES = (".png", ".svg", ".jpg", ".jpeg")
_LINK_SUFFIXES = (".png", ".pdf")


@dataclass(frozen=True)
class Race:
    """Runs that may be compared: they have one problem, one length and one device."""

    title: str
    problem: str
    records: tuple[Record, ...]

    @property
    def metric(self) -> str:
        """The number that is to be small."""
        return str(self.records[0]["metric"])


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
    folders = sorted({folder, *(path for path in folder.rglob("*") if path.is_dir())})
    sections = tuple(
        section for each in folders if (section := _read_section(each, folder, complaints.append)) is not None
    )
    if not sections:
        damaged = "".join(f"\n- {complaint}" for complaint in complaints)
        raise ValueError(
            f"nothing to report under {folder}: looked for results.jsonl (made by `ggt race PROBLEM --out {folder}`), "
            "verdicts.json (made by `ggt reproduce`) and spectrum*.json"
            + (f"; what was there could not be read:{damaged}" if damaged else "")
        )
    return Collection(sections, tuple(complaints))


def _read_section(folder: Path, root: Path, complain: Callable[[str], None]) -> Section | None:
    records = _read_records(folder / "results.jsonl", complain)
    races = _split_into_races([record for record in records if "curve" in record], folder, complain)
    experiment = _attempt(read_verdicts, folder / "verdicts.json", complain)
    spectra = tuple(
        spectrum
        for path in sorted(folder.glob("spectrum*.json"))
        if (spectrum := _attempt(_read_spectrum, path, complain)) is not None
    )
    if not records and experiment is None and not spectra:
        return None
    experiment = experiment or Experimented("", (), (), smoke=False)
    figures = tuple(figure for figure in experiment.figures if _may_be_embedded(figure, root, complain))
    titles = [race.title for race in races] or [spectrum.label for spectrum in spectra]
    return Section(
        folder=folder,
        title=experiment.title or ", ".join(titles) or folder.resolve().name,
        races=races,
        verdicts=experiment.verdicts,
        figures=figures,
        spectra=spectra,
        environments=_count_environments(records),
        others=sum("curve" not in record for record in records),
        links=tuple(path for path in sorted(folder.iterdir()) if path.suffix.lower() in _LINK_SUFFIXES),
    )


def _attempt(read: Callable[[Path], _T], path: Path, complain: Callable[[str], None]) -> _T | None:
    """What ``read`` returns for ``path``. If the file is damaged: None, and a complaint that names it."""
    if not path.exists():
        return None
    try:
        return read(path)
    except (ValueError, OSError) as error:
        complain(f"{path} is left out: {error}")
        return None


def _read_object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"it should hold one JSON object, and holds a {type(content).__name__}")
    return content


def _read_records(path: Path, complain: Callable[[str], None]) -> list[Record]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = _attempt(lambda path: list(Results(path)), path, complain) or []
    for warning in caught:
        complain(str(warning.message))
    return records


def _split_into_races(records: Iterable[Record], folder: Path, complain: Callable[[str], None]) -> tuple[Race, ...]:
    """One race for each problem, length and device: only such runs can be compared."""
    kinds: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if (flaw := _flaw(record)) is not None:
            complain(f"a run in {folder / 'results.jsonl'} is left out: {flaw}")
            continue
        kind = (record["problem"], record.get("steps"), record.get("device"), record["metric"])
        kinds.setdefault(kind, []).append(record)
    races = []
    for (problem, steps, device, metric), runs in kinds.items():
        twins = [kind for kind in kinds if kind[0] == problem]
        # The title names only what tells this race from other races on the problem.
        details = [
            word
            for position, word in (
                (1, f"{steps} steps" if steps is not None else "full length"),
                (2, str(device)),
                (3, str(metric)),
            )
            if len({kind[position] for kind in twins}) > 1
        ]
        races.append(Race(", ".join([str(problem), *details]), str(problem), tuple(runs)))
    return tuple(races)


def _flaw(record: Record) -> str | None:
    """Why a record with a curve cannot be shown; None if it can be shown."""
    missing = [key for key in _RACE_KEYS if key not in record]
    if missing:
        return f"it has a curve but no {', '.join(missing)}"
    if not _is_number(record["lr"]):
        return f"its learning rate is {record['lr']!r}, not a number"
    curve = record["curve"]
    needed = ("step", "seconds", record["metric"])
    if not isinstance(curve, list) or not all(isinstance(point, dict) for point in curve):
        return "its curve is not a list of points"
    if not all(_is_number(point.get(key)) for point in curve for key in needed):
        return f"not every point of its curve has finite numbers {', '.join(map(str, needed))}"
    if record["status"] == "done" and not curve:
        return "it is done, but its curve is empty"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
    if not figure.path.resolve().is_relative_to(root.resolve()):
        complain(f"figure {figure.path} is left out: it lies outside of {root}")
    elif not figure.path.is_file():
        complain(f"figure {figure.path} is left out: there is no such file")
    elif figure.path.suffix.lower() not in _IMAGE_SUFFIXES:
        complain(f"figure {figure.path} is left out: only {', '.join(_IMAGE_SUFFIXES)} can be embedded")
    else:
        return True
    return False


def _read_spectrum(path: Path) -> Spectrum:
    content = _read_object(path)
    steps, values = content.get("steps"), content.get("singular_values")
    if not isinstance(steps, list) or not all(map(_is_number, steps)):
        raise ValueError("its 'steps' should be a list of numbers")
    if not isinstance(values, list) or not all(isinstance(row, list) for row in values):
        raise ValueError("its 'singular_values' should be a list of lists, one per step")
    if len(steps) != len(values) or not steps:
        raise ValueError(
            f"it has {len(steps)} steps and {len(values)} lists of singular values; both should be as many"
        )
    if not all(_is_number(value) and value >= 0 for row in values for value in row):
        raise ValueError("its singular values should be finite and not negative")
    if not any(value * value > 0 for row in values for value in row):
        raise ValueError("none of its singular values is positive: there is nothing to draw")
    diagnosis = content.get("diagnosis") or {}
    if not isinstance(diagnosis, dict) or not isinstance(diagnosis.get("numbers", {}), dict):
        raise ValueError("its 'diagnosis' should be an object with 'summary' and 'numbers'")
    return Spectrum(
        label=str(content.get("label") or path.stem),
        window=int(content.get("window") or max(map(len, values))),
        steps=tuple(steps),
        singular_values=tuple(map(tuple, values)),
        summary=str(diagnosis.get("summary", "")),
        numbers=diagnosis.get("numbers", {}),
    )
