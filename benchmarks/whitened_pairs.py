"""Does whitening help? Optimizers alone and whitened, on equations that networks solve, with equal trials for all.

    python benchmarks/whitened_pairs.py OUT [--methods alone kept] [--problems pinn-poisson] [--seeds 0 1 2]

trains, and appends one line for each finished run to ``OUT/results.jsonl``. After an interruption, the same command
goes on with the rest. When all runs are there, it writes a summary and a figure; ``--summary`` writes them from the
runs that are there. The methods are: "alone"; "kept" (whitened with 50 rows, ``keep_norm=True``), "unit" (50 rows,
``keep_norm=False``), both with ``shrinkage=0``; and "defaults" (``whiten(optimizer)``, which has 20 rows).

**The protocol.** An entrant is an optimizer with a number of rows, on one problem. Each entrant has eight trials with
seed 100, which is not reported, to find its learning rate and its momentum:

1. four rates (0.001 to 0.03, each √10 times the one before) with momentum 0.9;
2. momentum 0.8 and 0.95 at the best rate;
3. two more rates, one after the other, with the best momentum so far: half-way (on a logarithmic scale) from the best
   rate to the better one of its neighbours, or √10 times beyond the best rate if no rate beyond it was tried.

The trial with the lowest training loss at the end wins; the error against the exact solution plays no part. The winner
then runs with fresh seeds (0, 1 and 2, or ``--seeds``), and these runs are reported. All runs have the same number of
steps and a cosine schedule to zero. Weight decay is zero for all: an exact solution is sought, and nothing is to be
regularized.
"""

import argparse
import json
import math
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class
from ggt_lab.runs.process_pool import processes, run_all
from ggt_lab.runs.results import Record, Results
from ggt_lab.runs.short_run import train
from ggt_lab.runs.training_loop import seed_everything

PROBLEMS = ("pinn-poisson", "pinn-convection", "pinn-burgers")
TITLES = {
    "pinn-burgers": "Burgers, training loss",
    "pinn-convection": "convection, relative error",
    "pinn-poisson": "Poisson, relative error",
}
OPTIMIZERS = {
    "AdamW": "AdamW(weight_decay=0.0, betas=({momentum}, 0.999))",
    "Muon": "MuonAndAdamW(weight_decay=0.0, momentum={momentum})",
    "NorMuon": "NorMuonAndAdamW(weight_decay=0.0, momentum={momentum})",
    "SOAP": "pytorch_optimizer.SOAP(weight_decay=0.0, betas=({momentum}, 0.95))",
}
FACTOR = math.sqrt(10)
RATES = tuple(1e-3 * FACTOR**k for k in range(4))
FIRST_MOMENTUM, OTHER_MOMENTA = 0.9, (0.8, 0.95)
TRIALS = len(RATES) + len(OTHER_MOMENTA) + 2
TUNING_SEED, SEEDS = 100, (0, 1, 2)
EVALUATIONS = 20
Method = tuple[int, bool | None, float | str]
"""The options ``window``, ``keep_norm`` and ``shrinkage`` of `torch_ggt.whiten`."""
ALONE: Method = (0, True, 0.0)
METHODS: dict[str, Method] = {
    "alone": ALONE,
    "kept": (50, True, 0.0),
    "unit": (50, False, 0.0),
    "defaults": (20, None, "auto"),
}


@dataclass(frozen=True)
class Entrant:
    """An optimizer, alone (window 0) or whitened, on a problem."""

    problem: str
    optimizer: str
    window: int
    keep_norm: bool | None = True
    shrinkage: float | str = 0.0


@dataclass(frozen=True)
class Trial:
    """One run."""

    problem: str
    optimizer: str
    window: int
    lr: float
    momentum: float
    seed: int
    steps: int
    keep_norm: bool | None = True
    shrinkage: float | str = 0.0

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def spec(self) -> str:
        plain = OPTIMIZERS[self.optimizer].format(momentum=self.momentum)
        options = f"keep_norm={self.keep_norm}, shrinkage={self.shrinkage!r}"
        return f"whiten({plain}, window={self.window}, {options})" if self.window else plain

    def __str__(self) -> str:
        return f"{self.problem}, {self.spec}, lr {self.lr:.2g}, seed {self.seed}"


