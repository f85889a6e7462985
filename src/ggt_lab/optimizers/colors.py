"""One colour for each optimizer, in every figure and in the report. This module alone decides it.

An optimizer has the colour of its family. Members of a family that are drawn together differ in their dashes. The
optimizers of this library are blue: a whitened optimizer is of GGT's family, whatever is whitened.
"""

import re
from collections.abc import Iterable, Sequence

__all__ = ["COLORS", "LineStyle", "color_numbers", "line_styles"]

LineStyle = tuple[str, str | tuple[int, tuple[int, ...]]]
"""A colour and dashes, for matplotlib."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette. The report has seven colours in this order, too."""
_DASHES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (8, 3)), (0, (3, 1, 1, 1)))
_FAMILIES = (
    ("GGT", "PaperGGT", "full matrix", "FullMatrixAdaptive", "FullMatrixAdaGrad", "one matrix"),
    ("Adam", "AdamW", "NAdam", "AdamWScheduleFree"),
    ("AdaGrad", "Adagrad", "diagonal", "DiagonalAdaptive"),
    ("RMSprop", "Adadelta"),
    ("Muon", "MuonAndAdamW", "NorMuon", "NorMuonAndAdamW"),
    ("SOAP", "Shampoo"),
    ("SGD", "L-BFGS", "LBFGS"),
)
"""The names of each family, in the order of the colours."""
_NUMBERS = {name.lower(): number for number, names in enumerate(_FAMILIES) for name in names}


def color_numbers(names: Iterable[str]) -> dict[str, int]:
    """A number for each optimizer that is drawn: its colour is the number modulo 7, and its dashes the rest.

    An optimizer of no known family has a colour that no other one of ``names`` has, as long as there is one.

    Example:
        >>> color_numbers(["GGT(window=50)", "Adam, lr 0.1", "GGT by parameter", "torch.optim.AdamW", "Lion"])
        {'GGT(window=50)': 0, 'Adam, lr 0.1': 1, 'GGT by parameter': 7, 'torch.optim.AdamW': 8, 'Lion': 2}
    """
    listed = list(dict.fromkeys(names))
    families = {name: _family(name) for name in listed}
    taken: list[int] = [family for family in families.values() if family is not None]
    found, used = {}, dict.fromkeys(range(len(COLORS)), 0)
    for name in listed:
        family = families[name]
        if family is None:
            family = min(range(len(COLORS)), key=lambda each: (taken.count(each), each))
            taken.append(family)
        found[name] = family + len(COLORS) * used[family]
        used[family] += 1
    return found


def line_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """The colour and the dashes of each line, for matplotlib."""
    return {
        name: (COLORS[number % len(COLORS)], _DASHES[number // len(COLORS) % len(_DASHES)])
        for name, number in color_numbers(names).items()
    }


def _family(name: str) -> int | None:
    """The family of a name, without module, options and what follows."""
    if re.match(r"whiten\(|whitened ", name.strip()):
        return _NUMBERS["ggt"]
    plain = re.split(r"[(,)]", name)[0].strip().rpartition(".")[2]
    words = plain.lower().split(" ")
    for length in range(len(words), 0, -1):  # "GGT by parameter" is a GGT
        number = _NUMBERS.get(" ".join(words[:length]))
        if number is not None:
            return number
    return _NUMBERS.get(plain.lower().removeprefix("fullmatrix"))
