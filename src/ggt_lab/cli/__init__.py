"""The command line: one file for each command, one that reads options, one that writes to the terminal."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of ``ggt`` and of ``python -m ggt_lab``. Ctrl-C ends it without a traceback, also during imports."""
    if os.environ.get("COLUMNS", "1").strip("0") == "":  # 0 or nothing: a shell without a terminal; not a width
        del os.environ["COLUMNS"]
    try:
        from ggt_lab.cli.commands import run_command

        run_command(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nInterrupted. The same command begins again, or goes on with what is not finished.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
