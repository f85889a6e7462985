"""docs/defaults.md: its table is what the record says, and the benchmark behind it goes on where it stopped."""

import importlib.util
import json
import re
import statistics
from pathlib import Path

import pytest

pytest.importorskip("ggt_lab")
ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "defaults.md").read_text()
RECORD = ROOT / "records" / "2026-11-18-drop-in" / "runs.jsonl"
MORE_SEEDS = RECORD.with_name("digits_more_seeds.jsonl")
METHODS = ["AdamW", "GGT before", "whiten(AdamW)", "GGT adam"]


def scores_in(file):
    """(task, rate) → method → seed → score."""
    scores = {}
    for line in map(json.loads, file.read_text().splitlines()):
        scores.setdefault((line["task"], line["lr"]), {}).setdefault(line["method"], {})[line["seed"]] = line["score"]
    return scores


def means_of(scores):
    return {key: {m: statistics.fmean(s.values()) for m, s in found.items()} for key, found in scores.items()}


def mean_scores():
    scores = scores_in(RECORD)
    assert all(found.keys() == set(METHODS) for found in scores.values())
    assert all(set(seeds) == {0, 1, 2, 3, 4} for found in scores.values() for seeds in found.values())
    return means_of(scores)


def missed(key, method):
    """Whether a mean is above 1.2 times AdamW's: of the five seeds, or of the seeds that were run in addition."""
    every = [means.get(key, {}) for means in (mean_scores(), means_of(scores_in(MORE_SEEDS)))]
    return any(method in means and means[method] > 1.2 * means["AdamW"] for means in every)


def table_of_the_page():
    """(task, rate) → [AdamW's score, then score and ratio of every other method], as text."""
    rows = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 9 and re.fullmatch(r"\d[\d.e-]*", cells[1]):
            rows[cells[0], float(cells[1])] = cells[2:]
    return rows


def test_the_table_is_the_record():
    scores, table = mean_scores(), table_of_the_page()
    assert table.keys() == scores.keys()
    for key, cells in table.items():
        means = [scores[key][method] for method in METHODS]
        assert [cells[0], *cells[1::2]] == [f"{mean:.3g}" for mean in means], key
        for method, mean, ratio in zip(METHODS[1:], means[1:], cells[2::2], strict=True):
            assert ratio.startswith("**") == missed(key, method), key
            assert float(ratio.strip("*")) == pytest.approx(mean / means[0], abs=0.00051, rel=0.0005), key


def test_the_counts_of_the_page_are_the_record():
    """How many of the listed rows are met, and how many are below AdamW, for both forms."""
    scores, tasks = mean_scores(), load_benchmark().TASKS
    listed = [key for key in scores if tasks[key[0]].listed]
    for method in METHODS[2:]:
        met = sum(not missed(key, method) for key in listed)
        below = sum(scores[key][method] < scores[key]["AdamW"] for key in listed)
        assert f"| {method} | {met} of {len(listed)} | {below} of {len(listed)} |" in PAGE


def test_the_seeds_that_were_run_in_addition():
    (found,) = means_of(scores_in(MORE_SEEDS)).values()
    assert {len(seeds) for seeds in scores_in(MORE_SEEDS)["digits", 0.01].values()} == {15}
    for method, mean in found.items():
        ratio = mean / found["AdamW"]
        shown = f"**{ratio:.3f}**" if ratio > 1.2 else f"{ratio:.3f}"
        assert f"| {method} | {mean:.3g} | {shown} |" in PAGE, method


def load_benchmark():
    spec = importlib.util.spec_from_file_location("drop_in", ROOT / "benchmarks" / "drop_in.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_goes_on_where_it_stopped(tmp_path, capsys):
    main, out = load_benchmark().main, tmp_path / "runs.jsonl"
    chosen = ["--out", str(out), "--only", "parabola", "--methods", "AdamW;whiten(AdamW) window=3 shrinkage=0"]
    main([*chosen, "--seeds", "0"])
    first = out.read_text()
    main([*chosen, "--seeds", "0,1"])
    assert out.read_text().startswith(first)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["seed"] for line in lines] == [0, 0, 1, 1]
    recorded = mean_scores()["parabola", 0.1]["AdamW"]  # a parabola has no seed
    assert lines[0]["score"] == pytest.approx(recorded, rel=1e-3)
    main(["--out", str(out), "--summary"])
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"| parabola | 0.1 | {recorded:.3g} |")
    with pytest.raises(ValueError, match="unknown method 'SGD'"):
        main([*chosen[:4], "--methods", "SGD"])
