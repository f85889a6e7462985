"""``ggt reproduce``."""

import math
import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path

from ggt_lab.cli.options import Positional, all_cores
from ggt_lab.cli.terminal import Column, progress_bar, say, show_table

__all__ = ["ReproduceCommand"]


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce an experiment of the paper, and judge its claims by the results. Run again to go on."""

    name: Positional[str]
    """One of the paper's claims: S1, S2, T1, T2, T3, P1, P2, R1, R2, R3, C1, A1, A2, R4 or E1 (see `ggt list`)."""
    entrants: tuple[str, ...] = ()
    """In a deep experiment, run only these optimizers (in E1, these models); earlier runs are kept."""
    epochs: int | None = None
    """In a deep experiment, the length of the full runs."""
    set: tuple[str, ...] = ()
    """Settings of the problem of a deep experiment: `--set batch=512 weight_drop=0.5`; smoke tests ignore them."""
    step_times: Path | None = None
    """A folder of `ggt bench --what training`: claims about seconds are judged by the step times in it."""
    seeds: int | None = None
    """How many seeds; by default the number that the experiment names."""
    smoke: bool = False
    """Tiny sizes on the CPU: shows in a minute that everything works, and nothing else."""
    device: str | None = None
    """Where the deep experiments are trained, cuda or cpu; cuda where there is one."""
    data: Path | None = None
    """A folder that holds the data of the deep experiments; without it the data is downloaded."""
    seconds: float = math.inf
    """Stop the deep experiments after so many seconds; the same command goes on."""
    workers: int = field(default_factory=all_cores)
    """How many runs train at a time."""
    out: Path | None = None
    """Folder of the results; out/reproduce/NAME by default."""

    def run(self) -> None:
        """Run the experiment, judge its claims, draw its figures."""
        if self.workers < 1 or (self.seeds is not None and self.seeds < 1):
            raise ValueError(f"need seeds ≥ 1, workers ≥ 1; got seeds={self.seeds}, workers={self.workers}")
        import torch

        from ggt_lab.experiments.catalogue import chosen_experiment, default_folder
        from ggt_lab.experiments.experiment import Settings, reproduce

        name = self.name.upper()
        chosen = chosen_experiment(
            name, entrants=self.entrants, epochs=self.epochs, changes=self.set, step_times=self.step_times
        )
        if self.data is not None:
            os.environ["GGT_DATA"] = str(self.data.resolve())  # the processes that train inherit it
        folder = self.out or default_folder(name, smoke=self.smoke)
        seeds = (1 if self.smoke else chosen.seeds) if self.seeds is None else self.seeds
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        with progress_bar(folder / "results.jsonl") as progress:
            outcome = reproduce(
                chosen,
                folder,
                Settings(seeds, smoke=self.smoke, device=device, deadline=time.monotonic() + self.seconds),
                command=self.command(),
                workers=self.workers,
                progress=progress,
            )
        if outcome.left:
            say(f"Time is up: {outcome.left} runs are left. The same command goes on from where they are.")
            return
        columns = [Column(heading) for heading in ("claim", "", "paper", "ours", "n")]
        rows = [[v.statement, v.word, v.paper, v.ours_and_spread, str(v.n)] for v in outcome.verdicts]
        show_table(f"{chosen.name}: {chosen.title}", columns, rows, lines=True)
        if self.smoke:
            say("These are tiny sizes: nothing about the claims is decided.")
        figures = ", ".join(str(figure.path) for figure in outcome.figures)
        say(f"Results: {outcome.results}\nFigures: {figures}\nA page with all of it: ggt report {folder}")

    def command(self) -> str:
        """The command that makes these results again, on any machine: without folders, device and speed.

        Example:
            >>> ReproduceCommand("R1", entrants=("SGD low",), seeds=2, workers=4).command()
            "ggt reproduce R1 --entrants 'SGD low' --seeds 2"
        """
        words = ["ggt", "reproduce", self.name.upper()]
        words += ["--smoke"] if self.smoke else []
        words += ["--entrants", *self.entrants] if self.entrants else []
        for option, value in (("--epochs", self.epochs), ("--seeds", self.seeds)):
            words += [option, str(value)] if value is not None else []
        words += ["--set", *self.set] if self.set else []
        times = self.step_times
        words += ["--step-times", times.name if times.is_absolute() else str(times)] if times is not None else []
        return shlex.join(words)
