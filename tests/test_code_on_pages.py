"""Every code block of the README and of docs/ is run; every command that they show is one that exists.

The blocks of a page run one after the other, and see what the blocks before them have made. What a page takes for
granted (a model, an optimizer) is in ``granted``. A block that cannot run here says why in its first line:
```` ```python not run: needs two GPUs ````.
"""

import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ggt_lab.cli.commands import COMMANDS, run_command
from ggt_lab.cli.options import read
from torch_ggt import GGT, param_groups, whiten
from torch_ggt.rules import RULES
from torch_ggt.scopes import SCOPES

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
BLOCK = re.compile(r"^```([a-z]*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN = [["ggt", command] for command in ("new-problem", "race", "report", "spectrum")]  # on a model of one's own
ALONE = {"distributed.md"}  # pages whose blocks are alternatives: each sees only what is granted


def blocks(page, *languages):
    """(what stands after the language, code) of each block of a page."""
    return [(words.strip(), code) for language, words, code in BLOCK.findall(PAGES[page]) if language in languages]


def granted():
    """A model with gradients, its optimizer, and the other names that pages use without making them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8)])

    def backward():
        loss = model[2](model[1](model.blocks[0](model[0](torch.randn(4, 8))))).square().mean()
        loss.backward()

    backward()
    optimizer = GGT([p for p in model.parameters() if p.grad is not None], lr=1e-3)

    def train():
        for _ in range(12):
            optimizer.zero_grad()
            backward()
            optimizer.step()

    train()
    sizes = {"replicas": 1, "ranks": 1, "device": "cpu", "folder": "checkpoint"}
    parts = {
        "matrices": [p for p in model.parameters() if p.dim() == 2],
        "others": [p for p in model.parameters() if p.dim() < 2],
    }
    tools = {"torch": torch, "GGT": GGT, "whiten": whiten, "dist": dist, "train": train}
    return {**tools, "model": model, "optimizer": optimizer, **sizes, **parts}


@pytest.fixture
def one_rank(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # torch's own, of ranks that are alone
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_code_runs(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RULES, "my_rmsprop", None)  # what architecture.md adds is taken away again
    monkeypatch.setitem(SCOPES, "layer", None)
    if page in ALONE:
        request.getfixturevalue("one_rank")
    names = granted()
    ran = 0
    for number, (words, code) in enumerate(blocks(page, "python"), 1):
        if words.startswith("not run"):
            assert re.fullmatch(r"not run: needs .+", words), f"{page}: block {number} does not say what it needs"
            continue
        if words.startswith("needs "):  # tests/integrations/test_page.py runs it where its package is installed
            continue
        if page in ALONE:
            names = granted()
        exec(compile(code, f"{page}, block {number}", "exec"), names)
        ran += 1
    assert ran


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python") and page not in ALONE])
def test_the_first_block_runs_as_pasted(page, tmp_path, monkeypatch):
    """A reader pastes the first block of a page into an empty session: it imports and makes all that it uses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RULES, "my_rmsprop", None)
    words, code = blocks(page, "python")[0]
    assert not words.startswith(("not run", "needs ")), f"{page}: the first block does not run, or needs a package"
    exec(compile(code, page, "exec"), {"__name__": "pasted"})


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "diff")])
def test_the_swap_runs(page):
    """The lines with a plus, after the lines with a minus have run: both are a whole program."""
    for _, code in blocks(page, "diff"):
        for sign in "-+":
            lines = [line[2:] for line in code.splitlines() if line.startswith((sign, " "))]
            names = granted()
            del names["whiten"]
            exec(compile("\n".join(lines), page, "exec"), names)
            assert isinstance(names["optimizer"], torch.optim.Optimizer)


@pytest.mark.parametrize("page", PAGES)
def test_an_optimizer_in_a_sentence_can_be_made(page):
    """What a reader would copy from a sentence or a table: `GGT(…)` with all its options."""
    for code in re.findall(r"`(GGT\((?:model\.|param_groups\(model)[^`]*\))`", PAGES[page]):
        if "<" not in code and "…" not in code:
            eval(code, {"GGT": GGT, "param_groups": param_groups, "model": torch.nn.Linear(8, 1)})


def command_lines(page):
    """What the page would have a person type, without comments and without what is left to them."""
    for _, code in blocks(page, "", "bash", "sh", "console"):
        for line in code.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and "…" not in line:
                yield words


def test_the_way_to_a_recommendation_works_as_typed(tmp_path, monkeypatch, capsys):
    """The commands of the README one after the other, on the template as it is, with fewer steps in the race."""
    monkeypatch.chdir(tmp_path)
    typed, quick = (
        [words for words in command_lines(page) if words[:2] in OWN] for page in ("README.md", "quickstart.md")
    )
    assert all(words in typed for words in quick)
    assert [words[1] for words in typed][:2] == ["new-problem", "race"]
    for _, *words in typed:
        short = ["--steps", "6", "--workers", "1"] if words[0] == "race" else []
        run_command([*words, *short])
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Recommended on this problem:|No optimizer is clearly first on this problem\.", said)
    assert (tmp_path / "out/race/my_problem/report.html").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if any(command_lines(page))])
def test_commands_exist(page):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for first, *rest in command_lines(page):
        if first == "make":
            assert set(rest) <= set(targets), (page, rest)
        elif first == "ggt" or (first == "python" and rest[:2] == ["-m", "ggt_lab"]):
            read(COMMANDS, rest if first == "ggt" else rest[2:])
        elif first in ("python", "torchrun"):
            script = next((word for word in rest if word.endswith(".py")), None)
            assert script is None or (ROOT / script).exists(), (page, script)
