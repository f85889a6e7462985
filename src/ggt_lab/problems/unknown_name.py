"""The error for an unknown name: it names the closest known names."""

import difflib
from collections.abc import Collection

__all__ = ["closest", "unknown"]


def closest(name: str, known: Collection[str]) -> list[str]:
    """The known names that are closest to ``name``, at most three; upper case and lower case are no difference.

    Example:
        >>> closest("adamw", ["Adam", "AdamW"]), closest("adamv", ["Adam", "AdamW"])
        (['AdamW'], ['Adam', 'AdamW'])
    """
    spelled = {each.lower(): each for each in known}
    found = [name.lower()] if name.lower() in spelled else difflib.get_close_matches(name.lower(), spelled, 3, 0.4)
    return [spelled[each] for each in found]


def unknown(kind: str, name: str, known: Collection[str], otherwise: str) -> ValueError:
    """The error for a ``name`` that is not among ``known``.

    Args:
        kind: what the name should be a name of.
        name: what was given.
        known: what could have been given.
        otherwise: a sentence on what else could have been given.
    """
    close = closest(name, known)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(known))}."
    return ValueError(f"unknown {kind} {name!r}: {hint} {otherwise}")
