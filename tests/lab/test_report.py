"""The report: nothing lost, nothing invented, nothing fetched; and a page that everyone can use, in a real browser."""

import base64
import hashlib
import html.parser
import itertools
import json
import math
import re
import statistics

import numpy as np
import pytest
from axe_core_python.selenium import Axe
from browser import chromium, console, prefer, requested, resize, wait_until
from scipy import ndimage
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from ggt_lab.experiments.seed_statistics import why_open
from ggt_lab.report.collection import Spectrum, collect
from ggt_lab.report.page import write_report
from ggt_lab.report.race_sentences import summary, winner
from ggt_lab.report.spectrum_heatmap import heat_map
from ggt_lab.runs.race import grid, race
from ggt_lab.runs.race_seconds import write_step_seconds
from ggt_lab.runs.results import Results
from ggt_lab.runs.standings import standings
from ggt_lab.spectra.eigenvalue_filters import median_filter

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = "SGD</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'&<b>%{x}"
HOSTILE_METRIC = "<b>loss</b> &amp; <i>more</i>"
CRITERIA = ("final", "per_step", "per_second")


def record(optimizer, lr, seed, values, *, status="done", problem="p", metric="loss", **more):
    curve = [{"step": 10 * i, "seconds": 0.1 * i, metric: v} for i, v in enumerate(values)]
    key = f"{problem} {optimizer} {lr} {seed} {more}"
    kept = {"problem": problem, "optimizer": optimizer, "lr": lr, "seed": seed, "metric": metric, "status": status}
    return {"key": key, **kept, "curve": curve, **more}


def write_records(folder, records):
    for each in records:
        Results(folder / "results.jsonl").append(each)


def verdicts(*holds, figures=()):
    rows = [
        {"claim": f"S{i}", "statement": f"statement {i}", "paper": "2×", "ours": "1.9×", "spread": "0.1", "n": 20}
        | {"holds": each, "command": f"ggt reproduce S{i}"}
        for i, each in enumerate(holds)
    ]
    return {"experiment": "S1", "title": "Synthetic <problems>", "verdicts": rows, "figures": list(figures)}


def spectrum(steps=30, window=6):
    generator = np.random.default_rng(0)
    values = [sorted(generator.lognormal(0, 2, min(window, i + 1)).tolist(), reverse=True) for i in range(steps)]
    diagnosis = {"summary": "More anisotropic at the end.", "numbers": {"condition": 36012.482, "rank": 4}}
    content = {"label": "logistic, GGT", "window": window, "steps": list(range(0, 2 * steps, 2))}
    return {**content, "singular_values": values, "diagnosis": diagnosis}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Real results of two problems in one folder, and a folder with verdicts, a figure and a spectrum."""
    root = tmp_path_factory.mktemp("results")
    runs = [
        *grid("logistic", {"SGD": [1.0, 10.0], "GGT(window=5)": [0.1]}, seeds=[0, 1], steps=20),
        *grid("digits", {"SGD": [0.1], "Adam": [0.01]}, seeds=[0], steps=10),
    ]
    race(runs, Results(root / "race/results.jsonl"), workers=1)
    (root / "race/curves.png").write_bytes(PIXEL)
    other = root / "synthetic"
    other.mkdir()
    (other / "mu 1.png").write_bytes(PIXEL)
    (other / "verdicts.json").write_text(
        json.dumps(verdicts(True, True, False, None, figures=[{"file": "mu 1.png", "alt": 'μ "falls" & rests'}]))
    )
    (other / "spectrum_logistic.json").write_text(json.dumps(spectrum()))
    return root


@pytest.fixture(scope="module")
def report(folder):
    return write_report(folder)


@pytest.fixture(scope="module")
def records(folder):
    lines = (folder / "race/results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def of(records, problem):
    return [each for each in records if each["problem"] == problem]


class Parsed(html.parser.HTMLParser):
    """All elements with their attributes, and the texts of the scripts."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.scripts, self._inside = [], [], False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


def content_of(path):
    (content,) = [text for attributes, text in Parsed(path).scripts if attributes.get("id") == "content"]
    return json.loads(content)


# -- collection


