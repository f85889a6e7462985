"""The command line: one file for each command, one that reads options, one that writes to the terminal."""

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of ``ggt`` and of ``python -m ggt_lab``."""
    from ggt_lab.cli.commands import run_command

    run_command(sys.argv[1:])
