"""Every figure of the README is computed again from records/, or from the library; so are the tables of the league.

A figure is a number with a comment behind it: ``0.54<!-- thirteen convection NorMuon alone -->``. The first word names
a function of this file, and the other words are its arguments. To add a figure, write the number with such a comment.
To add a kind of figure, write a function and list it in FIGURES. A number in the text without a comment must be on the
list of numbers that nobody measured.
"""

import functools
import importlib.util
import json
import math
import re
import statistics
import sys
import tomllib
from pathlib import Path

import pytest

from torch_ggt import GGT

tables = pytest.importorskip("ggt_lab.league.tables")
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
KEYED = re.compile(rf"({NUMBER})\*{{0,2}}<!-- ([^>]*?) -->")
# The year of the paper, versions, rows of windows, limits and goals, AdamW's two moments in bytes, the gigabytes of an
# environment of `make test`, millions of parameters, the percent of two sentences about the small GPT, deep tasks.
CHOSEN = {"2019", "3.11", "2.11", "20", "50", "1.2", "70", "0.9", "8", "2.5", "10", "10.8", "25.6", "5.5", "0.7", "2.9"}
CHOSEN |= {"1", "4", "0.11"}  # the p-value: docs/league.md


def lines_of(*path):
    return [json.loads(line) for line in (ROOT / "records").joinpath(*path).read_text().splitlines()]


@functools.cache
def whitened_pairs(folder):
    """The benchmark that made the record, and the scores of the record's fresh seeds."""
    spec = importlib.util.spec_from_file_location("readme_pairs", ROOT / "benchmarks" / "whitened_pairs.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    seeds = json.loads((ROOT / "records" / folder / "config.json").read_text())["seeds"]
    return module, module.scores(lines_of(folder, "results.jsonl"), seeds)


THREE, TEN = "2026-11-18-whitened-pairs", "2026-11-18-whitened-pairs-ten"


def mean_error(folder, problem, optimizer, method):
    module, scores = whitened_pairs(folder)
    score = scores[module.Entrant(f"pinn-{problem}", optimizer, *module.METHODS[method])]
    assert score.complete
    return score.mean


def thirteen(*which):
    """The mean of the metric over all fresh seeds: three, and ten more."""
    return (3 * mean_error(THREE, *which) + 10 * mean_error(TEN, *which)) / 13


def promised(what):
    promises = json.loads((ROOT / "records" / "speed.json").read_text())["promises"]
    (found,) = [each["figure"] for each in promises if each["what"] == what]
    return found


def speed_whiten(model, how):
    """The time of a training step with whiten(AdamW), divided by the time with fused AdamW."""
    return promised(
        f"training step of whiten(AdamW) over the optimizer that it replaces, {model}, r = 20, bfloat16, {how}"
    )


def window_bytes(dtype, rows):
    """The bytes of the window for each parameter, as the library counts them."""
    return GGT.memory(1_000_000, window=int(rows), window_dtype=dtype).window / 1_000_000


def league_cell(task, entrant):
    (found,) = [cell for cell in league()["cells"] if (cell["task"], cell["entrant"]) == (task, entrant)]
    return found


def league_mean(task, entrant):
    """The geometric mean of the metric over the fresh seeds of the league."""
    return statistics.geometric_mean(league_cell(task, entrant)["values"])


def league_step(optimizer, which):
    """The time of a step of the whitened optimizer, divided by the time of its step alone: over all tasks."""
    seconds = {
        (task, name): league_cell(task, name)["step_seconds"]
        for task in league()["complete"]
        for name in (optimizer, f"whiten-{optimizer}")
    }
    ratios = [seconds[task, f"whiten-{optimizer}"] / seconds[task, optimizer] for task in league()["complete"]]
    return {"least": min, "most": max}[which](ratios)


@functools.cache
def drop_in_ratios():
    """(task, rate) → the mean score of whiten(AdamW), divided by the mean score of AdamW; the more seeds come last."""

    def ratios(file):
        scores = {}
        for run in lines_of("2026-11-18-drop-in", file):
            scores.setdefault((run["task"], run["lr"]), {}).setdefault(run["method"], []).append(run["score"])
        mean = statistics.fmean
        return {key: mean(found["whiten(AdamW)"]) / mean(found["AdamW"]) for key, found in scores.items()}

    helped_to_choose = {"lstm", "gpt", "two-scales"}
    listed = {key: ratio for key, ratio in ratios("runs.jsonl").items() if key[0] not in helped_to_choose}
    return listed | ratios("digits_more_seeds.jsonl")


def drop_in(what):
    ratios = drop_in_ratios()
    counts = {"listed": len(ratios), "within": sum(ratio <= 1.2 for ratio in ratios.values())}
    # A row that is missed on more seeds counts as missed, though its first five seeds are in the list of lower losses.
    counts |= {"below": sum(ratio < 1 for ratio in ratios.values()), "digits": ratios["digits", 0.01]}
    return counts[what]


@functools.cache
def league():
    return json.loads((ROOT / "records" / "league.json").read_text())


def league_tasks():
    return len(league()["complete"])


def league_rank(entrant):
    """The mean rank among our member and the four rivals."""
    (found,) = [each["mean"] for each in league()["ranks_rivals"] if each["entrant"] == entrant]
    return found


def league_level(kind, against="four"):
    """On how many tasks our member is the first or level with the first: of four rivals, or of all."""
    key = {"four": "level", "all": "level_with_all"}[against]
    return sum(each[key] for each in league()["rivalry" if kind == "small" else "rivalry_deep"])


def league_steps(kind, rival):
    """Our member's steps to the level of the best rival, divided by the steps of this rival."""
    return league()["speedups" if kind == "small" else "speedups_deep"][rival]["steps"]


def league_seconds(kind, rival):
    """As `league_steps`, in seconds."""
    return league()["speedups" if kind == "small" else "speedups_deep"][rival]["seconds"]


def adamw_at_length(task):
    """The test loss of AdamW's best trial of full length, chosen on the validation text; one seed."""
    length = next(each["steps"] for each in league()["tasks"] if each["name"] == task)
    runs = lines_of("2026-11-18-league-second", "results.jsonl")
    ends = [
        run["points"][-1]
        for run in runs
        if (run["task"], run["entrant"], run["seed"], run["steps"]) == (task, "adamw", 200, length)
    ]
    assert len(ends) == 8
    return min(ends, key=lambda end: end["validation_loss"])["test_loss"]


FIGURES = [
    league_tasks,
    league_rank,
    league_level,
    league_steps,
    league_seconds,
    adamw_at_length,
    thirteen,
    speed_whiten,
    league_mean,
    league_step,
    window_bytes,
    drop_in,
]


@pytest.mark.parametrize(("written", "key"), KEYED.findall(README), ids=str)
def test_a_figure_is_what_the_records_say(written, key):
    name, *words = key.split()
    value = {function.__name__: function for function in FIGURES}[name](*words)
    digits = len(written.partition(".")[2])
    assert float(written.replace(",", "")) == pytest.approx(value, abs=0.5 * 10**-digits * (1 + 1e-9))


def test_no_figure_is_without_a_record():
    text = KEYED.sub("", README)
    text = re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)|!\[[^\]]*\]", "", text, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(rf"(?<![\w.-]){NUMBER}", text)) <= CHOSEN