def test_everything_is_found(folder, records):
    collection = collect(folder)
    assert collection.warnings == ()
    first, second = collection.sections
    assert first.folder == folder / "race"
    assert [each.title for each in first.races] == ["logistic", "digits"]
    assert sum(len(each.records) for each in first.races) == len(records) == 8
    assert [path.name for path in first.links] == ["curves.png"]
    assert first.environments == ((records[0]["environment"], 8),)
    assert second.title == "S1: Synthetic <problems>"
    assert [each.word for each in second.verdicts] == ["holds", "holds", "does not hold", "undecided"]
    assert second.spectra[0].label == "logistic, GGT"


def test_runs_that_cannot_be_compared_are_different_races(tmp_path):
    write_records(tmp_path, [record("A", 0.1, 0, [2.0, 1.0], steps=n, device="cpu") for n in (10, 20)])
    write_records(tmp_path, [record("A", 0.1, 0, [2.0, 1.0], problem="q", steps=10, device="cpu")])
    titles = [each.title for each in collect(tmp_path).sections[0].races]
    assert titles == ["p, 10 steps", "p, 20 steps", "q"]


def race_folder(root, *, fresh=True):
    """What `ggt race` leaves: tuned learning rates, fresh seeds, and the time of a step."""
    tuning = [record(*cell, seed, [4.0, end + seed]) for *cell, end in TUNED for seed in (0, 1)]
    write_records(root, tuning)
    write_step_seconds(root, {"A": 1e-3, "B": 2e-3})
    if fresh:
        decisive = [record(name, 0.1, seed, [4.0, end]) for name, end in (("A", 3.0), ("B", 1.0)) for seed in (7, 8)]
        write_records(root / "fresh", decisive)
        write_step_seconds(root / "fresh", {"A": 1e-3, "B": 2e-3})


TUNED = (("A", 0.1, 1.0), ("A", 1.0, 2.0), ("B", 0.1, 3.0))


def test_fresh_seeds_decide_and_the_page_begins_with_what_they_recommend(tmp_path):
    race_folder(tmp_path)
    fresh, tuning = collect(tmp_path).sections
    assert (tuning.title, fresh.title) == ("p: tuning of the learning rates", "p: fresh seeds, which decide")
    assert tuning.races[0].about.endswith("The fresh seeds decide.")
    words = summary(collect(tmp_path))
    assert words[0].startswith("Recommended on this problem: B with lr 0.1 (loss 1 ± 0 over 2 fresh seeds). Next is A")
    assert words[1:] == [
        "A and B raced on p: 10 runs, none of which diverged.",
        "1 of 2 tuned learning rates lies at the edge of its grid: a wider grid may do better.",
    ]
    page = write_report(tmp_path).read_text()
    assert tuning.races[0].about in page
    assert "Folder <code>fresh</code>" in page
    assert "<code>.</code>" not in page
    # Beside another race, each problem has its name.
    write_records(tmp_path / "q", [record("A", 0.1, 0, [2.0, 1.0], problem="q")])
    words = summary(collect(tmp_path))
    assert words[0].startswith("Recommended on p: B with")
    assert "Best at the end on q: A with loss 1." in words


def test_without_fresh_seeds_the_recommendation_says_so(tmp_path):
    race_folder(tmp_path, fresh=False)
    words = summary(collect(tmp_path))
    assert words[0].startswith("Recommended on this problem: A with lr 0.1")
    assert words[0].endswith("which flatters everybody.")
    assert not any(sentence.startswith("Best at the end") for sentence in words)
    (tmp_path / "step_seconds.json").unlink()  # no race of `ggt race`, or one that was interrupted
    assert summary(collect(tmp_path))[1].startswith("Best at the end on p: A with")


def test_runs_on_another_version_of_a_file_are_another_race(tmp_path):
    keys = [json.dumps({"problem": "p.py", "content": content, "seed": seed}) for content in "ab" for seed in (0, 1)]
    write_records(tmp_path, [{**record("A", 0.1, 0, [2.0, 1.0], problem="p.py"), "key": key} for key in keys])
    titles = [each.title for each in collect(tmp_path).sections[0].races]
    assert titles == ["p.py, version 1 of the file", "p.py, version 2 of the file"]


def test_records_without_curves_are_counted_not_drawn(tmp_path):
    write_records(tmp_path, [{"key": "a", "mu": 0.5}, {"key": "b", "mu": 0.25}])
    (section,) = collect(tmp_path).sections
    assert (section.races, section.others) == ((), 2)
    assert "2 records in <code>results.jsonl</code> without curves" in write_report(tmp_path).read_text()


