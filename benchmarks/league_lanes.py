"""The league in lanes: `python benchmarks/league_lanes.py OUT --data DATA --minutes 9 "shake-shake: soap muon"`.

`ggt league --jobs 15` gives every run an equal part of the GPU, and plays the tasks in its own order. Some optimizers
start many small kernels: beside fourteen other runs their steps take ten times as long, and the others end long before
them. A lane is one task, some of its entrants, and the number of its runs that train at a time:

    "shake-shake: soap muon; jobs 2"      jobs is 1 if it is not given
    "r4: ggt-200 adam; jobs 3; later"     this lane gets what the others leave of the GPU (a priority of NVIDIA's MPS)

Each lane is one `ggt league` in a process of its own. All lanes fill one folder, and the same command goes on where it
stopped. Two lanes must not have one cell. What a lane prints is in OUT/lanes. `--smoke` tries the lanes with tiny runs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ggt_lab.cli.terminal import say
from ggt_lab.runs.results import Results

_LOOK = 20  # seconds


class Lane(NamedTuple):
    """A task, some of its entrants, and how they train."""

    task: str
    entrants: tuple[str, ...]
    jobs: int
    later: bool


def lane(words: str) -> Lane:
    """The lane that the words describe.

    Raises:
        argparse.ArgumentTypeError: they describe none; the message says what to write.
    """
    found = re.fullmatch(r"([\w-]+):((?: +[\w-]+)+)(?:; *jobs +([1-9]\d*))?(; *later)?", words.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f'{words!r} is no lane; write "task: entrant entrant; jobs 2; later"')
    return Lane(found[1], tuple(found[2].split()), int(found[3] or 1), bool(found[4]))


def check(lanes: list[Lane]) -> None:
    """See that no two lanes play one cell.

    Raises:
        ValueError: two lanes do; the message names the cell.
    """
    cells = Counter((each.task, entrant) for each in lanes for entrant in each.entrants)
    twice = [f"{entrant} on {task}" for (task, entrant), count in cells.items() if count > 1]
    if twice:
        raise ValueError(f"two lanes play {', '.join(twice)}: name each entrant of a task once")


def command(each: Lane, given: argparse.Namespace) -> list[str]:
    """The `ggt league` of a lane."""
    words = [sys.executable, "-m", "ggt_lab", "league", "--task", each.task, "--entrant", *each.entrants]
    words += ["--jobs", str(each.jobs), "--device", given.device, "--out", str(given.out)]
    words += ["--data", str(given.data)] if given.data else []
    words += ["--minutes", str(given.minutes)] if given.minutes is not None else []
    return words + (["--smoke"] if given.smoke else [])


def begin(each: Lane, number: int, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a lane; what it prints goes to a file."""
    log = given.out / "lanes" / f"{number}-{each.task}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    # Each run has one core: compilers with a pool of processes would fight for the cores.
    with_priority = {"CUDA_MPS_CLIENT_PRIORITY": "1"} if each.later else {}
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", **with_priority}
    with log.open("ab") as file:
        return subprocess.Popen(command(each, given), stdout=file, stderr=subprocess.STDOUT, env=environment)


def progress(out: Path, lanes: list[Lane]) -> str:
    """How many runs each lane has in the results."""
    done = Counter((run["task"], run["entrant"]) for run in Results(out / "results.jsonl"))
    counts = [
        f"{each.task} {'+'.join(each.entrants)} {sum(done[each.task, name] for name in each.entrants)}"
        for each in lanes
    ]
    return "; ".join(counts)


def main(words: list[str] | None = None) -> int:
    """Run all lanes, say every twenty seconds what is done, and end with 1 if a lane failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("lanes", nargs="+", type=lane, metavar="LANE")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, help="begin no run after this time")
    parser.add_argument("--smoke", action="store_true", help="tiny runs: does it run here?")
    given = parser.parse_args(words)
    try:
        check(given.lanes)
    except ValueError as error:
        parser.error(str(error))
    began = time.monotonic()
    running = [begin(each, number, given) for number, each in enumerate(given.lanes)]
    while any(process.poll() is None for process in running):
        time.sleep(1 if given.smoke else _LOOK)
        say(f"{time.monotonic() - began:.0f} s: {progress(given.out, given.lanes)}")
    failed = [each for each, process in zip(given.lanes, running, strict=True) if process.returncode]
    for each in failed:
        say(f"The lane {json.dumps(each.task)} failed: {given.out / 'lanes'} has what it printed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
