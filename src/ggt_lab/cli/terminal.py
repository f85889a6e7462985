"""What all commands write to the terminal: sentences, tables, progress. With colours where rich is installed."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggt_lab.runs.progress import Progress

__all__ = ["Column", "progress_bar", "say", "show_table"]

try:
    from rich.console import Console

    _console: Any = Console()
except ImportError:
    _console = None


def say(text: str, *, style: str = "") -> None:
    """Print ``text``, in a style of rich ("bold red") if the terminal can show one."""
    if _console is None:
        print(text, flush=True)
    else:
        _console.print(text, style=style or None, markup=False, highlight=False)


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, its alignment, and the least number of characters that it gets."""

    heading: str
    right: bool = False
    least: int | None = None


def show_table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    styles: Sequence[str] = (),
    lines: bool = False,
) -> None:
    """Print a table.

    Args:
        title: the line above the table.
        columns: the headings.
        rows: the cells.
        styles: a style of rich for each row.
        lines: draw a line between rows, for cells of many words.
    """
    if _console is None:
        say("\n".join([title, *_aligned([[column.heading for column in columns], *rows], columns)]))
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", show_lines=lines)
    for column in columns:
        justify: Any = "right" if column.right else "left"
        # Long words are folded: a name that is cut short is no name.
        table.add_column(column.heading, justify=justify, overflow="fold", min_width=column.least)
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        table.add_row(*map(escape, row), style=style or None)
    _console.print(table)


def _aligned(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[str]:
    """The rows of a plain table, each column as wide as its widest cell."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in rows
    ]


@contextmanager
def progress_bar(results: Path) -> "Iterator[Progress]":
    """Show how far a command is: a live bar, or a line for each task where rich is not installed.

    After Ctrl-C the program ends, and says how to go on.

    Args:
        results: the file or folder that holds what is finished.
    """
    try:
        if _console is None:
            yield lambda done, total, words: print(f"{done} of {total} {words}".rstrip(), flush=True)
        else:
            with _live_bar() as report:
                yield report
    except KeyboardInterrupt:
        say(f"\nInterrupted. What is finished is in {results}; the same command goes on from there.")
        sys.exit(130)


@contextmanager
def _live_bar() -> "Iterator[Progress]":
    from rich import progress
    from rich.markup import escape

    columns = (
        progress.TextColumn("{task.description}", table_column=None),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=_console) as bar:
        task = bar.add_task("starting", total=None)

        def report(done: int, total: int, words: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(words) or "running")

        yield report