def test_nothing_found_says_what_was_looked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ValueError, match=r"results\.jsonl \(made by `ggt race") as caught:
        write_report(tmp_path)
    assert all(word in str(caught.value) for word in ("verdicts.json", "ggt reproduce", "spectrum*.json"))
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(ValueError, match="does not exist"):
        write_report(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a file"):
        write_report(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("verdicts.json", '{"verdicts": [', "verdicts.json is left out"),
        ("verdicts.json", "[1]", "one JSON object"),
        ("verdicts.json", '{"verdicts": [{"claim": "S1", "holds": true}]}', "it has no statement, paper, ours"),
        ("verdicts.json", '{"verdicts": [], "figures": [{"file": "no.png"}]}', "no such file"),
        ("verdicts.json", '{"verdicts": [], "figures": [{"file": "../secret.png"}]}', "outside of"),
        ("verdicts.json", '{"verdicts": [], "figures": [{"file": "results.jsonl"}]}', "can be embedded"),
        ("spectrum.json", "\x00", "spectrum.json is left out"),
        ("spectrum.json", '{"steps": [1], "singular_values": []}', "1 steps and 0 lists"),
        ("spectrum.json", '{"steps": [1], "singular_values": [[NaN]]}', "NaN, which is no number of JSON"),
        ("spectrum.json", '{"steps": [1], "singular_values": [[0.0]]}', "none of its singular values is positive"),
        ("results.jsonl", '{"curve": []}\n', "results.jsonl:2 is left out: it has a curve, and no problem"),
        ("results.jsonl", '{"cut off', "results.jsonl:2 is damaged"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path, name, text, message):
    (tmp_path / "secret.png").write_bytes(PIXEL)
    root = tmp_path / "results"
    write_records(root, [record("Adam", 0.1, 0, [2.0, 1.0])])
    with (root / name).open("a") as file:
        file.write(text)
    with pytest.warns(UserWarning, match=message):
        page = write_report(root)
    assert "What could not be read" in page.read_text()
    assert content_of(page)["races"][0]["runs"][0]["columns"]["loss"] == [2.0, 1.0]


def test_only_damaged_files_are_an_error_that_names_them(tmp_path):
    (tmp_path / "verdicts.json").write_text("{")
    with pytest.raises(ValueError, match=r"(?s)nothing to report.*verdicts\.json is left out"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curve": []}, "empty"),
        ({"curve": [{"step": 0, "seconds": 0.0}]}, "step, seconds, loss"),
        ({"curve": 3}, "a list of objects"),
        ({"lr": "big"}, "a positive number"),
    ],
)
def test_a_run_that_makes_no_sense_is_left_out(tmp_path, change, message):
    write_records(tmp_path, [record("A", 0.1, 0, [2.0, 1.0]), {**record("A", 0.1, 1, [2.0, 1.0]), **change}])
    collection = collect(tmp_path)
    assert len(collection.sections[0].races[0].records) == 1
    assert message in collection.warnings[0]


# -- words and numbers


def test_summary(folder, records):
    words = " ".join(summary(collect(folder)))
    assert "8 runs, none of which diverged" in words
    assert "Of 4 claims, 2 hold, 1 does not hold and 1 is undecided." in words
    ends = {each["optimizer"]: each["curve"][-1]["loss"] for each in of(records, "digits")}
    assert f"on digits: {min(ends, key=ends.get)} with loss {min(ends.values()):.4g}" in words


def test_claims_with_too_few_seeds_are_counted(tmp_path):
    content = verdicts(None, None, True)
    content["verdicts"][0] |= {"n": 3, "ours": f"1.9×{why_open(None, 3)}"}
    (tmp_path / "verdicts.json").write_text(json.dumps(content))
    words = summary(collect(tmp_path))
    assert words[1] == "1 claim is undecided because of fewer than 5 seeds, which never decide."
    assert "1.9×; undecided: 3 seeds, and 5 are the fewest that decide" in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    ("finals", "expected"),
    [
        ({"A": [1.0, 1.2], "B": [3.0, 3.2]}, "on p: A with loss 1.1 ± 0.14, before B with 3.1 ± 0.14"),
        ({"A": [1.0, 1.2], "B": [1.1, 1.3]}, "a lead within the spread of the seeds"),
        ({"A": [1.0], "B": [1.1]}, "one seed only"),
        ({"A": [math.inf], "B": [math.inf]}, "every optimizer diverged"),
        ({"A": [1.0, 1.2], "B": [math.inf, 1.0]}, "on p: A with loss 1.1 ± 0.14"),
    ],
)
def test_winner(tmp_path, finals, expected):
    runs = [
        record(name, 0.1, seed, [2.0, end] if end < math.inf else [], status="done" if end < math.inf else "diverged")
        for name, ends in finals.items()
        for seed, end in enumerate(ends)
    ]
    write_records(tmp_path, runs)
    assert expected in winner(collect(tmp_path).sections[0].races[0]).replace("\u00a0", " ")
    assert write_report(tmp_path).exists()


