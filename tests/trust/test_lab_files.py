"""Damaged files: every command names the file (and the line) and goes on, or ends with one error line.

The operators below damage a sound file; the table of commands says which command reads which file. Whatever the damage:
no traceback, no file changed beside the command's own output, and sound files beside the damaged one are still used.
"""

import copy
import json
import os
import warnings
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ggt_lab.cli import commands
from ggt_lab.experiments.spectra_over_training import read_spectra
from ggt_lab.figures import league_figures, race_curves, spectrum_density, speed_figures
from ggt_lab.league import protocol
from ggt_lab.league.play import Field
from ggt_lab.league.protocol import trials_of
from ggt_lab.league.summary import summarize
from ggt_lab.report import page
from ggt_lab.runs import long_run, race
from ggt_lab.runs.race import Run
from ggt_lab.runs.results import Results
from ggt_lab.spectra import recorded_runs
from torch_ggt.spectrum.comparison import StepComparison
from torch_ggt.spectrum.diagnosis import diagnose

# ---- sound files -----------------------------------------------------------------------------------------------------


def run_record(seed, optimizer="SGD"):
    run = Run("logistic", optimizer, 0.5, seed, 3, "cpu")
    curve = [{"step": n, "seconds": 0.25 * n, "suboptimality": 1.0 / (n + 1), "loss": 2.0} for n in range(4)]
    fields = {"problem": "logistic", "optimizer": optimizer, "lr": 0.5, "seed": seed, "steps": 3, "device": "cpu"}
    found = {"metric": "suboptimality", "status": "done", "curve": curve, "environment": {"torch": "2", "command": "x"}}
    return {"key": run.key, **fields, **found}


TIMING = {"median_ms": 1.5, "mean_ms": 1.5, "low_ms": 1.0, "high_ms": 2.0, "calls": 9}
SEEN = diagnose([torch.tensor([2.0, 1.0])], [StepComparison(0.5, 0.5, {1: 0.5, 2: 1.0})], isotropic=torch.eye(2))
SPECTRUM = {
    "label": "a spectrum",
    "window": 3,
    "steps": [1, 2],
    "singular_values": [[2.0], [2.0, 1.0]],
    "diagnosis": {"summary": "words", "numbers": {"condition": 4.0, "rounding": 1e-12, "by": {"1": 0.5}}},
}
VERDICTS = {
    "experiment": "S1",
    "title": "a title",
    "smoke": False,
    "verdicts": [
        {"claim": "S1", "statement": "it holds", "paper": "2", "ours": "1.9", "spread": "0.1", "n": 3}
        | {"holds": True, "command": "ggt reproduce S1"}
    ],
    "figures": [],
    "replaces": [{"claim": "S1", "statement": "it held"}],
}
STEP = {
    "case": "step_d300_r20_float32",
    "kind": "steps",
    "status": "done",
    "device": "cuda",
    "options": {"optimizer": "GGT", "d": 300},
    "environment": {"gpu": "a GPU"},
    "copy_bandwidth": 1e12,
    "result": {"d": 300, "r": 20, "dtype": "float32", "scope": "model", "floor_ms": 1.0}
    | {"eager": TIMING, "captured": TIMING, "launches": {"count": 2, "us": {"_solve": 3.0}}},
}
TRAINING = {
    "case": "training_lstm_eager",
    "kind": "training",
    "status": "done",
    "device": "cuda",
    "options": {},
    "environment": {"gpu": "a GPU"},
    "result": {"model": "lstm", "mode": "eager", "times": {"SGD": TIMING, "GGT r=200 bfloat16": TIMING}}
    | {"over_SGD": {"GGT r=200 bfloat16": 1.1}},
}
LONG_RUN = {"problem": "cifar10-tiny", "optimizer": "SGD", "lr": 0.1, "seed": 0, "epochs": 1, "device": "cpu"}


SMALL_LEAGUE = replace(protocol.SMOKE, tasks=protocol.SMOKE.tasks[:1])
FIELD = Field(SMALL_LEAGUE, SMALL_LEAGUE.tasks, (SMALL_LEAGUE.entrant("adamw"),))


