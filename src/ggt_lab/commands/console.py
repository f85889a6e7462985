"""What all commands share: the console, a progress bar, and what Ctrl-C says."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ggt_lab.reproduce.base import Progress as Report

__all__ = ["all_cores", "console", "progress_bar"]

console = Console()


def all_cores() -> int:
    """As many processes as there are cores."""
    return os.cpu_count() or 1


@contextmanager
def progress_bar(results: Path) -> Iterator[Report]:
    """A live bar, as a function of (done, total, words); Ctrl-C ends the program with a word on how to go on."""
    columns = (
        TextColumn("{task.description}", table_column=None),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("starting", total=None)

            def report(done: int, total: int, words: str) -> None:
                bar.update(task, completed=done, total=total, description=escape(words) or "running")

            yield report
    except KeyboardInterrupt:
        console.print(f"\nInterrupted. What is finished is in {results}; the same command goes on from there.")
        sys.exit(130)