@pytest.mark.parametrize(("skipped", "expected"), [(4, "on p: A with loss 1"), (10, "On p no step was taken")])
def test_steps_that_were_left_out_are_said(tmp_path, skipped, expected):
    write_records(tmp_path, [record("A", 0.1, seed, [2.0, 1.0], skipped=skipped) for seed in (0, 1)])
    words = " ".join(summary(collect(tmp_path)))
    assert expected in words
    assert f"none of which diverged. {2 * skipped} steps were left out, because the loss" in words
    assert f'<span class="note">{2 * skipped} steps left out</span>' in write_report(tmp_path).read_text()


def test_inlined_numbers_are_those_of_the_file(report, records):
    for shown in content_of(report)["races"]:
        expected = of(records, shown["title"])
        assert len(shown["runs"]) == len(expected)
        for run, original in zip(shown["runs"], expected, strict=True):
            assert {key: run[key] for key in ("optimizer", "lr", "seed", "status")}.items() <= original.items()
            assert set(run["columns"]) == set(original["curve"][0])
            for key, values in run["columns"].items():
                assert values == [point[key] for point in original["curve"]]


def test_heat_map_against_numpy():
    values = tuple(map(tuple, spectrum(steps=40)["singular_values"]))
    made = heat_map(Spectrum("", 6, tuple(range(40)), values, "", {}), bins=10)
    logs = [2 * np.log10(row) for row in values]
    edges = np.linspace(min(map(np.min, logs)), max(map(np.max, logs)), 11)
    for column, row in enumerate(logs):
        expected = np.histogram(row, edges)[0] / len(row)
        np.testing.assert_allclose([each[column] or 0.0 for each in made.density], expected)
    np.testing.assert_allclose(made.bins, (edges[1:] + edges[:-1]) / 2)
    np.testing.assert_allclose(made.largest, [max(row) ** 2 for row in values])
    assert len(heat_map(Spectrum("", 6, tuple(range(40)), values, "", {}), columns=7).columns) == 7


def test_heat_map_leaves_out_rounding():
    made = heat_map(Spectrum("", 3, (0, 1), ((0.0,), (1.0, 1e-3, 1e-9)), "", {}))
    assert (made.left_out, made.smallest, made.steps) == (2, [1e-6], [1])


def test_median_filter_against_scipy():
    values = np.random.default_rng(0).normal(size=50)
    np.testing.assert_array_equal(
        median_filter(values.tolist(), radius=3)[3:-3], ndimage.median_filter(values, size=7)[3:-3]
    )


# -- one file, closed to the network


def test_page_refers_to_nothing_outside(report):
    for tag, attributes in Parsed(report).elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            if name in attributes:
                assert re.match(r"data:|#|[\w%./-]+$", attributes[name]), (tag, attributes[name][:80])
    links = [attributes["href"] for tag, attributes in Parsed(report).elements if tag == "a"]
    assert "race/curves.png" in links
    assert "synthetic/mu%201.png" in links


