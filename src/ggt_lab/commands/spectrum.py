"""``ggt spectrum``."""

import re
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.markup import escape
from rich.progress import track

from ggt_lab.commands.console import console
from ggt_lab.figures.spectrum import draw_spectrum
from ggt_lab.race import Run, grid
from ggt_lab.spectra import record_spectrum, tuned_runs, write_spectrum

__all__ = ["SpectrumCommand"]


@dataclass(frozen=True)
class SpectrumCommand:
    """Record the spectrum of recent gradients over training, and say whether a full matrix is worth it."""

    what: tyro.conf.Positional[str]
    """A problem, a Python file of your own, or the folder of a race: then its optimizers, at their tuned rates."""
    optimizers: tuple[str, ...] = ("GGT", "Adam")
    """Whose training to watch; a GGT's own window is read, others get one beside them."""
    lr: float = 0.01
    """The learning rate; of a race, the tuned ones are taken instead."""
    window: int | None = None
    """Gradients in the window of optimizers that have none of their own; 20 by default."""
    every: int | None = None
    """Record each so many steps; about 200 records by default."""
    seed: int = 0
    """The seed."""
    steps: int | None = None
    """How long to train; the problem knows by itself."""
    device: str = "cpu"
    """cpu or cuda."""
    out: Path | None = None
    """Folder of the results; out/spectrum/PROBLEM by default, a race's own folder."""

    def run(self) -> None:
        """Train with a recorder, draw, and diagnose."""
        is_race = Path(self.what).is_dir()
        if is_race:
            runs = tuned_runs(Path(self.what))
        else:
            rates = dict.fromkeys(self.optimizers, (self.lr,))
            runs = grid(self.what, rates, [self.seed], steps=self.steps, device=self.device)
        folder = self.out or (Path(self.what) if is_race else Path("out/spectrum") / Path(self.what).stem)
        spectra = []
        for run in track(runs, "recording", console=console):
            spectra.append(record_spectrum(run, every=self.every, window=self.window))
            write_spectrum(spectra[-1], folder, _file_name(run))
        files = draw_spectrum(spectra, folder / "spectrum", title="Eigenvalues of GᵀG over training")
        for spectrum in spectra:
            console.print(f"[bold]{escape(spectrum['label'])}[/]", highlight=False)
            console.print(f"{spectrum['diagnosis']['summary']}\nCost: {spectrum['cost']}.\n", highlight=False)
        console.print(f"Heat-map: {', '.join(map(str, files))}\nA page with all of it: ggt report {folder}")


def _file_name(run: Run) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{Path(run.problem).stem}-{run.optimizer}-{run.lr:g}").strip("-")
