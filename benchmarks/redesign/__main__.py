"""Compare two source trees of the library, for instance before and after its code was rearranged.

Each tree is loaded in processes of its own. From the root of the repository::

    python benchmarks/redesign bits --old OLD/src --new NEW/src [--device cuda --out bits.json]
    python benchmarks/redesign speed --old OLD/src --new NEW/src [--device cuda --out speed.json]
    python benchmarks/redesign calls --tree NEW/src --mode cpu
    python benchmarks/redesign leaving --tree NEW/src --runs 50
"""

import argparse
import sys

import bits
import calls
import leaving
import speed


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("bits", help="whether both trees make the same steps with 20 sets of options")
    _two_trees(command, seconds=60)
    command.add_argument("--steps", type=int, default=200)
    command.add_argument("--all", action="store_true", help="print every difference, not only the first of a set")
    command.add_argument("--rounding", action="store_true", help="compare to rounding on a CPU, too")
    command.add_argument("--processes", type=int, help="for each tree; default 1 on a CPU, 6 on a GPU")
    command.set_defaults(main=bits.main)

    command = commands.add_parser("speed", help="the time of a step, in both trees side by side")
    _two_trees(command, seconds=110)
    command.add_argument("--pairs", type=int, help="pairs of processes; default 5 on a CPU, 2 on a GPU")
    command.add_argument("--blocks", type=int, default=5, help="blocks of steps for each process of a pair")
    command.add_argument("--default-malloc", action="store_true", help="let malloc give memory back to the system")
    command.add_argument("--threads", type=int, default=2, help="for all cases but the host time")
    command.add_argument("--host-threads", type=int, default=1, help="for the host time")
    command.add_argument("--only", default="", help="cases whose name contains this")
    command.add_argument("--gpu-cases", action="store_true", help="the cases of a GPU on a CPU, for a trial run")
    command.add_argument("--small", action="store_true", help="few elements and rows, for a trial run")
    command.set_defaults(main=speed.main)

    command = commands.add_parser("calls", help="the functions of the library that one steady step enters")
    command.add_argument("--tree", required=True, help="the folder that contains the package torch_ggt")
    command.add_argument("--mode", choices=calls.MODES, default="cpu")
    command.add_argument("--out", help="a file for the trace, as JSON")
    command.set_defaults(main=calls.main)

    command = commands.add_parser("leaving", help="how the processes of a group end that saved and loaded their state")
    command.add_argument("--tree", required=True, help="the folder that contains the package torch_ggt")
    command.add_argument("--runs", type=int, default=50)
    command.add_argument("--jobs", type=int, default=1, help="runs at a time")
    command.add_argument("--seconds", type=float, default=120, help="after which a run is stopped")
    command.set_defaults(main=leaving.main)
    return parser.parse_args()


def _two_trees(command, *, seconds):
    command.add_argument("--old", required=True, help="the folder that contains the old package torch_ggt")
    command.add_argument("--new", required=True, help="the folder that contains the new one")
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command.add_argument("--seconds", type=float, help=f"for all of it; default {seconds} on a GPU, no end on a CPU")
    command.add_argument("--out", help="a file for the figures, as JSON")
    command.set_defaults(seconds_on_a_gpu=seconds)


def _by_device(arguments):
    """Fill in the defaults that depend on the device."""
    on_gpu = getattr(arguments, "device", "cpu") == "cuda"
    if getattr(arguments, "seconds", 0) is None:
        arguments.seconds = arguments.seconds_on_a_gpu if on_gpu else 1e6
    if getattr(arguments, "pairs", 0) is None:
        arguments.pairs = 2 if on_gpu else 5
    if getattr(arguments, "processes", 0) is None:
        arguments.processes = 6 if on_gpu else 1
    return arguments


if __name__ == "__main__":
    arguments = _by_device(parse())
    sys.exit(arguments.main(arguments))
