"""``python -m ggt_lab.reproduce``: what ``ggt reproduce`` does, for machines without rich and tyro."""

import argparse
import math
import os
import time
from pathlib import Path

from ggt_lab.reproduce import Settings, experiment, experiment_names, reproduce
from ggt_lab.verdict import markdown


def main() -> None:
    """Run it, and print the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m ggt_lab.reproduce", description=__doc__)
    parser.add_argument("name", choices=experiment_names())
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = experiment(arguments.name)
    outcome = reproduce(
        chosen,
        arguments.out or Path("out/reproduce") / arguments.name,
        Settings(
            arguments.seeds or (1 if arguments.smoke else chosen.seeds),
            smoke=arguments.smoke,
            device=arguments.device,
            deadline=time.monotonic() + arguments.seconds,
        ),
        command=f"ggt reproduce {arguments.name}",
        workers=arguments.workers,
        progress=lambda done, total, words: print(f"{done} of {total} {words}", flush=True),
    )
    print(f"{outcome.left} runs are left" if outcome.left else markdown(outcome.verdicts))


if __name__ == "__main__":
    main()