def league_run():
    """A trial of the league."""
    (task,), (entrant,) = FIELD.tasks, FIELD.entrants
    fields = {"task": task.name, "entrant": entrant.name, "device": "cpu", "status": "done", "skipped": 0}
    found = {"steps": 3, "points": [{"step": 3, "loss": 1.5}], "cost_s": 0.1, "environment": {"torch": "2"}}
    return {"key": trials_of(SMALL_LEAGUE, task, entrant, {})[0].key, **fields, **found}


LEAGUE_TIMES = {"key": "a key", "task": FIELD.tasks[0].name, "step_seconds": {"adamw": 0.001}}

LEAGUE_SUMMARY = summarize(FIELD, Path("nowhere"))
del LEAGUE_SUMMARY["ours"]  # other files have a text of this name


def dump(content):
    return json.dumps(content).encode()


def sound_race(folder):
    """Two finished runs; the first line is the line to damage."""
    (folder / "results.jsonl").write_bytes(b"".join(dump(run_record(seed)) + b"\n" for seed in (0, 1)))


# ---- operators -------------------------------------------------------------------------------------------------------

HUGE = int("9" * 400)
VALUES = {
    "null": None,
    "true": True,
    "negative": -5,
    "text": "x",
    "a NUL": "a\0b",
    "half a pair": "\ud800",
    "nested list": [[1, "x"], [None]],
    "largest float": 1.7e308,
    "NaN": float("nan"),
    "beyond float": HUGE,
}
"""What stands in the place of each value in turn."""


