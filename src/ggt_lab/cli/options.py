"""Options of a command: the fields of a dataclass, read from the words that a person typed.

A command is a dataclass. Each field is an option, the text below a field is its help, and a field of type
`Positional` is given without a name. `tyro` reads the dataclasses where it is installed. `read_plainly` reads the same
dataclasses with `argparse` where it is not, so that a machine with nothing but torch and numpy has the whole command.
"""

import argparse
import ast
import dataclasses
import functools
import importlib
import inspect
import operator
import os
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

__all__ = ["Positional", "all_cores", "read", "read_plainly", "read_with_tyro"]

if TYPE_CHECKING:
    from tyro.conf import Positional
else:
    try:
        from tyro.conf import Positional
    except ImportError:
        Positional = Annotated[TypeVar("T"), "given without a name"]

_PROGRAM = "ggt"
_DESCRIPTION = "Full-matrix adaptive optimization: races and experiments. `ggt --version` says what is installed."


def all_cores() -> int:
    """The number of cores: how many processes work at a time unless the user says otherwise."""
    return os.cpu_count() or 1


def read(commands: Mapping[str, type], words: Sequence[str]) -> Any:  # noqa: ANN401 - an instance of one of the commands
    """The command that ``words`` name, with its options; `tyro` reads them if it is installed, else `argparse`.

    Args:
        commands: the dataclass of each command, by the name that a person types.
        words: what was typed after the name of the program.
    """
    try:
        importlib.import_module("tyro")
    except ImportError:
        return read_plainly(commands, words)
    return read_with_tyro(commands, words)


def read_with_tyro(commands: Mapping[str, type], words: Sequence[str]) -> Any:  # noqa: ANN401
    """`read`, by tyro."""
    import tyro

    named: list[Any] = [Annotated[cls, tyro.conf.subcommand(name)] for name, cls in commands.items()]
    return tyro.cli(functools.reduce(operator.or_, named), args=words, prog=_PROGRAM, description=_DESCRIPTION)


def read_plainly(commands: Mapping[str, type], words: Sequence[str]) -> Any:  # noqa: ANN401
    """`read`, by argparse.

    Example:
        >>> @dataclasses.dataclass
        ... class Greet:
        ...     name: Positional[str]
        ...     times: int = 1
        >>> read_plainly({"greet": Greet}, ["greet", "you", "--times", "2"])
        Greet(name='you', times=2)
    """
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=_DESCRIPTION, allow_abbrev=False)
    branches = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in commands.items():
        words_of_command = _plain(inspect.getdoc(command) or "")
        branch = branches.add_parser(
            name, help=words_of_command, description=words_of_command, allow_abbrev=False, argument_default=_ABSENT
        )
        hints, helps = typing.get_type_hints(command, include_extras=True), _helps(command)
        for field in dataclasses.fields(command):
            _add_option(branch, field, hints[field.name], helps.get(field.name, ""))
    given = vars(parser.parse_args(words))
    command = commands[given.pop("command")]
    return command(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


_ABSENT = argparse.SUPPRESS  # an option that was not given keeps the default of its dataclass


def _add_option(parser: argparse.ArgumentParser, field: "dataclasses.Field[Any]", hint: Any, words: str) -> None:  # noqa: ANN401
    """One field as an argument of ``parser``."""
    positional = typing.get_origin(hint) is Annotated
    kind = typing.get_args(hint)[0] if positional else hint
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    several = typing.get_origin(kind) is tuple
    optional = isinstance(kind, types.UnionType)
    if several or optional:
        kind = typing.get_args(kind)[0]
    options: dict[str, Any] = {"help": words}
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["type"] = _or_none(kind) if optional else kind
    if several:
        options["nargs"] = "+" if positional and required else "*"
    elif positional and not required:
        options |= {"nargs": "?", "default": field.default}  # argparse would convert an absent default
    if positional:
        parser.add_argument(field.name, **options)
    else:
        parser.add_argument(f"--{field.name.replace('_', '-')}", required=required, dest=field.name, **options)


def _or_none(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """The word None stands for None."""

    def convert(word: str) -> Any:  # noqa: ANN401
        return None if word == "None" else kind(word)

    convert.__name__ = getattr(kind, "__name__", str(kind))  # argparse names it in its errors
    return convert


def _helps(command: type) -> dict[str, str]:
    """The text below each field of a dataclass, by the name of the field."""
    try:
        source = textwrap.dedent(inspect.getsource(command))
    except OSError:  # a class that was typed in has no file
        return {}
    found: dict[str, str] = {}
    name = ""
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = _plain(str(node.value.value))
    return found


def _plain(text: str) -> str:
    """Text for argparse, which reads a percent sign as the start of a format."""
    return " ".join(text.split()).replace("%", "%%")
