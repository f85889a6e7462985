"""One HTML page from a collection. Text and tables are made here; ``page.js`` draws the charts with plotly.js.

The page needs no other file: scripts, styles and pictures are in it. A Content-Security-Policy forbids the browser to
fetch anything, and to run any script but the two whose hashes it names.
"""

import base64
import datetime
import functools
import hashlib
import math
import mimetypes
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from plotly.offline import get_plotlyjs

import torch_ggt
from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.experiments.verdicts import Figure, count
from ggt_lab.optimizers.colors import color_numbers
from ggt_lab.report.collection import Collection, Section, Spectrum, collect
from ggt_lab.report.race_sentences import number, seeds, summary
from ggt_lab.report.races import Race
from ggt_lab.report.spectrum_heatmap import heat_map
from ggt_lab.runs.standings import CRITERIA, standings

__all__ = ["render", "write_report"]


def write_report(folder: Path) -> Path:
    """Write ``report.html`` about everything below ``folder``.

    A damaged file is left out. The page and a warning name it.

    Returns:
        The path of the page.

    Raises:
        ValueError: there is nothing to report.
    """
    collection = collect(folder)
    for complaint in collection.warnings:
        warnings.warn(complaint, stacklevel=2)
    # The name of a file may have bytes that are no UTF-8: they are replaced, so that the page can be written.
    page = render(collection, folder).encode("utf-8", "replace").decode()
    return write_atomically(folder / "report.html", page)


def render(collection: Collection, folder: Path) -> str:
    """The page as a string; links are relative to ``folder``."""
    plotly, script = (Markup(_inline(text)) for text in (get_plotlyjs(), _asset("page.js")))
    colors = _colors(collection.sections)
    races = [race for section in collection.sections for race in section.races]
    spectra = [spectrum for section in collection.sections for spectrum in section.spectra]
    content = {
        "races": [_race_data(race, colors) for race in races],
        "spectra": [_spectrum_data(spectrum) for spectrum in spectra],
    }
    return _template().render(
        title=folder.resolve().name,
        collection=collection,
        summary=summary(collection),
        totals=_totals(collection),
        standings=standings,
        seeds=seeds,
        criteria=CRITERIA,
        diagnosis=_diagnosis,
        href=lambda path: quote(os.fsencode(Path(os.path.relpath(path, folder)).as_posix())),
        relative=lambda path: Path(os.path.relpath(path, folder)).as_posix(),
        policy=_policy(plotly, script),
        style=Markup(_asset("page.css")),
        plotly=plotly,
        script=script,
        content=htmlsafe_json_dumps(_without_nonfinite(content), allow_nan=False, separators=(",", ":")),
        version=torch_ggt.__version__,
        today=datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M"),
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": number,
        "exact": _exact,
        "data_uri": _data_uri,
        "count": count,
        "breakable": _breakable,
    }
    return environment.from_string(_asset("page.html"))


# Before a hump, after a sign, and after a dot between words: page.js has the same.
_JOINTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[(,=_])|(?<=\.)(?=[A-Za-z])")


def _breakable(name: str) -> Markup:
    """A name that may break between its parts, and not inside of them: FullMatrix|Adaptive(|beta2=|0.995)."""
    return Markup("<wbr>").join(_JOINTS.split(name))


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _inline(script: str) -> str:
    """A script in the form that an HTML parser hands on, so that its hash is right. Nothing in it ends the element."""
    return script.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    # plotly.js sets styles while it runs, so that styles cannot be named by hashes.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _data_uri(figure: Figure) -> str:
    kind = mimetypes.guess_type(figure.path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(figure.path.read_bytes()).decode()}"


def _exact(value: object) -> str:
    """The shortest text that reads back as this number; empty if it is no finite number."""
    return repr(value) if isinstance(value, int | float) and math.isfinite(value) else ""


def _diagnosis(value: object) -> str:
    """A number of a diagnosis, or several numbers with their names, as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_diagnosis(each)}" for name, each in value.items())
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else number(value)


def _colors(sections: Iterable[Section]) -> dict[str, int]:
    """The number of the colour of each optimizer, one for the whole page."""
    names = (
        standing.optimizer for section in sections for race in section.races for standing in standings(race.records)
    )
    return color_numbers(sorted(set(names)))


def _totals(collection: Collection) -> list[tuple[str, str, str]]:
    """The figures at the top of the page: name, figure, remark."""
    runs = [run for section in collection.sections for race in section.races for run in race.records]
    verdicts = [verdict for section in collection.sections for verdict in section.verdicts]
    spectra = sum(len(section.spectra) for section in collection.sections)
    totals = []
    if runs:
        problems, optimizers = ({run[key] for run in runs} for key in ("problem", "optimizer"))
        diverged = sum(run["status"] != "done" for run in runs)
        totals += [
            ("Runs", str(len(runs)), f"{diverged or 'none'} diverged"),
            ("Optimizers", str(len(optimizers)), f"on {count(len(problems), 'problem')}"),
        ]
    if verdicts:
        held, undecided = (sum(verdict.holds is answer for verdict in verdicts) for answer in (True, None))
        totals.append(("Claims that hold", f"{held} of {len(verdicts)}", f"{undecided or 'none'} undecided"))
    if spectra:
        totals.append(("Spectra", str(spectra), "of gradient windows"))
    return totals


def _race_data(race: Race, colors: Mapping[str, int]) -> dict[str, Any]:
    """What the charts of a race need: every number of every run, and the best learning rate of each optimizer."""
    points = [point for run in race.records for point in run["curve"]]
    numeric = dict.fromkeys(
        key
        for point in points
        for key, value in point.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    )
    metrics = [race.metric, *(key for key in numeric if key not in ("step", "seconds", race.metric))]
    columns = ("step", "seconds", *metrics)
    best = {by: {each.optimizer: each.lr for each in standings(race.records, by=by)} for by in CRITERIA}
    return {
        "title": race.title,
        "larger": race.larger_is_better,
        "metrics": metrics,
        "optimizers": [
            {"name": name, "color": colors[name], "best": {by: rates[name] for by, rates in best.items()}}
            for name in best["final"]
        ],
        "runs": [
            {
                **{key: run[key] for key in ("optimizer", "lr", "seed", "status")},
                "columns": {key: [point.get(key) for point in run["curve"]] for key in columns},
            }
            for run in race.records
        ],
    }


def _spectrum_data(spectrum: Spectrum) -> dict[str, Any]:
    return {"label": spectrum.label, "window": spectrum.window, **vars(heat_map(spectrum))}


def _without_nonfinite(value: Any) -> Any:  # noqa: ANN401
    """The value with null in place of numbers that are not finite: browsers refuse them in JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nonfinite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(each) for each in value]
    return value