def with_bytes(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def instead(make):
    def operator(path):
        path.unlink()
        make(path)

    return operator


FILES = {
    "empty": with_bytes(lambda raw: b""),
    "blank": with_bytes(lambda raw: b"\n \n\t\n"),
    "part": with_bytes(lambda raw: raw[: len(raw) * 2 // 5]),
    "cut at the end": with_bytes(lambda raw: raw.rstrip()[:-1]),
    "NUL bytes": with_bytes(lambda raw: raw[:20] + b"\0" * 9 + raw[20:]),
    "all NUL": with_bytes(lambda raw: b"\0" * 200),
    "junk": with_bytes(lambda raw: bytes(range(256)) * 3),
    "junk in front": with_bytes(lambda raw: b"\xff\xfe\x00junk\n" + raw),
    "UTF-16": with_bytes(lambda raw: raw.decode().encode("utf-16")),
    "Latin-1": with_bytes(lambda raw: raw.replace(b"e", b"\xe4", 1)),
    "byte-order mark": with_bytes(lambda raw: b"\xef\xbb\xbf" + raw),
    "CRLF": with_bytes(lambda raw: raw.replace(b"\n", b"\r\n")),
    "deep lists": with_bytes(lambda raw: b"[" * 100_000 + raw),
    "deep object": with_bytes(lambda raw: b'{"a":' * 500 + b"1" + b"}" * 500),
    "a number": with_bytes(lambda raw: b"17"),
    "a text": with_bytes(lambda raw: b'"text"'),
    "a list": with_bytes(lambda raw: b"[1, 2]"),
    "an empty object": with_bytes(lambda raw: b"{}"),
    "an endless number": with_bytes(lambda raw: b'{"lr": ' + b"9" * 6000 + b"}"),
    "another version": with_bytes(lambda raw: b'{"format": 99, "runs": [{"id": 1}], "verdicts": 3, "steps": "all"}\n'),
    "twice": with_bytes(lambda raw: raw + raw),
    "a folder": instead(Path.mkdir),
    "links in a circle": instead(lambda path: path.symlink_to(path.name)),
    "a link to nothing": instead(lambda path: path.symlink_to("nowhere")),
    "a pipe": instead(os.mkfifo),
    "an endless device": instead(lambda path: path.symlink_to("/dev/zero")),
    "unreadable": instead(lambda path: path.symlink_to("/proc/self/mem")),
}
"""What may happen to a whole file. Reading /proc/self/mem fails for every user, also for root."""


def places(content, path=()):
    """Every place in a JSON document; of a list only the last element."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield (*path, key)
            yield from places(value, (*path, key))
    elif isinstance(content, list) and content:
        yield (*path, len(content) - 1)
        yield from places(content[-1], (*path, len(content) - 1))


def changed(content, place, value=None, *, remove=False):
    found = copy.deepcopy(content)
    holder = found
    for key in place[:-1]:
        holder = holder[key]
    if remove:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return found


FEW = ("null", "nested list", "NaN")
"""Enough for a command that reads with the reader of another command."""


def mutations(content, names=tuple(VALUES)):
    """(name, the document) for every place and value, for every missing key, and for keys that nobody asked for."""
    for place in places(content):
        for name, value in ((name, VALUES[name]) for name in names):
            yield f"{'.'.join(map(str, place))} is {name}", changed(content, place, value)
        yield f"{'.'.join(map(str, place))} is missing", changed(content, place, remove=True)
    yield "extra keys", {**content, "": 1, "curve2": [], "format": 99}


# ---- how a command is run --------------------------------------------------------------------------------------------


class HereAndNow:
    """An executor that runs tasks in this process."""

    def submit(self, function, *arguments):
        job = Future()
        try:
            job.set_result(function(*arguments))
        except BaseException as error:
            job.set_exception(error)
        return job


@contextmanager
def here(workers):
    yield HereAndNow()


@pytest.fixture
def lab(tmp_path, monkeypatch, capsys):
    """Run a command in this process, in a folder. Returns its status and all it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "get_plotlyjs", lambda: "")  # four megabytes, in every page
    monkeypatch.setattr(race, "processes", here)
    monkeypatch.setattr(long_run, "run_until", lambda runs, *_, **__: 0)  # its runs are read before it is called
    for module, name in (
        (race_curves, "draw_curves"),
        (spectrum_density, "draw_spectrum"),
        (speed_figures, "draw_speed"),
        (league_figures, "draw_cells"),
        (league_figures, "draw_profiles"),
    ):
        monkeypatch.setattr(module, name, lambda *_, **__: [])
    monkeypatch.setattr(protocol, "SMOKE", SMALL_LEAGUE)
    said = {
        "label": "a run",
        "diagnosis": {"summary": "words", "verdict": "words", "numbers": SEEN.numbers()},
        "cost": "none",
        "steps": [1],
        "singular_values": [[1.0]],
    }
    monkeypatch.setattr(recorded_runs, "record_spectrum", lambda *_, **__: dict(said))

    def run(*words):
        code = 0
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            try:
                commands.run_command(list(map(str, words)))
            except SystemExit as end:
                code = end.code or 0
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def tree(root, own):
    """What lies in a folder, without the command's own output: names, kinds and contents."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if not any(name == each or name.startswith(f"{each}/") for each in own):
            plain = path.is_file() and not path.is_symlink()
            found[name] = (
                path.read_bytes() if plain else os.readlink(path) if path.is_symlink() else path.stat().st_mode
            )
    return found


LEAGUE = ["league", "--smoke", "--entrant", "adamw", "--summary", "--out", "d"]
LEAGUE_OWN = ["d/league.json", "d/league.md"]

COMMANDS = {
    # command: (file, what it holds, words, own output)
    "report, a race": ("d/results.jsonl", None, ["report", "d"], ["d/report.html"]),
    "report, a spectrum": ("d/spectrum-a.json", SPECTRUM, ["report", "d"], ["d/report.html"]),
    "report, verdicts": ("d/verdicts.json", VERDICTS, ["report", "d"], ["d/report.html"]),
    "claims, verdicts": (
        "d/2026/verdicts.json",
        VERDICTS,
        ["claims", "d", "--page", "p.md"],
        ["d/claims.json", "p.md"],
    ),
    "claims, a case": ("d/2026/case.json", TRAINING, ["claims", "d", "--page", "p.md"], ["d/claims.json", "p.md"]),
    "claims, claims": (
        "d/2026/claims.json",
        {"claims": []},
        ["claims", "d", "--page", "p.md"],
        ["d/claims.json", "p.md"],
    ),
    "bench": ("d/case.json", STEP, ["bench", "--records", "d", "--out", "o"], ["o"]),
    "bench, speed.json": ("d/speed.json", {"promises": []}, ["bench", "--records", "d", "--out", "o"], ["o"]),
    "plan": ("d/case.json", STEP, ["plan", "7M", "--records", "d"], []),
    "calibrate": ("d/case.json", STEP, ["calibrate", "d", "--to", "c.json"], ["c.json"]),
    "spectrum of a race": ("d/results.jsonl", None, ["spectrum", "d", "--out", "o"], ["o"]),
    "train": ("d/runs.json", [LONG_RUN], ["train", "d/runs.json", "--kept", "k", "--results", "o/r"], ["k", "o"]),
    "league": ("d/results.jsonl", league_run(), LEAGUE, LEAGUE_OWN),
    "league, times": ("d/times.jsonl", LEAGUE_TIMES, LEAGUE, LEAGUE_OWN),
    "league, protocol": ("d/protocol.json", FIELD.rules(), LEAGUE, LEAGUE_OWN),
    "page of a league": ("d/league.json", LEAGUE_SUMMARY, ["report", "d"], ["d/report.html"]),
    "race": (
        "d/results.jsonl",
        None,
        [
            "race",
            "logistic",
            "--optimizers",
            "SGD",
            "--lrs",
            "0.5",
            "--seeds",
            "2",
            "--steps",
            "3",
            "--workers",
            "1",
            "--fresh",
            "0",
            "--out",
            "d",
        ],
        ["d/step_seconds.json", "d/results.jsonl", "d/.progress"],
    ),
}
RACES = [name for name, (_, content, _, _) in COMMANDS.items() if content is None]


def lay_out(root, name, beside=True):
    """The sound files of a command."""
    file, content, words, own = COMMANDS[name]
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        sound_race(path.parent)
    else:
        path.write_bytes(dump(content))
        if words[0] == "report":
            sound_race(path.parent)  # something to show beside it
        if words[0] == "league" and path.name != "results.jsonl":
            (path.parent / "results.jsonl").write_bytes(dump(league_run()))
        if words[0] in ("plan", "calibrate"):
            for number in (1, 2):
                other = {**STEP, "case": f"other {number}", "result": {**STEP["result"], "d": 1000 * number}}
                (path.parent / f"other{number}.json").write_bytes(dump(other))
    return path, words, own


def verdict_on(code, said, path, before, after):
    """What is wrong with how a command met a damaged file; None if nothing is."""
    if "Traceback" in said:
        return "a traceback"
    if code not in (0, 2):
        return f"status {code}"
    if code and sum(line.startswith("error: ") for line in said.splitlines()) != 1:
        return f"not one error line: {said!r}"
    if code and path.name not in said and str(path.parent.name) not in said:
        return f"the file is not named: {said!r}"
    if before != after:
        return f"changed: {[name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]}"
    return None


@pytest.mark.parametrize("name", COMMANDS)
def test_whole_files(name, lab, tmp_path):
    failures = []
    for operator, damage in FILES.items():
        root = tmp_path / operator.replace(" ", "-")
        path, words, own = lay_out(root, name)
        damage(path)
        os.chdir(root)
        before = tree(root, own)
        try:
            code, said = lab(*words)
        except Exception as error:
            failures.append(f"{operator}: {type(error).__name__}: {error}")
            continue
        wrong = verdict_on(code, said, path, before, tree(root, own))
        harmless = operator in ("byte-order mark", "CRLF", "twice", "blank", "an empty object", "another version")
        harmless |= name in ("claims, claims", "bench, speed.json") or operator in ("a number", "a text", "a list")
        harmless |= operator == "empty" and name == "league, times"  # as if nothing had been measured
        if wrong is None and not harmless and path.name not in said:
            wrong = f"{path.name} is not named: {said[-300:]!r}"
        if wrong is not None:
            failures.append(f"{operator}: {wrong}")
    assert not failures, "\n".join(failures)


TYPES = {
    **dict.fromkeys(
        ("problem", "optimizer", "metric", "status", "claim", "statement", "paper", "ours", "command"), str
    ),
    **dict.fromkeys(("lr", "curve.3.step", "curve.3.seconds", "curve.3.suboptimality", "copy_bandwidth"), float),
    **dict.fromkeys(("result.eager.median_ms", "result.floor_ms", "diagnosis.numbers.rounding", "n"), float),
    **dict.fromkeys(("curve", "singular_values"), list),
}
"""What must be of one type, wherever it stands. A value of another type is named, not used."""


def must_be_named(place, value):
    wanted = TYPES.get(place) or TYPES.get(place.removeprefix("verdicts.0."))
    if isinstance(value, float) and not np.isfinite(value):
        return True
    if wanted is float:
        return isinstance(value, bool) or not isinstance(value, int | float) or value == HUGE
    return wanted is not None and not isinstance(value, wanted)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_value_of_a_file(name, lab, tmp_path):
    """One layout, one file: each mutation is written, read by the command, and the command's output removed."""
    path, words, own = lay_out(tmp_path, name)
    content = COMMANDS[name][1] if name not in RACES else run_record(0)
    rest = b"" if name not in RACES else dump(run_record(1)) + b"\n"
    listed = isinstance(content, list)
    failures = []
    names = (
        tuple(VALUES)
        if name.startswith("report") or name == "train"
        else FEW[: 1 if name == "page of a league" else None]
    )
    for mutation, changed_content in mutations(content[0] if listed else content, names):
        damaged = dump([changed_content] if listed else changed_content) + b"\n" + rest
        path.write_bytes(damaged)
        before = tree(tmp_path, own)
        try:
            code, said = lab(*words)
        except Exception as error:
            failures.append(f"{mutation}: {type(error).__name__}: {error}")
            continue
        wrong = verdict_on(code, said, path, before, tree(tmp_path, own))
        place, _, value = mutation.partition(" is ")
        if wrong is None and value in VALUES and must_be_named(place, VALUES[value]):
            where = f"{path.name}:1 " if name in RACES else path.name
            if where not in said:
                wrong = f"{where} is not named: {said[-300:]!r}"
        if wrong is None and name == "report, a race" and '"seed":1,' not in Path("d/report.html").read_text():
            wrong = "the sound run is not on the page"
        if wrong is None and name == "race" and not path.read_bytes().startswith(damaged):
            wrong = "results were rewritten"
        if wrong is not None:
            failures.append(f"{mutation}: {wrong}")
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:20])


