"""The command, as a person uses it."""

import itertools
import json
import math
import os
import subprocess
import sys
from importlib import resources

import pytest
import torch
from rich.console import Console

import torch_ggt
from ggt_lab.cli import terminal
from ggt_lab.cli.commands import run_command
from ggt_lab.cli.known_names import known_names, live_names
from ggt_lab.cli.spectrum_command import _show_numbers
from ggt_lab.optimizers.specs import NOT_RACED
from torch_ggt.spectrum import Diagnosis

WIDE = {**os.environ, "COLUMNS": "140"}


def ggt(*arguments, cwd):
    command = [sys.executable, "-m", "ggt_lab", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=WIDE)


def failing(*arguments, cwd, monkeypatch, capsys):
    """What a command says that ends with status 2, in this process: a process of its own has to import torch."""
    monkeypatch.chdir(cwd)
    with pytest.raises(SystemExit) as ended:
        run_command(list(map(str, arguments)))
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return " ".join(shown.out.split())


def test_race_on_a_file_made_from_the_template(tmp_path):
    assert "Try it: ggt race own.py" in ggt("new-problem", "own", cwd=tmp_path).stdout
    assert ggt("new-problem", "own.py", cwd=tmp_path).returncode == 2  # an existing file is left alone
    (tmp_path / "module_beside.py").write_text("SIZE = 32\n")  # workers find it, too
    text = (tmp_path / "own.py").read_text().replace("import torch\n", "import torch\nimport module_beside\n", 1)
    (tmp_path / "own.py").write_text(text)
    race = ("race", "own.py", "--optimizers", "Adam", "GGT(window=5)", "--lrs", 0.001, 0.01, 0.1, "--seeds", 2)
    first = ggt(*race, "--steps", 40, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "GGT(window=5)" in first.stdout
    records = [json.loads(line) for line in (tmp_path / "out/race/own/results.jsonl").read_text().splitlines()]
    assert len(records) == 12
    assert all(record["environment"]["command"].startswith("ggt race own.py") for record in records)
    for suffix in ("png", "pdf"):
        assert (tmp_path / f"out/race/own/curves.{suffix}").stat().st_size > 5_000
    again = ggt(*race, "--steps", 40, cwd=tmp_path)
    assert "12 of 12 runs are finished already" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rase", "logistic"), "unknown command 'rase': did you mean race?"),
        (("Spectra",), "did you mean spectrum"),
        (("race", "logistic", "--device", "gpux"), "device must be cpu or cuda, got 'gpux'"),
        (("race", "logistik"), "did you mean logistic"),
        (("race", "logistic", "--optimizers", "Adamm"), "did you mean Adam"),
        (("race", "LOGISTIC"), "did you mean logistic?"),
        (("race", "logistic", "--optimizers", "GGT(windw=5)"), "'windw'; did you mean window"),
        (
            ("race", "logistic", "--optimizers", "whiten(AdamW(lr=0.1))"),
            "lr is no option here; learning rates belong to",
        ),
        (("race", "logistic", "--optimizers", "SparseAdam"), "SparseAdam takes sparse gradients alone"),
        (("reproduce", "s1", "--seeds", 0), "need seeds ≥ 1"),
        (("reproduce", "s3"), "did you mean T3 or S2 or S1"),
        (("spectrum", "digit"), "did you mean digits"),
        (("race", "[/x]"), "unknown problem '[/x]'"),
        (("race", "logistic", "--seeds", 0), "seeds ≥ 1"),
        (("race", "logistic", "--workers", 0), "workers ≥ 1"),
        (("race", "logistic", "--steps", -3), "steps must be at least 1"),
        (("race", "logistic", "--lrs", "nan"), "learning rates must be positive"),
        (("race", "logistic", "--lrs", 0, 0.1), "learning rates must be positive"),
        (("race", "logistic", "--optimizers", "SGD(momentun=0.9)"), "momentun"),
        (("race", "logistic", "--optimizers", "GGT(window_dtype='bflot16')"), "'bflot16' is no format of rows"),
        (("race", "logistic", "--optimizers", "soap(a=1)"), "package pytorch_optimizer: write pytorch_optimizer.SOAP"),
        (("race", "logistic", "--optimizers", "whiten(Shampoo)"), "write pytorch_optimizer.Shampoo"),
        (("race", "logistic", "--optimizers", "LBFGS"), "evaluates one batch several times"),
        (("race", "logistic", "--out", "afile/x", "--steps", 1, "--lrs", 1), "afile"),
    ],
)
def test_unknown_names(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "afile").touch()
    assert message in failing(*arguments, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("plan", "digits"), "sklearn", "lab"),
        (("race", "logistic", "--optimizers", "pytorch_optimizer.SOAP"), "pytorch_optimizer", "bench"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(arguments, package, extra, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    said = failing(*arguments, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert package in said
    assert f"pip install 'torch-ggt[{extra}]'" in said


def test_an_optimizer_of_a_package_that_is_not_installed_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    race = ("race", "logistic", "--optimizers", "SOAP")
    assert "pip install pytorch_optimizer" in failing(*race, cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


@pytest.mark.parametrize("where", ["import", "loss", "syntax", "exit"])
def test_a_users_file_that_fails_is_shown_with_its_own_line_first(where, tmp_path):
    ggt("new-problem", "own.py", cwd=tmp_path)
    text = (tmp_path / "own.py").read_text()
    broken = {"syntax": "def broken(:\n", "exit": "raise SystemExit(0)\n"}.get(
        where, "raise ValueError('my mistake')\n"
    )
    marker = "    def loss(self)"
    line = next(line for line in text.splitlines() if line.startswith(marker))
    in_loss = where in ("loss", "exit")
    text = text.replace(line, f"{line}\n        {broken}", 1) if in_loss else broken + text
    (tmp_path / "own.py").write_text(text)
    number = 1 + text.splitlines().index(f"{'        ' if in_loss else ''}{broken}".rstrip())
    done = ggt("race", "own.py", "--optimizers", "SGD", "--lrs", 0.1, "--seeds", 1, "--steps", 2, cwd=tmp_path)
    assert done.returncode == 1
    errors = done.stdout[done.stdout.index("error: ") :].splitlines()
    inside = {"syntax": "", "import": ", in <module>"}.get(where, ", in loss")
    assert errors[0] == f"error: own.py, line {number}{inside}: {broken.strip()}"
    assert errors[1].startswith("problem own.py")
    last = {"syntax": "SyntaxError", "exit": "SystemExit: 0"}.get(where, "ValueError: my mistake")
    assert last in done.stderr.splitlines()[-1]
    assert "ggt_lab" not in done.stderr  # the way to the error begins in the user's file
    assert not (tmp_path / "out/race/own/results.jsonl").exists()


def test_race_spectrum_report(tmp_path):
    race = ("race", "logistic", "--optimizers", "SGD", "GGT(window=5)", "--lrs", 0.1, 1, "--widen", 2, "--seeds", 2)
    done = ggt(*race, "--steps", 30, "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for criterion in ("final suboptimality", "mean suboptimality per step", "mean suboptimality per second"):
        assert f"logistic: {criterion}" in done.stdout
    rates = {json.loads(line)["lr"] for line in (tmp_path / "r/results.jsonl").read_text().splitlines()}
    assert len(rates) > 2  # widened
    done = ggt("spectrum", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "window of its own: 20 × 10" in done.stdout
    assert "no window of its own" in done.stdout
    told = done.stdout[done.stdout.index("GGT(window=5) on logistic, lr") :].splitlines()
    assert told[1].startswith(("Worth a race", "Little", "Nothing can be said"))  # the verdict comes first
    assert any(line.startswith("Noise: ") for line in told)
    assert any("effective rank" in line for line in told)
    assert len(list((tmp_path / "r").glob("spectrum-logistic-*.json"))) == 2
    done = ggt("report", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "r/report.html").read_text()
    assert "GGT(window=5)" in page
    assert "effective rank" in page


def test_reproduce(tmp_path):
    done = ggt("reproduce", "t1", "--smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "undecided" in done.stdout
    assert "nothing about the claims is decided" in done.stdout
    verdicts = json.loads((tmp_path / "out/reproduce/T1-smoke/verdicts.json").read_text())["verdicts"]
    assert {verdict["command"] for verdict in verdicts} == {"ggt reproduce T1 --smoke"}
    assert {verdict["holds"] for verdict in verdicts} == {None}
    assert "| T1: E‖∇f‖" in (tmp_path / "out/reproduce/T1-smoke/verdicts.md").read_text()


def test_nothing_to_report(tmp_path, monkeypatch, capsys):
    assert "nothing to report" in failing("report", ".", cwd=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


HEAVY = ("torch", "numpy", "matplotlib", "scipy", "sklearn", "plotly")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["list"], ["race", "--help"], ["rase"]])
def test_what_needs_no_torch_does_not_import_it(words):
    """Importing torch takes seconds: longer than a person waits for a list of names."""
    code = f"import sys; sys.argv = ['ggt', *{words!r}]; from ggt_lab.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    print('status', end.code)\n"
    code += f"print('imported', [name for name in {HEAVY!r} if name in sys.modules])"
    without_width = {**WIDE, "COLUMNS": "0"}  # of a shell without a terminal
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without_width)
    assert done.stdout.rstrip().endswith("imported []"), done.stderr
    assert len(done.stdout.splitlines()) > 1
    assert (words == ["--help"]) == ("--version" in done.stdout)
    if words == ["--version"]:
        assert done.stdout.startswith(f"torch-ggt {torch_ggt.__version__}, torch {torch.__version__}, Python 3.")


def test_the_list_is_the_list():
    """`ggt list` reads names from a file; after a change of a name: python -m ggt_lab.cli.known_names."""
    assert known_names() == live_names()
    assert NOT_RACED.keys() == {"LBFGS", "SparseAdam"}  # the list says these two
    content = json.loads(resources.files("ggt_lab.cli").joinpath("known_names.json").read_text())
    assert content["versions"] == {"torch-ggt": torch_ggt.__version__, "torch": "2.13"}


@pytest.mark.parametrize(("noise", "dropped"), [(0.37, 0), (math.nan, 3)])
def test_the_numbers_of_a_spectrum_are_a_table(noise, dropped, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_console", None)
    by_window = {1: 0.5, 5: 0.96, 10: 1.0}
    numbers = Diagnosis(
        *("gradient", 20, 10, 8, 4),
        **{
            "condition": 12345.6,
            "condition_max": 2e4,
            "condition_isotropic": 1.5,
            "dropped": dropped,
            "rounding": 1e-9,
        },
        **{"effective_rank": 4.0, "effective_rank_isotropic": 9.0, "stable_rank": math.nan, "cosine_diagonal": 0.8},
        **{"cosine_sgd": 0.7, "cosine_sgd_isotropic": 0.9, "cosine_by_window": by_window, "noise": noise},
    ).numbers()
    _show_numbers(numbers)
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert ("Noise: 37 % of a gradient is not explained by the others." in shown) == (noise == 0.37)
    assert "The window: 10 of 20 gradient rows, at the end of training" in shown
    for row in ("condition number 12,346 1.5", "stable rank unknown", "cosine with the step of SGD 0.7 0.9"):
        assert row in shown
    assert "newest rows that suffice for a cosine of 0.95 5 of 10" in shown
    assert ("eigenvalues at rounding level, left out 3" in shown) == (dropped == 3)


TABLES = {
    "race": (["optimizer", "tuned lr", "final", "± seeds", "mean per step", "mean per second"], 1),
    "scale": (["model", "GPUs", "mode", *(f"number {n} of it" for n in range(11))], 3),
    "claims": (["statement", "", "paper", "ours", "n"], 1),
}


@pytest.mark.parametrize("columns", [80, 50])
@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("table", TABLES)
def test_tables_fit_the_terminal_with_whole_words(table, rich, columns, monkeypatch, capsys):
    headings, keys = TABLES[table]
    rows = [
        [f"GGT(window={n}," + " other='bfloat16')" * (keys == 1), *(f"{n}.{k}234 ms" for k in range(13))]
        for n in (5, 7)
    ]
    rows = [row[: len(headings)] for row in rows]
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(terminal, "_console", Console(width=columns) if rich else None)
    terminal.show_table("a title", [terminal.Column(heading) for heading in headings], rows, keys=keys)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    words = [word for cell in (*headings, *itertools.chain(*rows)) for word in cell.split()]
    found = shown.replace("│", " ").replace("┃", " ").split()
    assert not set(words) - set(found)
    for row in rows:
        assert all(found.count(cell.split()[0]) >= 1 for cell in row)


def test_names_from_files_do_not_steer_the_terminal(capsys, monkeypatch):
    for console in (None, Console()):
        monkeypatch.setattr(terminal, "_console", console)
        terminal.say("\x1b[2Jcleared\x07 \ud800")
        terminal.show_table("\x1b]0;owned\x07", [terminal.Column("a")], [["\x1b[31mred"]])
    shown = capsys.readouterr().out
    assert "cleared" in shown
    assert not {"\x1b", "\x07"} & set(shown)


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["ggt", "race", "logistic"]
from ggt_lab.cli import main
main()
"""


@pytest.mark.parametrize("module", ["ggt_lab.cli.commands", "tyro", "torch", "ggt_lab.runs.race"])
def test_ctrl_c_in_the_first_seconds(module, tmp_path):
    code = INTERRUPTED.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 130
    assert "Interrupted." in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_results_of_somebody_else_execute_nothing(tmp_path, monkeypatch, capsys):
    """A folder of results may come by mail: the files and packages it names run only on the user's word."""
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    curve = [{"step": n, "seconds": 0.1 * n, "loss": 1.0} for n in range(3)]
    record = {"problem": "evil.py", "optimizer": "evil.Best(a=1)", "lr": 0.1, "seed": 0, "metric": "loss"}
    (tmp_path / "r").mkdir()
    (tmp_path / "r/results.jsonl").write_text(json.dumps({**record, "status": "done", "curve": curve}))
    where = {"cwd": tmp_path, "monkeypatch": monkeypatch, "capsys": capsys}
    assert "name code that would be executed: evil.py, evil.Best" in failing("spectrum", "r", **where)
    assert not (tmp_path / "ran").exists()
    assert "defines no class named Problem" in failing("spectrum", "r", "--trust", **where)
    assert (tmp_path / "ran").exists()