def test_policy_names_exactly_the_scripts_of_the_page(report):
    parsed = Parsed(report)
    (policy,) = [a["content"] for _, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"]
    running = [text for attributes, text in parsed.scripts if attributes.get("type") != "application/json"]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in running}
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert set(rules["script-src"].split()) == hashes
    assert len(hashes) == 2
    assert rules["default-src"] == "'none'"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Names that try to break out of wherever they are put, and to be wider than any screen."""
    root = tmp_path_factory.mktemp("hostile") / HOSTILE.replace("/", "_")
    long = f"torch.optim.SGD(momentum={'9' * 200})"
    names = {"problem": HOSTILE, "metric": HOSTILE_METRIC}
    write_records(
        root,
        [
            *(
                record(name, lr, s, [2.0, 1.0 + s], **names)
                for name in (HOSTILE, long)
                for lr in (0.1, 1.0)
                for s in (0, 1)
            ),
            *(record("Diverged", lr, 0, [], status="diverged", **names) for lr in (0.1, 1.0)),
        ],
    )
    (root / "x.png").write_bytes(PIXEL)
    content = verdicts(None, figures=[{"file": "x.png", "alt": HOSTILE}])
    content["verdicts"][0] |= {"statement": HOSTILE, "command": HOSTILE, "paper": "x" * 300}
    (root / "verdicts.json").write_text(json.dumps({**content, "title": HOSTILE}))
    (root / "spectrum.json").write_text(json.dumps({**spectrum(), "label": HOSTILE}))
    return write_report(root)


def test_names_stay_text(hostile):
    parsed = Parsed(hostile)
    assert len(parsed.scripts) == 3
    assert {attributes["src"][:10] for tag, attributes in parsed.elements if tag == "img"} == {"data:image"}
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert content_of(hostile)["races"][0]["runs"][0]["optimizer"] == HOSTILE


# -- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        opened.get("about:blank")
        yield opened


@pytest.fixture
def page(browser, report):
    return visit(browser, report)


def visit(browser, path, *, width=1280, scheme="light"):
    resize(browser, width, 8000)  # charts are drawn when they come near the window: here, all of them
    prefer(browser, scheme)
    console(browser), requested(browser)  # what came before does not count
    browser.get(path.as_uri())
    wait_until(browser, "[...document.querySelectorAll('.chart')].every(c => !c.offsetParent || c.dataset.drawn)")
    return browser


CURVES = "document.querySelector('[data-race=\"0\"] [data-chart=curves]')"


def race_section(browser, number=0):
    return browser.find_element(By.CSS_SELECTOR, f'[data-race="{number}"]')


def toggle(section, name):
    section.find_element(By.CSS_SELECTOR, f'[data-control="{name}"]').click()


def chart_axes(browser):
    return browser.execute_script(
        f"const l = {CURVES}.layout; return [l.xaxis.title.text, l.xaxis.type, l.yaxis.title.text, l.yaxis.type]"
    )


def open_table(browser, section, name):
    details = section.find_element(By.CSS_SELECTOR, f'[data-table="{name}"]')
    browser.execute_script("arguments[0].open = true", details)
    wait_until(browser, "arguments[0].querySelector('tbody tr') !== null", details)
    return browser.execute_script(
        "return [...arguments[0].querySelectorAll('tbody tr')].map(tr => [...tr.children].map("
        "cell => [cell.textContent, cell.dataset.value ?? null]))",
        details,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_without_complaint_and_fetches_nothing(browser, report, scheme):
    requested(browser)  # of other pages
    visit(browser, report, scheme=scheme)
    for section in (race_section(browser), race_section(browser, 1)):
        for name in ("log-y", "log-x", "all"):
            toggle(section, name)
    assert console(browser) == []
    assert [a for a in requested(browser) if not a.startswith(("data:", "blob:"))] == [report.as_uri()]
    assert browser.execute_script("return document.querySelectorAll('.chart svg.main-svg').length") >= 4


def test_policy_stops_a_fetch(page):
    """The policy is alive: the same page cannot fetch, and an injected script does not run."""
    page.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = true'; document.body.append(s);"
    )
    assert page.execute_script("return window.ran ?? null") is None
    answer = "fetch('http://127.0.0.1:9/').then(() => 'fetched', error => error.message).then(arguments[0])"
    page.execute_async_script(answer)
    blocked = " ".join(entry["message"] for entry in console(page))
    assert "Content Security Policy" in blocked
    assert "connect-src" in blocked


def test_tables_hold_the_numbers_of_the_file(page, records):
    for number, problem in enumerate(("logistic", "digits")):
        rows = open_table(page, race_section(page, number), "runs")
        columns = [
            "step",
            "seconds",
            *(key for key in of(records, problem)[0]["curve"][0] if key not in ("step", "seconds")),
        ]
        expected = [
            [each["optimizer"], each["lr"], each["seed"], each["status"], *(point[key] for key in columns)]
            for each in of(records, problem)
            for point in each["curve"]
        ]
        shown = [[text if value is None else float(value) for text, value in row] for row in rows]
        assert shown == expected
        assert all(value is None or float(text) == float(value) for row in rows for text, value in row)


def test_standings_of_the_page(page, records):
    for number, problem in enumerate(("logistic", "digits")):
        section = race_section(page, number)
        for by in CRITERIA:
            Select(section.find_element(By.CSS_SELECTOR, "[data-control=by]")).select_by_value(by)
            (visible,) = [e for e in section.find_elements(By.CSS_SELECTOR, "[data-standings]") if e.is_displayed()]
            assert visible.get_attribute("data-standings") == by
            rows = visible.find_elements(By.CSS_SELECTOR, "tbody tr")
            expected = standings(of(records, problem), by=by)
            for row, standing in zip(rows, expected, strict=True):
                cells = {
                    each.get_attribute("data-column"): each
                    for each in row.find_elements(By.CSS_SELECTOR, "[data-column]")
                }
                assert cells["optimizer"].text == standing.optimizer
                for name in ("lr", "final", "spread", "per_step", "per_second"):
                    assert float(cells[name].get_attribute("data-value")) == getattr(standing, name)
                assert ("edge of the grid" in cells["lr"].text) == standing.at_edge
                finals = [
                    each["curve"][-1][each["metric"]]
                    for each in of(records, problem)
                    if (each["optimizer"], each["lr"]) == (standing.optimizer, standing.lr)
                ]
                assert float(cells["final"].get_attribute("data-value")) == pytest.approx(statistics.fmean(finals))


def test_curves_are_means_over_seeds_at_the_best_learning_rate(page, records):
    drawn = page.execute_script(f"return {CURVES}.data.filter(t => t.hovertemplate).map(t => [t.name, t.x, t.y])")
    band = page.execute_script(f"return {CURVES}.data.filter(t => t.fill === 'toself').map(t => t.y)")
    expected = standings(of(records, "logistic"))
    metric = of(records, "logistic")[0]["metric"]
    assert len(drawn) == len(band) == len(expected) == 2
    for (name, x, y), edge, standing in zip(drawn, band, expected, strict=True):
        runs = [
            r["curve"]
            for r in of(records, "logistic")
            if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)
        ]
        assert name == f"{standing.optimizer}, lr {standing.lr:g}"
        assert x == [point["step"] for point in runs[0]]
        np.testing.assert_allclose(
            y, [statistics.fmean(p[metric] for p in points) for points in zip(*runs, strict=True)]
        )
        assert edge[: len(x)] == [max(p[metric] for p in points) for points in zip(*runs, strict=True)]


def test_toggles_change_axes_and_words(page, records):
    metric = of(records, "logistic")[0]["metric"]
    section = race_section(page)
    said = section.find_element(By.CSS_SELECTOR, "[role=status][aria-live=polite]")
    before = chart_axes(page)
    assert before[:3] == ["step", "linear", metric]
    assert f"{metric} against step" in said.text
    section.find_element(By.CSS_SELECTOR, "input[value=seconds]").find_element(By.XPATH, "..").click()
    assert chart_axes(page)[0] == "seconds of training"
    assert f"{metric} against seconds of training" in said.text
    toggle(section, "log-x")
    assert chart_axes(page)[1] == "log"
    assert "logarithmic horizontal" in said.text
    toggle(section, "log-y")
    assert {before[3], chart_axes(page)[3]} == {"log", "linear"}
    label = section.find_element(By.CSS_SELECTOR, "[data-chart=curves]").get_attribute("aria-label")
    assert said.text.removeprefix("Shown: ") in label
    assert re.search(r"At the end: .*SGD, lr [\d.]+: [\d.]+", label)
    lines = page.execute_script(f"return {CURVES}.data.length")
    toggle(section, "all")
    assert page.execute_script(f"return {CURVES}.data.length") == lines + 1  # SGD's other learning rate
    section.find_element(By.CSS_SELECTOR, ".legend input").click()
    assert "1 of 2 optimizers" in said.text


def test_metric_chooser(page, records):
    section = race_section(page, 1)
    chooser = Select(section.find_element(By.CSS_SELECTOR, "[data-control=metric]"))
    names = [option.text for option in chooser.options]
    assert names[0] == "loss"
    assert set(names) == set(of(records, "digits")[0]["curve"][0]) - {"step", "seconds"}
    chooser.select_by_value("test_accuracy")
    (y,) = page.execute_script(
        "const all = document.querySelector('[data-race=\"1\"] [data-chart=curves]').data;"
        "return all.filter(t => t.name.startsWith('Adam')).map(t => t.y)"
    )
    (adam,) = [each for each in of(records, "digits") if each["optimizer"] == "Adam"]
    assert y == [point["test_accuracy"] for point in adam["curve"]]


def test_keyboard_reaches_and_operates_the_controls(page):
    def focused(script):
        return page.execute_script(f"const e = document.activeElement; return {script}")

    def press(key):
        ActionChains(page).send_keys(key).perform()

    def tab_to(condition):
        for _ in range(60):
            press(Keys.TAB)
            if focused(condition):
                return
        pytest.fail(f"Tab never reached {condition}")

    press(Keys.TAB)
    assert focused("e.className") == "skip"
    tab_to("e.id === 'theme'")
    assert focused("getComputedStyle(e).outlineStyle") == "solid"
    press(Keys.ENTER)
    assert focused("document.documentElement.dataset.theme") == "dark"
    tab_to("e.type === 'radio'")
    assert focused("getComputedStyle(e.nextElementSibling).outlineStyle") == "solid"
    press(Keys.ARROW_RIGHT)
    assert chart_axes(page)[0] == "seconds of training"
    tab_to("e.dataset.control === 'log-x'")
    press(Keys.SPACE)
    assert chart_axes(page)[1] == "log"
    tab_to("e.closest('.legend') !== null")
    press(Keys.SPACE)
    assert "1 of 2 optimizers" in race_section(page).find_element(By.CSS_SELECTOR, ".status").text
    tab_to("e.tagName === 'SUMMARY'")
    press(Keys.ENTER)
    wait_until(page, "document.activeElement.parentElement.querySelector('tbody tr') !== null")


def background(browser):
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def ink(browser):
    return browser.execute_script(
        f"return [{CURVES}.layout.paper_bgcolor, {CURVES}.layout.xaxis.gridcolor,"
        f" ...{CURVES}.data.filter(t => t.hovertemplate).map(t => t.line.color)]"
    )


def test_charts_follow_the_scheme_live_and_the_button(page):
    light, light_ink = background(page), ink(page)
    button = page.find_element(By.ID, "theme")
    prefer(page, "dark")
    # The style is dark at once; the page's script hears of it with the next frame, and then recolours its charts.
    wait_until(page, "arguments[0].textContent === 'Light theme'", button)
    dark, dark_ink = background(page), ink(page)
    assert dark != light
    assert all(a != b for a, b in zip(light_ink, dark_ink, strict=True))
    button.click()
    assert (background(page), ink(page), button.text) == (light, light_ink, "Dark theme")
    prefer(page, "light")
    wait_until(page, "document.documentElement.dataset.theme === undefined")  # the system spoke last
    prefer(page, "dark")
    wait_until(page, f"getComputedStyle(document.body).backgroundColor === '{dark}'")


# Every text that is seen, with the colour that is behind it.
TEXTS = """
const behind = e => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor; if (!c.endsWith(', 0)') && c !== 'transparent') return c; } };
const seen = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.textContent.trim() || !e.checkVisibility() || e.closest('script, style, option')) continue;
  const style = getComputedStyle(e);
  seen.push([walk.currentNode.textContent.trim().slice(0, 40), e.closest('svg') ? style.fill : style.color, behind(e)]);
}
return seen;
"""


def contrast(one, other):
    """The ratio of the Web Content Accessibility Guidelines, from its definition."""

    def luminance(color):
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser, report, scheme):
    visit(browser, report, scheme=scheme)
    texts = browser.execute_script(TEXTS)
    assert len(texts) > 100
    assert {text: (front, back) for text, front, back in texts if contrast(front, back) < 4.5} == {}
    panel, _, *lines = ink(browser)
    assert all(contrast(line, panel) >= 3 for line in lines)


def test_accessibility_rules_of_axe(page):
    violations = Axe().run(page)["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == []


def test_names_of_controls_and_pictures(page):
    tree = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {}
    for node in tree:
        role = node.get("role", {}).get("value")
        if not node["ignored"]:
            named.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    for role in ("button", "link", "checkbox", "radio", "combobox", "img", "image", "DisclosureTriangle"):
        assert all(named.get(role, [])), role
    assert {"Steps", "Seconds"} <= set(named["radio"])
    assert {"Log vertical axis", "All learning rates"} <= set(named["checkbox"])
    assert {"banner", "navigation", "main", "contentinfo"} <= set(named)
    alternatives = page.execute_script("return [...document.images].map(i => [i.alt, i.naturalWidth])")
    assert alternatives == [['μ "falls" & rests', 1]]
    levels = page.execute_script("return [...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_verdicts_and_spectrum(page, folder):
    words = [e.text for e in page.find_elements(By.CSS_SELECTOR, ".verdict")]
    assert [word.split(" ", 1)[1] for word in words] == ["holds", "holds", "does not hold", "undecided"]
    section = page.find_element(By.CSS_SELECTOR, "[data-spectrum]")
    assert "More anisotropic at the end." in section.text
    numbers = section.find_elements(By.CSS_SELECTOR, ".diagnosis-numbers [data-value]")
    assert [float(each.get_attribute("data-value")) for each in numbers] == [36012.482, 4]
    source = json.loads((folder / "synthetic/spectrum_logistic.json").read_text())
    rows = open_table(page, section, "spectrum")
    for row, step, values in zip(rows, source["steps"], source["singular_values"], strict=True):
        assert [float(value) for _, value in row[:3]] == [step, min(values) ** 2, max(values) ** 2]
    label = section.find_element(By.CSS_SELECTOR, "[data-chart=spectrum]").get_attribute("aria-label")
    assert "from step 0 to 58" in label


@pytest.mark.parametrize(("which", "width"), [("report", 360), ("report", 2200), ("hostile", 360), ("hostile", 1280)])
def test_no_sideways_scrolling(browser, request, which, width):
    visit(browser, request.getfixturevalue(which), width=width)
    for section in browser.find_elements(By.CSS_SELECTOR, "[data-race]"):
        open_table(browser, section, "curves")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert all(
        right <= width
        for right in browser.execute_script(
            "return [...document.querySelectorAll('.card')].map(c => c.getBoundingClientRect().right)"
        )
    )


# Every cell of the tables that a phone shows as cards, with its right edge, and the parts into which names may break.
CELLS = """
return [...document.querySelectorAll('.verdicts td, .verdicts th, .standings td, .standings th')]
  .filter(c => c.checkVisibility()).map(c => c.getBoundingClientRect()).filter(r => r.width > 1).map(r => r.right);
