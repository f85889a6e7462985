"""``ggt spectrum``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggt_lab.cli.options import Positional
from ggt_lab.cli.terminal import Column, progress_bar, say, show_table

if TYPE_CHECKING:
    from ggt_lab.runs.race import Run

__all__ = ["SpectrumCommand"]


@dataclass(frozen=True)
class SpectrumCommand:
    """Record the spectrum of recent gradients over training, and say whether a full matrix is worth it."""

    what: Positional[str]
    """A problem, a Python file of your own, or the folder of a race: then its optimizers at their tuned rates."""
    optimizers: tuple[str, ...] = ("GGT", "Adam")
    """The optimizers to watch; a GGT has a window to read, each other optimizer gets a window beside it."""
    lr: float = 0.01
    """The learning rate; runs of a race keep their tuned rates."""
    window: int | None = None
    """How many gradients the window beside an optimizer holds; 20 by default."""
    every: int | None = None
    """The number of steps from one record to the next; by default there are about 200 records."""
    seed: int = 0
    """The seed."""
    steps: int | None = None
    """How long to train; by default as long as the problem says."""
    device: str = "cpu"
    """cpu or cuda."""
    trust: bool = False
    """Execute the Python files and import the packages that the results of a race name. Only for folders you trust."""
    out: Path | None = None
    """Folder of the results; by default out/spectrum/PROBLEM, or the folder of the race."""

    def run(self) -> None:
        """Train with a recorder, draw, and diagnose."""
        from ggt_lab.figures.spectrum_density import draw_spectrum
        from ggt_lab.runs.race import grid
        from ggt_lab.spectra.recorded_runs import record_spectrum, write_spectrum

        for name, value in (("every", self.every), ("window", self.window)):
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        is_race = Path(self.what).is_dir()
        if is_race:
            runs = self._runs_of_a_race()
        else:
            rates = dict.fromkeys(self.optimizers, (self.lr,))
            runs = grid(self.what, rates, [self.seed], steps=self.steps, device=self.device)
        folder = self.out or (Path(self.what) if is_race else Path("out/spectrum") / Path(self.what).stem)
        spectra = []
        with progress_bar(folder) as progress:
            progress(0, len(runs), "")
            for number, run in enumerate(runs, start=1):
                spectra.append(record_spectrum(run, every=self.every, window=self.window))
                if spectra[-1]["steps"]:
                    write_spectrum(spectra[-1], folder, _file_name(run))
                progress(number, len(runs), str(run))
        for spectrum in spectra:
            say(f"{spectrum['label']}\n{spectrum['diagnosis']['verdict']}", style="bold")
            if spectrum["steps"]:
                _show_numbers(spectrum["diagnosis"]["numbers"])
                say(f"Cost: {spectrum['cost']}.\n")
        recorded = [spectrum for spectrum in spectra if spectrum["steps"]]
        if not recorded:
            return
        files = draw_spectrum(recorded, folder / "spectrum", title="Eigenvalues of GᵀG over training")
        say(f"Heat-map: {', '.join(map(str, files))}\nA page with all of it: ggt report {folder}")

    def _runs_of_a_race(self) -> "list[Run]":
        """The tuned runs of a race, checked. Results may come from somebody else: their code needs the user's word."""
        from ggt_lab.runs.race import grid
        from ggt_lab.spectra.recorded_runs import tuned_runs, would_execute

        runs = tuned_runs(Path(self.what))
        foreign = would_execute(runs)
        if foreign and not self.trust:
            raise ValueError(
                f"the results in {self.what} name code that would be executed: {', '.join(foreign)}. "
                "If you trust it, run the same command with --trust"
            )
        return [
            checked
            for run in runs
            for checked in grid(
                run.problem,
                {run.optimizer: (run.lr,)},
                [run.seed],
                steps=run.steps,
                device=run.device,
                schedule=run.schedule,
            )
        ]


def _show_numbers(numbers: Mapping[str, Any]) -> None:
    """The share of noise in a line, and a table of the numbers that the verdict comes from, with what chance gives."""
    if numbers.get("noise") is not None:
        say(f"Noise: {100 * numbers['noise']:.0f} % of a gradient is not explained by the others.")
    window, whole = numbers["window"], max(map(int, numbers["cosine_by_window"]))
    plain_method = "SGD with momentum" if numbers["history"] == "momentum" else "SGD"
    enough, least = numbers["threshold_cosine"], numbers["sufficient_window"]
    rows = [
        ("condition number", _number(numbers["condition"]), _number(numbers["condition_isotropic"])),
        ("largest condition number", _number(numbers["condition_max"]), ""),
        ("effective rank", _number(numbers["effective_rank"]), _number(numbers["effective_rank_isotropic"])),
        ("stable rank", _number(numbers["stable_rank"]), ""),
        ("cosine with the step of a diagonal method", _number(numbers["cosine_diagonal"]), ""),
        (
            f"cosine with the step of {plain_method}",
            _number(numbers["cosine_sgd"]),
            _number(numbers["cosine_sgd_isotropic"]),
        ),
        (f"newest rows that suffice for a cosine of {enough:g}", f"{least or whole} of {whole}", ""),
    ]
    if numbers["dropped"]:
        rows.append(("eigenvalues at rounding level, left out", str(numbers["dropped"]), ""))
    filled = str(numbers["rows"]) if numbers["rows"] == window else f"{numbers['rows']} of {window}"
    columns = [Column("quantity"), Column("here", right=True), Column("without structure", right=True)]
    show_table(f"The window: {filled} {numbers['history']} rows, at the end of training", columns, rows)


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.3g}"


def _file_name(run: "Run") -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{Path(run.problem).stem}-{run.optimizer}-{run.lr:g}").strip("-")
