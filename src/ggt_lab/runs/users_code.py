"""Errors in the code of a user: they name the line of the user's own file first."""

import ast
import linecache
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

import ggt_lab
import torch_ggt
from ggt_lab.data import DataError
from ggt_lab.optimizers.specs import OptimizerError
from ggt_lab.problems import Problem, problem_class

__all__ = ["MemberError", "ProblemError", "called", "problem_of", "running"]

_T = TypeVar("_T")
_OURS = tuple(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (ggt_lab, torch_ggt, torch))


class MemberError(ValueError):
    """A method or an attribute of a problem gives what a run cannot use; the message says what it should give.

    Args:
        member: its name.
        words: the message.
    """

    def __init__(self, member: str, words: str) -> None:
        super().__init__(member, words)
        self.member, self.words = member, words

    def __str__(self) -> str:
        return self.words


class ProblemError(RuntimeError):
    """A problem raised, or ended the program.

    Args:
        what: the problem and the run, and the error in words.
        place: the line of the user's own file, with its text; empty for a built-in problem.
        trace: the traceback, from the user's file on; empty if that file is not on the way to the error.
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
        ModuleNotFoundError: a built-in problem needs a package that is not installed.
    """
    try:
        yield
    except (DataError, ProblemError):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and not problem.endswith(".py"):
            raise
        raise _problem_error(problem, words, error) from error


def called(member: str, function: Callable[..., _T], *given: object) -> _T:
    """What a member of a problem returns.

    Raises:
        MemberError: it does not take these arguments.

    Example:
        >>> called("schedule", lambda progress: 1.0 - progress, 0.25)
        0.75
    """
    try:
        return function(*given)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # it was raised inside the member
            raise
        call = {"__init__": "Problem(seed, device)", "schedule": "schedule(progress)"}.get(member, f"{member}()")
        raise MemberError(member, f"the lab calls {call}, and that does not fit: {error}") from None


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
    return ProblemError(f"{named}: {_words(error)}", *_place_and_trace(error, Path(problem)))


def _first(error: BaseException) -> BaseException:
    """The error that a user's code raised, without the errors that the lab made of it."""
    return error.__cause__ if isinstance(error, ImportError) and error.__cause__ is not None else error


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"SystemExit: it ended the program with sys.exit({error.code!r}); raise an error instead"
    return str(error) if isinstance(error, MemberError | OptimizerError) else f"{type(error).__name__}: {error}"


def _place_and_trace(error: BaseException, file: Path) -> tuple[str, str]:
    """The innermost line of ``file`` on the way to the error, and the traceback from that file on.

    An error whose words say all has no traceback. An error in a built-in problem is ours, and has a whole one.
    """
    own = file.suffix == ".py"
    if isinstance(error, MemberError):
        return _definition(error.member, file) if own else "", ""
    if isinstance(error, OptimizerError):
        return "", ""
    if not own:
        return "", "".join(traceback.format_exception(error))
    frames = traceback.extract_tb(error.__traceback__)
    mine = [number for number, frame in enumerate(frames) if _is(frame.filename, file)]
    if isinstance(error, SyntaxError) and error.filename is not None and _is(error.filename, file):
        line, where = error.lineno or 1, ""
    elif mine:
        line, where = frames[mine[-1]].lineno or 1, f", in {frames[mine[-1]].name}"
    else:
        theirs = [number for number, frame in enumerate(frames) if not frame.filename.startswith((*_OURS, "<frozen "))]
        return "", _trace(error, frames[theirs[0] :], "the first line that is not ours") if theirs else ""
    return _line(file, line, where), _trace(error, frames[mine[0] :] if mine else [], "your file")


def _line(file: Path, line: int, where: str = "") -> str:
    return f"{file}, line {line}{where}: {linecache.getline(str(file), line).strip()}"


def _trace(error: BaseException, frames: list[traceback.FrameSummary], start: str) -> str:
    shown = [f"Traceback (from {start} on, most recent call last):\n", *traceback.format_list(frames)]
    return "".join([*shown, *traceback.format_exception_only(error)])


def _definition(member: str, file: Path) -> str:
    """The line of ``file`` that defines a member of the class ``Problem``; else the line of the class itself."""
    classes = [node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef)]
    classes.sort(key=lambda cls: cls.name != "Problem")  # the others may be what it inherits from
    for node in (node for cls in classes for node in ast.walk(cls)):
        if isinstance(node, ast.FunctionDef) and node.name == member:
            return _line(file, node.lineno, f", in {member}")
        if isinstance(node, ast.Name) and node.id == member and isinstance(node.ctx, ast.Store):
            return _line(file, node.lineno)
    return _line(file, classes[0].lineno) if classes and classes[0].name == "Problem" else ""


def _is(filename: str, file: Path) -> bool:
    return Path(filename).resolve() == file.resolve()
