"""Compare two source trees of the library, for instance before and after its code was rearranged.

Each tree is loaded in processes of its own. From the root of the repository::

    python benchmarks/redesign bits --old OLD/src --new NEW/src
    python benchmarks/redesign speed --old OLD/src --new NEW/src [--out speed.json]
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

    command = commands.add_parser("bits", help="whether both trees make the same bits with 20 sets of options")
    _two_trees(command)
    command.add_argument("--steps", type=int, default=200)
    command.add_argument("--all", action="store_true", help="print every difference, not only the first of a set")
    command.set_defaults(main=bits.main)

    command = commands.add_parser("speed", help="the time of a step on a CPU, in both trees side by side")
    _two_trees(command)
    command.add_argument("--pairs", type=int, default=5, help="pairs of processes")
    command.add_argument("--blocks", type=int, default=5, help="blocks of steps for each process of a pair")
    command.add_argument("--default-malloc", action="store_true", help="let malloc give memory back to the system")
    command.add_argument("--threads", type=int, default=2, help="for all cases but the host time")
    command.add_argument("--host-threads", type=int, default=1, help="for the host time")
    command.add_argument("--only", default="", help="cases whose name contains this")
    command.add_argument("--out", help="a file for the figures, as JSON")
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


def _two_trees(command):
    command.add_argument("--old", required=True, help="the folder that contains the old package torch_ggt")
    command.add_argument("--new", required=True, help="the folder that contains the new one")


if __name__ == "__main__":
    arguments = parse()
    sys.exit(arguments.main(arguments))
