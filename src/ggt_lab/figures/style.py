"""The style of all figures: colours that colour-blind readers tell apart, quiet axes, PNG and PDF."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ggt_lab.optimizers.colors import COLORS

__all__ = ["COLORS", "log_axis", "quiet", "save"]


class _PlainLog(LogFormatter):
    """0.1 and 20 instead of 1e-01 and 2·10¹."""

    def _num_to_string(self, x: float, vmin: float, vmax: float) -> str:
        del vmin, vmax
        return f"{x:g}"


def quiet(axes: Axes) -> None:
    """Take away the upper and right spine, and draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, alpha=0.25)


def log_axis(axes: Axes, which: str) -> None:
    """Make the x or y axis logarithmic, with 2 instead of 2·10⁰."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    for set_formatter in (axis.set_major_formatter, axis.set_minor_formatter):
        set_formatter(_PlainLog(labelOnlyBase=False, minor_thresholds=(2, 0.5)))


def save(figure: Figure, path: Path, *, title: str = "") -> list[Path]:
    """Write ``path`` (without suffix) as PNG and PDF, and return both paths, PNG first."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(path.name + suffix) for suffix in (".png", ".pdf")]
    for file in files:
        figure.savefig(file, dpi=150)
    plt.close(figure)
    return files
