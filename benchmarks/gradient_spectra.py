"""E1 with gradients in the window, and with momentum beside it: `python benchmarks/gradient_spectra.py OUT`.

The paper's window holds gradients; the long runs of `ggt reproduce E1` held momentum. Here both are run, with the
models of E1 made small enough for a CPU (40 minutes on one core). Each writes OUT/gradient and OUT/momentum as
`ggt reproduce` would: runs, spectra, verdicts, a figure. `--smoke` does so with tiny models in a minute.

On a GPU, with the models and the lengths of E1 itself:

    GGT_DATA=DIR python benchmarks/gradient_spectra.py OUT --full --device cuda --seeds 3 --workers 8 --seconds 480

This was not run. With one seed, each history has about 15,000 steps of the CNN and 6,600 of the LSTM. With three seeds
it has 39,000 and 10,500. At 7 ms and 12 ms a step, both histories together take 7 minutes of an H200 with one seed, and
13 with three. Wider grids add to that. After `--seconds` the runs stop, and the same command goes on.
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ggt_lab.experiments.deep_race import DeepRace
from ggt_lab.experiments.experiment import Settings, reproduce
from ggt_lab.experiments.spectra_over_training import SpectraOverTraining
from ggt_lab.experiments.verdicts import Verdict
from ggt_lab.runs.results import Record

HISTORIES = ("gradient", "momentum")
RATES = {
    "gradient": {"CNN": (0.03, 0.1, 0.3), "RNN": (0.1, 0.3, 1.0)},
    "momentum": {"CNN": (0.1, 0.3, 1.0), "RNN": (0.3, 1.0, 3.0)},
}
PLAIN = {"autocast": False, "gradient_scale": 1.0}
SMALL = {
    "CNN": {**PLAIN, "base": 4, "blocks": 1, "captured": False, "compiled": False},
    "RNN": {**PLAIN, "batch": 128, "width": 64, "embedding": 32, "dropout": 0.0, "weight_drop": 0.0, "l2": 0.0},
}


class Spectra(SpectraOverTraining):
    """E1, with words before each statement: its verdicts do not replace the verdicts of E1's long runs."""

    words = ""

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge as E1 does, and say which window it was."""
        return [
            replace(each, statement=f"{self.words}: {each.statement}") for each in super().verdicts(records, command)
        ]


def spec(history: str) -> str:
    """The paper's GGT with this history, all options written out."""
    options = f"history='{history}', finish='none', shrinkage=0.0, weight_decay=0.0, adjust_lr_fn='original'"
    return f"GGT(window=200, window_dtype='float32', {options})"


def experiment(history: str, *, full: bool) -> Spectra:
    """E1 with the CNN and the RNN, small or as they are."""

    def part(name: str, title: str, problem: str, lengths: tuple[int, int], every: int, **options: Any) -> DeepRace:
        changes = {"batch": 128} if full and name == "RNN" else {} if full else SMALL[name]
        return DeepRace(
            "E1",
            title if full else f"small {title}",
            problem,
            {"GGT": (spec(history), RATES[history][name])},
            tuning_epochs=lengths[0],
            epochs=lengths[1],
            spectrum_every=every,
            changes=tuple(changes.items()),
            **options,
        )

    cnn = part("CNN", "Shake-Shake, CIFAR-10", "cifar10", (3, 30) if full else (1, 5), 12 if full else 8)
    constant = {"schedule": "constant", "tuning_schedule": "cosine"}
    rnn = part("RNN", "3-layer LSTM, PTB characters", "ptb-chars", (4 if full else 1, 5), 2 if full else 8, **constant)
    found = Spectra({"CNN": cnn, "RNN": rnn})
    found.words = f"{history} in the window, {'the models of E1' if full else 'small models'}"
    return found


def main(words: list[str] | None = None) -> None:
    """Run both histories and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--histories", nargs="+", default=HISTORIES, choices=HISTORIES)
    parser.add_argument("--full", action="store_true", help="the models and lengths of E1; needs a GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then; the same command goes on")
    parser.add_argument("--smoke", action="store_true", help="tiny: does it run here?")
    given = parser.parse_args(words)
    command = "python benchmarks/gradient_spectra.py OUT" + (" --full --device cuda" if given.full else "")
    deadline = time.monotonic() + given.seconds
    for history in given.histories:
        chosen = experiment(history, full=given.full)
        settings = Settings(given.seeds, smoke=given.smoke, device=given.device, deadline=deadline)
        found = reproduce(chosen, given.out / history, settings, command=command, workers=given.workers)
        if found.left:
            print(f"{history} in the window: time is up, {found.left} runs are left")
        for verdict in found.verdicts:
            print(f"{verdict.statement}: {verdict.word}: {verdict.ours}")


if __name__ == "__main__":
    main()