def test_one_bad_line_does_not_stop_a_race_for_ever(lab, tmp_path):
    """The run of the bad line is repeated, its new record counts, and the third command has nothing to do."""
    path, words, _ = lay_out(tmp_path, "race")
    bad = dump({**run_record(0), "curve": [{"step": 0}]})
    path.write_bytes(bad + b"\n" + dump(run_record(1)) + b"\n")
    code, said = lab(*words)
    assert code == 0, said
    assert "results.jsonl:1 is left out" in said
    assert path.read_bytes().startswith(bad)
    assert len(path.read_bytes().splitlines()) == 3
    code, said = lab(*words)
    assert code == 0
    assert "2 of 2 runs are finished already" in said
    assert len(path.read_bytes().splitlines()) == 3


def test_a_page_is_written_whole_or_not_at_all(lab, tmp_path, monkeypatch):
    lay_out(tmp_path, "report, a race")
    assert lab("report", "d")[0] == 0
    page_before = (tmp_path / "d/report.html").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, said = lab("report", "d")
    assert code == 2
    assert "No space left on device" in said
    assert (tmp_path / "d/report.html").read_bytes() == page_before
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["report.html", "results.jsonl"]


def test_figures_of_a_verdict(lab, tmp_path):
    """A page is passed on: it holds no file from outside, and a strange name does not end it."""
    path, words, _ = lay_out(tmp_path, "report, verdicts")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (path.parent / "circle.png").symlink_to("circle.png")
    (path.parent / "out.png").symlink_to("../secret.png")
    (path.parent / "mem.png").symlink_to("/proc/self/mem")
    (path.parent / "folder.png").mkdir()
    os.mkfifo(path.parent / "pipe.png")
    (path.parent / os.fsdecode(b"\xff\xfe.png")).write_bytes(b"a name that is not UTF-8")
    (path.parent / "up").symlink_to("..")
    names = ["circle.png", "out.png", "mem.png", "folder.png", "pipe.png", "a\0b.png", "x" * 300 + ".png", "/etc/x.png"]
    path.write_bytes(dump({**VERDICTS, "figures": [{"file": name} for name in names]}))
    code, said = lab(*words)
    assert code == 0, said
    assert said.count("figure d/") + said.count("figure /etc") == len(names)
    shown = Path("d/report.html").read_text()
    assert "c2VjcmV0" not in shown  # the secret, as a page would hold it
    assert "%FF%FE.png" in shown
    assert shown.count("Race on logistic</h3>") == 1  # the link to the folder above gives no second section