"""
LINES = """
const range = document.createRange();
return [...document.querySelectorAll('.standings th[scope=row], .legend strong')].filter(e => e.checkVisibility())
  .flatMap(e => [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE).map(n => {
    range.selectNodeContents(n); return [n.textContent, new Set([...range.getClientRects()].map(r => r.top)).size]; }));
"""


def test_a_phone_shows_every_column_and_breaks_no_word(browser, report):
    visit(browser, report, width=390)
    assert max(browser.execute_script(CELLS)) <= 390
    parts = browser.execute_script(LINES)
    assert "window=" in [part for part, _ in parts]
    assert [part for part, lines in parts if lines > 1] == []


def test_pictures_follow_the_dark_scheme_and_the_button(page):
    def lightness():
        return page.execute_script("return getComputedStyle(document.querySelector('figure img')).filter")

    assert lightness() == "none"
    prefer(page, "dark")
    wait_until(page, "getComputedStyle(document.querySelector('figure img')).filter.startsWith('invert(0.9')")
    page.find_element(By.ID, "theme").click()
    assert lightness() == "none"


def test_hostile_names_are_shown_as_they_are(browser, hostile):
    visit(browser, hostile)
    assert console(browser) == []
    assert browser.title.endswith("– GGT report")
    section = race_section(browser)
    assert HOSTILE in [row[0][0] for row in open_table(browser, section, "runs")]
    assert section.find_element(By.CSS_SELECTOR, ".legend strong").text == HOSTILE
    assert browser.execute_script(f"return {CURVES}.querySelector('.ytitle').textContent") == HOSTILE_METRIC
    browser.execute_script(f"Plotly.Fx.hover({CURVES}, [{{curveNumber: 1, pointNumber: 1}}])")
    assert HOSTILE[:50] in browser.execute_script(f"return {CURVES}.querySelector('.hoverlayer').textContent")
    assert not section.find_element(By.CSS_SELECTOR, "[data-control=metric]").is_displayed()  # there is but one number
    assert browser.execute_script("return document.querySelectorAll('.chart img, .chart script, .chart a').length") == 0
    assert "Diverged, lr 0.1: diverged" in section.find_element(By.CSS_SELECTOR, ".chart").get_attribute("aria-label")
    nothing = section.find_element(By.XPATH, ".//tr[th='Diverged']/td[@data-column='final']")
    assert (nothing.text, nothing.get_attribute("data-value")) == ("diverged", "")
