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


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("bits", help="whether both trees make the same bits with 20 sets of options")
    _two_trees(command)
    command.add_argument("--steps", type=int, default=200)
    command.set_defaults(main=bits.main)
    return parser.parse_args()


def _two_trees(command):
    command.add_argument("--old", required=True, help="the folder that contains the old package torch_ggt")
    command.add_argument("--new", required=True, help="the folder that contains the new one")


if __name__ == "__main__":
    arguments = parse()
    sys.exit(arguments.main(arguments))
