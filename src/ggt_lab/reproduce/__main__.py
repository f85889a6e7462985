"""``python -m ggt_lab.reproduce``: what ``ggt reproduce`` does, for machines without rich and tyro."""

import argparse
import math
import os
import shlex
import time
from pathlib import Path

from ggt_lab.reproduce import Settings, chosen_experiment, default_folder, experiment_names, reproduce
from ggt_lab.verdict import markdown


def main() -> None:
    """Run it, and print the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m ggt_lab.reproduce", description=__doc__)
    parser.add_argument("name", choices=experiment_names())
    parser.add_argument("--entrants", nargs="+", default=[], help="only these optimizers (of E1: models)")
    parser.add_argument("--epochs", type=int, help="length of the full runs")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the problem")
    parser.add_argument("--step-times", type=Path, help="folder of python -m ggt_lab.bench --what training")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", type=Path, help="folder of the data; it is downloaded otherwise")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then; the same command goes on")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    try:
        chosen = chosen_experiment(
            arguments.name,
            entrants=arguments.entrants,
            epochs=arguments.epochs,
            changes=arguments.set,
            step_times=arguments.step_times,
        )
    except ValueError as error:
        parser.error(str(error))
    if arguments.data is not None:
        os.environ["GGT_DATA"] = str(arguments.data.resolve())  # the processes that train inherit it
    outcome = reproduce(
        chosen,
        arguments.out or default_folder(arguments.name, smoke=arguments.smoke),
        Settings(
            arguments.seeds or (1 if arguments.smoke else chosen.seeds),
            smoke=arguments.smoke,
            device=arguments.device,
            deadline=time.monotonic() + arguments.seconds,
        ),
        command=_command(arguments),
        workers=arguments.workers,
        progress=lambda done, total, words: print(f"{done} of {total} {words}", flush=True),
    )
    print(f"{outcome.left} runs are left" if outcome.left else markdown(outcome.verdicts))


def _command(arguments: argparse.Namespace) -> str:
    """What makes these results again, without where and how fast."""
    words = ["ggt", "reproduce", arguments.name]
    words += ["--smoke"] if arguments.smoke else []
    words += ["--entrants", *arguments.entrants] if arguments.entrants else []
    for option in ("epochs", "seeds"):
        value = getattr(arguments, option)
        words += [f"--{option}", str(value)] if value is not None else []
    words += ["--set", *arguments.set] if arguments.set else []
    times = arguments.step_times
    words += ["--step-times", times.name if times.is_absolute() else str(times)] if times is not None else []
    return shlex.join(words)


if __name__ == "__main__":
    main()