def test_the_tables_of_the_league_are_those_of_its_record():
    figures = "../records/2026-11-18-league-second/"
    assert (ROOT / "docs" / "league_tables.md").read_text() == tables.page(league(), figures)


def test_the_deep_table_of_the_league():
    """Each cell of docs/league.md says mean ± standard error; the lowest mean of a task is bold."""
    text = (ROOT / "docs" / "league.md").read_text().partition("## Deep tasks")[2]
    heading, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    names = {"`whiten(Muon)`": "whiten-muon", "`GGT`, defaults": "ggt"}
    names |= {entrant["title"]: entrant["name"] for entrant in league()["entrants"]}
    lowest = {}
    for cell in league()["cells"]:
        if cell["status"] == "done":
            lowest[cell["task"]] = min(lowest.get(cell["task"], math.inf), cell["mean"])
    seen = 0
    for title, *cells in rows[: [row[0] for row in rows].index("parameters")]:
        for task, written in zip(heading[1:], cells, strict=True):
            cell = league_cell(task.strip("`"), names[title.strip("*")])
            words = "not run"
            if cell["n"]:
                error = statistics.stdev(cell["values"]) / math.sqrt(cell["n"])
                words = f"{statistics.geometric_mean(cell['values']):.4f} ± {error:.4f}"
                words = f"**{words}**" if cell["mean"] == lowest[cell["task"]] else words
                words += " (edge)" if cell["edge"] else ""
                words += f" (n = {cell['n']})" if cell["n"] < 3 else ""
            assert written == words, (title, task)
            seen += 1
    assert seen == 8 * 5


def test_it_is_a_front_door():
    assert len(README.splitlines()) <= 110
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    raw = repository.replace("https://github.com", "https://raw.githubusercontent.com") + "/main/"
    for target in re.findall(r"\]\(([^)]*)\)", README):
        assert target.startswith("https://"), f"{target} would not be found from PyPI"
        inside = re.sub(rf"^(?:{re.escape(repository)}/(?:blob|tree)/main/|{re.escape(raw)})", "", target)
        assert inside == target or (ROOT / inside.partition("#")[0]).exists(), target