def execute(trial: Trial) -> Record:
    """Train one run, in this process."""
    problem = problem_class(trial.problem)(trial.seed, torch.device("cpu"))
    seed_everything(trial.seed)

    make = optimizer_factory(trial.spec)
    outcome = train(problem, make, trial.lr, steps=trial.steps, evaluations=EVALUATIONS, schedule="cosine")
    # Without the seconds: other work ran on the machine.
    points = [{"step": p["step"], **{n: float(f"{p[n]:.5g}") for n in ("loss", "error")}} for p in outcome.curve]
    return {**asdict(trial), "spec": trial.spec, "metric": problem.metric, "status": outcome.status, "points": points}


# ---- the search for the rate and the momentum -----------------------------------------------------------------------


def last(record: Record, number: str) -> float:
    """The number at the end of a run; infinite if the run diverged."""
    return float(record["points"][-1][number]) if record["status"] == "done" else math.inf


def entrant_of(record: Record) -> Entrant:
    """Whose run it is."""
    return Entrant(*(record[name] for name in ("problem", "optimizer", "window", "keep_norm", "shrinkage")))


def trials_of(records: Sequence[Record], entrant: Entrant) -> list[Record]:
    """The runs of an entrant with the seed of tuning."""
    found = [r for r in records if entrant_of(r) == entrant]
    return [r for r in found if r["seed"] == TUNING_SEED]


def fresh_of(records: Sequence[Record], entrant: Entrant, seeds: Sequence[int] = SEEDS) -> list[Record]:
    """The runs of an entrant with fresh seeds and with what its trials chose, in the order of seeds."""
    best = best_trial(trials_of(records, entrant))
    if best is None:
        return []
    choice = (entrant, best["lr"], best["momentum"])
    found = [r for r in records if (entrant_of(r), r["lr"], r["momentum"]) == choice and r["seed"] in seeds]
    return sorted(found, key=lambda r: int(r["seed"]))


def best_trial(trials: Sequence[Record]) -> Record | None:
    """The trial with the lowest training loss; None if there is none, or if all diverged."""
    return min((r for r in trials if r["status"] == "done"), key=lambda r: last(r, "loss"), default=None)


def better_rate(trials: Sequence[Record]) -> float:
    """The next rate to try: beyond the best rate if that is the lowest or highest so far, else towards a neighbour."""
    loss: dict[float, float] = {}
    for r in trials:
        loss[r["lr"]] = min(last(r, "loss"), loss.get(r["lr"], math.inf))
    rates = sorted(loss)
    place = min(range(len(rates)), key=lambda k: loss[rates[k]])
    if place == 0:
        return rates[0] / FACTOR
    if place == len(rates) - 1:
        return rates[-1] * FACTOR
    neighbour = min(rates[place - 1], rates[place + 1], key=lambda rate: loss[rate])
    return math.sqrt(rates[place] * neighbour)


def next_trials(entrant: Entrant, records: Sequence[Record], steps: int, seeds: Sequence[int] = SEEDS) -> list[Trial]:
    """The runs that an entrant needs next, in view of its finished runs; none when it has all of them."""

    def trial(lr: float, momentum: float, seed: int = TUNING_SEED) -> Trial:
        return Trial(**asdict(entrant), lr=lr, momentum=momentum, seed=seed, steps=steps)

    done = {r["key"]: r for r in records}
    trials = [trial(lr, FIRST_MOMENTUM) for lr in RATES]
    while not (missing := [t for t in trials if t.key not in done]):
        tried = [done[t.key] for t in trials]
        best = best_trial(tried)
        if best is None:
            return []  # no rate of the grid works; the summary says so
        if len(trials) == TRIALS:
            fresh = [trial(best["lr"], best["momentum"], seed) for seed in seeds]
            return [t for t in fresh if t.key not in done]
        if len(trials) == len(RATES):
            trials += [trial(best["lr"], momentum) for momentum in OTHER_MOMENTA]
        else:
            trials.append(trial(better_rate(tried), best["momentum"]))
    return missing


