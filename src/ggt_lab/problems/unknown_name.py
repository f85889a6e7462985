"""The error for an unknown name: it names the closest known names."""

import difflib
from collections.abc import Collection

__all__ = ["unknown"]


def unknown(kind: str, name: str, known: Collection[str], otherwise: str) -> ValueError:
    """The error for a ``name`` that is not among ``known``.

    Args:
        kind: what the name should be a name of.
        name: what was given.
        known: what could have been given.
        otherwise: a sentence on what else could have been given.
    """
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(known))}."
    return ValueError(f"unknown {kind} {name!r}: {hint} {otherwise}")
