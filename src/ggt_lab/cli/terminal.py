"""What all commands write to the terminal: sentences, tables, progress. With colours where rich is installed."""

import re
import shutil
import sys
import textwrap
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

_LONGEST_WORD = 36  # a longer word, such as a path, is folded
_ENDLESS = 10_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def _harmless(text: str) -> str:
    """The text without characters that would steer the terminal, or that it cannot show: names come from files."""
    return _CONTROL.sub("\ufffd", text)


def say(text: str, *, style: str = "") -> None:
    """Print ``text``, in a style of rich ("bold red") if the terminal can show one."""
    text = _harmless(text)
    if _console is None:
        print(text, flush=True)
    else:
        _console.print(text, style=style or None, markup=False, highlight=False)


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading and its alignment."""

    heading: str
    right: bool = False


def show_table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    styles: Sequence[str] = (),
    lines: bool = False,
    keys: int = 1,
) -> None:
    """Print a table that fits the terminal. Words stay whole.

    Where the columns do not fit side by side, they are shown in several tables, one below the other. Each of them
    begins with the columns that name the rows.

    Args:
        title: the line above the table.
        columns: the headings.
        rows: the cells.
        styles: a style of rich for each row.
        lines: draw a line between rows, for cells of many words.
        keys: how many of the first columns name a row.
    """
    rows = [[_harmless(cell) for cell in row] for row in rows]
    border = 2 if _console is None else 3
    room = _width() - (0 if _console is None else 1)
    for number, chosen in enumerate(_tables(columns, rows, room, keys, border)):
        part = [columns[index] for index in chosen]
        cells = [[row[index] for index in chosen] for row in rows]
        widths = _widths(part, cells, room - border * len(chosen))
        heading = _harmless(title) if number == 0 else ""
        if _console is None:
            _print_plainly(heading, part, cells, widths)
        else:
            _print_richly(heading, part, cells, widths, styles or [""] * len(rows), lines)


def _width() -> int:
    """The characters of a line of the terminal. A file or a pipe has endless lines, unless COLUMNS says otherwise."""
    if _console is not None:
        return int(_console.width)
    return shutil.get_terminal_size((80 if sys.stdout.isatty() else _ENDLESS, 24)).columns


def _cells_of(columns: Sequence[Column], rows: Sequence[Sequence[str]], index: int) -> list[str]:
    return [columns[index].heading, *(row[index] for row in rows)]


def _least(cells: Sequence[str]) -> int:
    """The width of the longest word."""
    return max(min(_LONGEST_WORD, max(map(len, cell.split()), default=1)) for cell in cells)


def _tables(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int, keys: int, border: int
) -> list[list[int]]:
    """The numbers of the columns of each table."""
    least = [_least(_cells_of(columns, rows, index)) + border for index in range(len(columns))]
    named = list(range(keys))
    tables = [list(named)]
    for index in range(keys, len(columns)):
        together = sum(least[each] for each in tables[-1]) + least[index]
        if together > room and len(tables[-1]) > keys:
            tables.append(list(named))
        tables[-1].append(index)
    return tables


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """The width of each column: its longest word, and a share of what is left, as far as its cells are longer."""
    cells = [_cells_of(columns, rows, index) for index in range(len(columns))]
    widths = list(map(_least, cells))
    wanted = [max(map(len, each)) for each in cells]
    left = max(0, room - sum(widths))
    while left and widths != wanted:
        # The column that would be folded into the most lines gets the next character.
        index = max(range(len(columns)), key=lambda each: (wanted[each] > widths[each]) * wanted[each] / widths[each])
        widths[index] += 1
        left -= 1
    return widths


def _print_richly(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    styles: Sequence[str],
    lines: bool,
) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, title_justify="left", show_lines=lines)
    for column, width in zip(columns, widths, strict=True):
        justify: Any = "right" if column.right else "left"
        # Long words are folded: a name that is cut short is no name.
        table.add_column(escape(column.heading), justify=justify, overflow="fold", width=width)
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*map(escape, row), style=style or None)
    _console.print(table)


def _print_plainly(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    shown = [title] if title else []
    for row in [[column.heading for column in columns], *rows]:
        folded = [
            textwrap.wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(row, widths, strict=True)
        ]
        for number in range(max(map(len, folded))):
            parts = [cell[number] if number < len(cell) else "" for cell in folded]
            aligned = [
                part.rjust(width) if column.right else part.ljust(width)
                for part, width, column in zip(parts, widths, columns, strict=True)
            ]
            shown.append("  ".join(aligned).rstrip())
    print("\n".join(shown), flush=True)


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