@pytest.mark.parametrize(
    "change",
    [
        {"steps": np.array([1.5, 2.5])},
        {"steps": np.array([], dtype=np.int64)},
        {"eigenvalues": np.ones(2)},
        {"eigenvalues": np.full((2, 3), np.nan)},
        {"eigenvalues": -np.ones((2, 3))},
        {"eigenvalues": np.array([["a", "b"], ["c", "d"]])},
        {"rounding": np.array([1.0, 2.0])},
        {"rounding": None},
        {"history": None},
    ],
    ids=str,
)
def test_eigenvalue_logs(change, tmp_path):
    arrays = {"steps": np.array([1, 2]), "eigenvalues": np.ones((2, 3)), "rounding": np.array(1e-12)}
    arrays = {
        key: value for key, value in {**arrays, "history": np.array("momentum"), **change}.items() if value is not None
    }
    np.savez(tmp_path / "log.npz", **arrays)
    with pytest.raises(ValueError, match=r"log\.npz holds no spectra of a long run"):
        read_spectra(tmp_path / "log.npz")


def test_eigenvalue_logs_that_are_no_archives(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, steps=np.array([1]), eigenvalues=np.ones((1, 2)), rounding=np.array(0.0), history=np.array("x"))
    assert read_spectra(path)["steps"] == [1]
    sound = path.read_bytes()
    for damaged in (b"", b"junk", sound[: len(sound) // 2], sound[:100] + bytes(40) + sound[140:], b"[" * 9):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"log\.npz holds no spectra"):
            read_spectra(path)


@pytest.mark.parametrize("damaged", [b"", b"junk", b"PK\x03\x04" + bytes(100)])
def test_a_damaged_checkpoint_is_named(damaged, tmp_path):
    run = long_run.LongRun(**LONG_RUN)
    checkpoint = tmp_path / f"{run.digest}.pt"
    checkpoint.write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"the checkpoint .*{run.digest}\.pt cannot be read .* remove it to begin"):
        long_run.advance(run, tmp_path)
    assert checkpoint.read_bytes() == damaged


@pytest.mark.parametrize("steps", [-5, 0, 2.5, True, "many", None])
def test_a_length_that_is_none_is_refused_not_recorded(steps, tmp_path, lab):
    own = "import torch\nclass Problem:\n    metric = 'loss'\n"
    own += f"    steps = {steps!r}\n    def __init__(self, seed, device): self.w = torch.nn.Parameter(torch.ones(2))\n"
    own += "    def parameters(self): return [self.w]\n    def loss(self): return (self.w**2).sum()\n"
    own += "    def evaluate(self): return {'loss': self.loss().item()}\n"
    (tmp_path / "own.py").write_text(own)
    code, said = lab(
        *["race", "own.py", "--optimizers", "SGD", "--lrs", "0.1", "--seeds", "1", "--workers", "1", "--out", "d"]
    )
    assert code == 1
    assert f"steps of the problem must be a whole number of at least 1, got {steps!r}" in " ".join(said.split())
    assert list(Results(tmp_path / "d/results.jsonl")) == []
