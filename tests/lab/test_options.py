"""Options of commands: tyro and argparse read the same words into the same command."""

import dataclasses
import math
from pathlib import Path

import pytest

from ggt_lab.cli.commands import COMMANDS
from ggt_lab.cli.options import read_plainly, read_with_tyro

LINES = [
    "race digits",
    "race own.py --optimizers AdamW GGT(window=5) --lrs 0.001 1e-2 --widen 2 --seeds 5 --steps 40 --device cuda",
    "race digits --workers 3 --out here --fresh 0 --schedule cosine",
    "race digits --steps -3 --lrs nan",
    "league --task poisson deep --entrant soap adamw --jobs 2 --minutes 5.5 --times --device cuda --data DATA --out x",
    "league --smoke --no-times --summary",
    "reproduce R1",
    "reproduce R1 --entrants GGT Adam --epochs 3 --set batch=512 weight_drop=0.5 --step-times SPEED --seeds 2 --smoke",
    "reproduce E1 --device cpu --data DATA --seconds 540 --workers 2 --out OUT --no-smoke",
    "train runs.json --kept kept --results r.jsonl --seconds 1.5 --workers 2",
    "spectrum stdlib-chars --optimizers GGT --lr 0.1 --window 5 --every 2 --seed 1 --steps 9 --device cpu --out x",
    "spectrum out/race/own --trust",
    "report out/race",
    "claims",
    "claims records --page docs/claims.md",
    "claims records --page None",
    "bench --what training scopes --device cuda --quick --seconds 540 --out SPEED",
    "bench --records a b --list",
    "bench --only lean host_d5300000_r50_bfloat16 --longest 60 --together one/all.json",
    "plan 7B --window 20 --dtype float32 --gpus 8 --replicated --memory 80GB --bandwidth 3TB/s --records a b",
    "plan 5.3M --host-bandwidth 50GB/s --network-bandwidth 1GB/s --network-latency 2us --no-replicated",
    "plan 7e9 --whiten adamw --history gradient --finish none",
    "calibrate a b --to c.json",
    "scale --window 5 --dtype float32 --out x",
    "list",
    "new-problem",
    "new-problem own.py",
]


@pytest.mark.parametrize("line", LINES)
def test_both_readers_give_the_same_command(line):
    one, other = (read(COMMANDS, line.split()) for read in (read_with_tyro, read_plainly))
    assert type(one) is type(other) is COMMANDS[line.split()[0]]
    for field in dataclasses.fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        assert repr(mine) == repr(theirs), field.name  # nan is not equal to itself
        assert type(mine) is type(theirs), field.name


def test_every_option_is_in_a_line_above():
    """But for the one argument that a command takes without a name."""
    for name, command in COMMANDS.items():
        words = {word for line in LINES if line.split()[0] == name for word in line.split()}
        options = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(command)}
        given = options & words
        positional = {field.name for field in dataclasses.fields(command)} - {
            option.removeprefix("--").replace("-", "_") for option in given
        }
        assert len(positional) <= 1, (name, positional)


@pytest.mark.parametrize(
    "line", ["", "rase digits", "race", "race digits --seeds two", "race digits --step 3", "train x"]
)
@pytest.mark.parametrize("read", [read_with_tyro, read_plainly])
def test_wrong_words_end_the_program(line, read, capsys):
    with pytest.raises(SystemExit) as ended:
        read(COMMANDS, line.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_the_plain_help_shows_every_option_with_its_text(capsys):
    with pytest.raises(SystemExit) as ended:
        read_plainly(COMMANDS, ["race", "--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(COMMANDS["race"]):
        assert field.name in words
    assert "The grid of learning rates, for every optimizer." in words


def test_values():
    command = read_plainly(COMMANDS, ["reproduce", "R1", "--seconds", "inf", "--set", "a=1", "b=2", "--out", "x/y"])
    assert command.seconds == math.inf
    assert command.set == ("a=1", "b=2")
    assert command.out == Path("x/y")
    assert command.command() == "ggt reproduce R1 --set a=1 b=2"