# ---- the summary ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """The metric of an entrant at the end of its fresh runs."""

    values: tuple[float, ...]
    lr: float
    momentum: float
    wanted: int
    """How many fresh runs there are to be."""

    @property
    def complete(self) -> bool:
        return len(self.values) == self.wanted

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite if a run diverged, or if there is only one run."""
        finite = all(map(math.isfinite, self.values)) and len(self.values) > 1
        return statistics.stdev(self.values) / math.sqrt(len(self.values)) if finite else math.inf


def scores(records: Sequence[Record], seeds: Sequence[int] = SEEDS) -> dict[Entrant, Score]:
    """The score of every entrant that has fresh runs."""
    found = {}
    for entrant in dict.fromkeys(entrant_of(r) for r in records):
        runs = fresh_of(records, entrant, seeds)
        if runs:
            values = tuple(last(r, r["metric"]) for r in runs)
            found[entrant] = Score(values, runs[0]["lr"], runs[0]["momentum"], len(seeds))
    return found


def apart(alone: Score, whitened: Score) -> float:
    """How many standard errors of the difference the mean alone lies above the mean whitened."""
    return (alone.mean - whitened.mean) / (math.hypot(alone.error, whitened.error) or math.inf)


def table(found: dict[Entrant, Score], method: Method) -> str:
    """Markdown: each pair with its means and standard errors, the lower mean in bold."""
    lines = [
        "| problem | optimizer | alone | whitened | alone / whitened | standard errors |",
        "|---|---|---|---|---|---|",
    ]
    for problem in PROBLEMS:
        for optimizer in OPTIMIZERS:
            pair = [found.get(Entrant(problem, optimizer, *how)) for how in (ALONE, method)]
            cells = [_cell(score) for score in pair]
            ratio = distance = ""
            if all(score is not None and score.complete for score in pair):
                alone, whitened = (score.mean for score in pair if score is not None)
                winner = 1 if whitened < alone else 0
                if min(alone, whitened) < math.inf:
                    cells[winner] = f"**{cells[winner]}**"
                ratio = f"{alone / whitened:.2g}" if max(alone, whitened) < math.inf else "–"
                distance = f"{apart(*pair):+.1f}" if max(alone, whitened) < math.inf else "–"
            lines.append(f"| {TITLES[problem]} | {optimizer} | {cells[0]} | {cells[1]} | {ratio} | {distance} |")
    return "\n".join(lines)


def _cell(score: Score | None) -> str:
    if score is None:
        return "not run"
    diverged = sum(not math.isfinite(value) for value in score.values)
    text = f"{diverged} of {len(score.values)} diverged" if diverged else f"{score.mean:.2g} ± {score.error:.1g}"
    return text if score.complete else f"{text} ({len(score.values)} of {score.wanted} seeds)"


def best_table(found: dict[Entrant, Score], method: Method) -> str:
    """Markdown: on each problem, the best optimizer alone against the best whitened one."""
    lines = ["| problem | best alone | best whitened | difference in standard errors |", "|---|---|---|---|"]
    for problem in PROBLEMS:
        best = []
        for how in (ALONE, method):
            named = {o: found[e] for o in OPTIMIZERS if (e := Entrant(problem, o, *how)) in found}
            complete = {o: score for o, score in named.items() if score.complete}
            if len(complete) == len(OPTIMIZERS):
                best.append(min(complete.items(), key=lambda item: item[1].mean))
        if len(best) < 2:
            lines.append(f"| {TITLES[problem]} | incomplete | incomplete | |")
            continue
        (_, alone), (_, whitened) = best
        cells = [f"{name} {_cell(score)}" for name, score in best]
        lower = 1 if whitened.mean < alone.mean else 0
        cells[lower] = f"**{cells[lower]}**"
        lines.append(f"| {TITLES[problem]} | {cells[0]} | {cells[1]} | {apart(alone, whitened):+.1f} |")
    return "\n".join(lines)


def named(method: Method) -> str:
    """A method in words."""
    words = {
        "alone": "alone",
        "kept": "50 rows, the length of the gradient",
        "unit": "50 rows, length near one",
        "defaults": "the defaults, 20 rows",
    }
    return next(words[name] for name, known in METHODS.items() if known == method)


def choices_table(records: Sequence[Record], found: dict[Entrant, Score]) -> str:
    """Markdown: what the trials chose for each entrant, with a note where the rate is at the edge of those tried."""
    lines = ["| problem | optimizer | whitened | rate | momentum | trials | note |", "|---|---|---|---|---|---|---|"]
    for entrant, score in sorted(found.items(), key=lambda item: str(item[0])):
        trials = trials_of(records, entrant)
        rates = [r["lr"] for r in trials]
        diverged = sum(r["status"] != "done" for r in trials)
        notes = ["the lowest rate tried"] * (score.lr <= min(rates)) + ["the highest rate tried"] * (
            score.lr >= max(rates)
        )
        notes += [f"{diverged} diverged"] * bool(diverged)
        how = named((entrant.window, entrant.keep_norm, entrant.shrinkage))
        words = f"{score.lr:.2g} | {score.momentum} | {len(trials)} | {', '.join(notes)}"
        lines.append(f"| {TITLES[entrant.problem].split(',')[0]} | {entrant.optimizer} | {how} | {words} |")
    return "\n".join(lines)


def burgers_errors(records: Sequence[Record], method: Method, seeds: Sequence[int] = SEEDS) -> str:
    """Markdown: the relative error on Burgers' equation, which is not the metric of that problem."""
    lines = ["| optimizer | alone | whitened |", "|---|---|---|"]
    for optimizer in OPTIMIZERS:
        cells = []
        for how in (ALONE, method):
            runs = fresh_of(records, Entrant("pinn-burgers", optimizer, *how), seeds)
            values = tuple(last(r, "error") for r in runs)
            cells.append(_cell(Score(values, 0.0, 0.0, len(seeds)) if runs else None))
        lines.append(f"| {optimizer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def count(found: dict[Entrant, Score], method: Method) -> tuple[int, int]:
    """How many pairs whitening wins (the lower mean), and how many complete pairs there are."""
    pairs = [(found.get(Entrant(p, o, 0)), found.get(Entrant(p, o, *method))) for p in PROBLEMS for o in OPTIMIZERS]
    complete = [(a, w) for a, w in pairs if a is not None and w is not None and a.complete and w.complete]
    return sum(w.mean < a.mean for a, w in complete), len(complete)


def summary(records: Sequence[Record], method: Method, seeds: Sequence[int] = SEEDS) -> str:
    """The page of a record: the pairs, the best, the choices of the trials."""
    found = scores(records, seeds)
    wins, pairs = count(found, method)
    return "\n\n".join(
        [
            f"Whitened ({named(method)}) is lower than alone in {wins} of {pairs} pairs.",
            table(found, method),
            best_table(found, method),
            "Relative error on Burgers' equation:",
            burgers_errors(records, method, seeds),
            "What the trials chose:",
            choices_table(records, found),
        ]
    )


def draw(records: Sequence[Record], seeds: Sequence[int], path: Path) -> None:
    """Draw all methods that have fresh runs: one panel for each problem."""
    from ggt_lab.figures.side_by_side import draw_sides  # noqa: PLC0415 - needs matplotlib

    found = scores(records, seeds)
    drawn = {(entrant.window, entrant.keep_norm, entrant.shrinkage) for entrant in found}
    methods = [method for method in METHODS.values() if method in drawn]
    panels = {
        TITLES[problem]: {
            optimizer: [
                found[e].values if (e := Entrant(problem, optimizer, *method)) in found else () for method in methods
            ]
            for optimizer in OPTIMIZERS
        }
        for problem in PROBLEMS
        if any(entrant.problem == problem for entrant in found)
    }
    draw_sides(panels, [named(method) for method in methods], path)


def main() -> None:
    """Run what is missing, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=PROBLEMS)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="fresh seeds, for the reported runs")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--summary", action="store_true", help="train nothing; sum up the runs that are there")
    arguments = parser.parse_args()
    results = Results(arguments.out / "results.jsonl")
    methods = [METHODS[name] for name in arguments.methods]
    entrants = [Entrant(p, o, *method) for p in arguments.problems for o in arguments.optimizers for method in methods]
    total = len(entrants) * (TRIALS + len(arguments.seeds))

    def tell(trial: Trial, record: Record) -> None:
        done = sum(entrant_of(r) in entrants for r in results)
        final = "diverged" if record["status"] != "done" else json.dumps(record["points"][-1])
        print(f"{done}/{total} {trial}: {final}", flush=True)

    with processes(arguments.workers) as pool:
        for problem in () if arguments.summary else arguments.problems:
            those = [entrant for entrant in entrants if entrant.problem == problem]
            while trials := [t for e in those for t in next_trials(e, list(results), arguments.steps, arguments.seeds)]:
                run_all(trials, execute, results, pool, on_done=tell)
    records = list(results)
    versions = {name: version(name) for name in ("torch", "pytorch_optimizer", "numpy")}
    config = {"steps": arguments.steps, "rates": RATES, "momenta": [FIRST_MOMENTUM, *OTHER_MOMENTA]}
    config |= {"tuning_seed": TUNING_SEED, "seeds": arguments.seeds, "optimizers": OPTIMIZERS, "runs": len(records)}
    config |= {"versions": {**versions, "python": platform.python_version()}, "machine": platform.platform()}
    (arguments.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in (name for name in arguments.methods if name != "alone"):
        page = arguments.out / f"summary_{name}.md"
        page.write_text(summary(records, METHODS[name], arguments.seeds) + "\n")
        print(f"\n{page.read_text()}")
    if scores(records, arguments.seeds):
        draw(records, arguments.seeds, arguments.out / "pairs")


if __name__ == "__main__":
    main()
