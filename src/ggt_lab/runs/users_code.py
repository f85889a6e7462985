"""Errors in the code of a user: they name the line of the user's own file first."""

import linecache
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ggt_lab.data import DataError
from ggt_lab.problems import Problem, problem_class

__all__ = ["ProblemError", "problem_of", "running"]


class ProblemError(RuntimeError):
    """A problem raised, or ended the program.

    Args:
        what: the problem and the run, and the error in words.
        place: the line of the user's own file, with its text; empty for a built-in problem.
        trace: the traceback, from the user's file on.
    """

    def __init__(self, what: str, place: str = "", trace: str = "") -> None:
        super().__init__(what, place, trace)  # all three travel from a worker to the process that shows them
        self.what, self.place, self.trace = what, place, trace

    def __str__(self) -> str:
        return self.what


@contextmanager
def running(problem: str, words: str = "") -> Iterator[None]:
    """Run code of the problem ``problem``: what it raises becomes a `ProblemError`, also ``sys.exit``.

    Args:
        problem: a name or a Python file.
        words: the run, for the message.

    Raises:
        DataError: the data of the problem is not there; the message says what to do.
    """
    try:
        yield
    except (DataError, ProblemError):
        raise
    except (Exception, SystemExit) as error:
        raise _problem_error(problem, words, error) from error


def problem_of(name: str) -> type[Problem]:
    """`problem_class`; an error in the file of a user names its line.

    Raises:
        ValueError: there is no such problem, or the file has no usable class ``Problem``.
        ProblemError: the file raised while it was imported.
    """
    try:
        return problem_class(name)
    except (ImportError, SystemExit) as error:
        raise _problem_error(name, "", _first(error)) from error


def _problem_error(problem: str, words: str, error: BaseException) -> ProblemError:
    named = f"problem {problem}, {words}" if words else f"problem {problem}"
    return ProblemError(f"{named}: {_words(error)}", *_place(error, Path(problem)))


def _first(error: BaseException) -> BaseException:
    """The error that a user's code raised, without the errors that the lab made of it."""
    return error.__cause__ if isinstance(error, ImportError) and error.__cause__ is not None else error


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"SystemExit: it ended the program with sys.exit({error.code!r}); raise an error instead"
    return f"{type(error).__name__}: {error}"


def _place(error: BaseException, file: Path) -> tuple[str, str]:
    """The innermost line of ``file`` on the way to the error, and the traceback from that file on."""
    if file.suffix != ".py":
        return "", ""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [number for number, frame in enumerate(frames) if _is(frame.filename, file)]
    if isinstance(error, SyntaxError) and error.filename is not None and _is(error.filename, file):
        line, where = error.lineno or 1, ""
    elif mine:
        line, where = frames[mine[-1]].lineno or 1, f", in {frames[mine[-1]].name}"
    else:
        return "", ""
    text = linecache.getline(str(file), line).strip()
    shown = traceback.format_list(frames[mine[0] :]) if mine else []
    trace = "".join(["Traceback (from your file on, most recent call last):\n", *shown])
    return f"{file}, line {line}{where}: {text}", trace + "".join(traceback.format_exception_only(error))


def _is(filename: str, file: Path) -> bool:
    return Path(filename).resolve() == file.resolve()
