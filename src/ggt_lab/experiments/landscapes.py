"""S1 and S2, the paper's Figure 2: five optimizers on two ill-conditioned convex landscapes.

The optimizers are SGD, and a diagonal and a full-matrix preconditioner, each with and without forgetting. They have no
momentum and no schedule, and ε = 1e-4. The paper does not name its decay. We run two decays, and the better one counts.
Learning rates are tuned for each measure by itself, on a grid of half decades. The grid is widened until its best point
lies inside, and then made finer around that point.

A logistic regression with separable labels has infimum 0 and no minimizer. SciPy gives f* of the polytope.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from ggt_lab.experiments.experiment import Settings
from ggt_lab.experiments.seed_statistics import FEWEST, gaps, is_negative, runs_of, stdev, why_open
from ggt_lab.experiments.short_experiment import ShortExperiment
from ggt_lab.experiments.verdicts import Figure, Verdict
from ggt_lab.figures.race_curves import draw_curves
from ggt_lab.runs.race import Run, execute, grid
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import Standing, around_the_best, beyond_the_edge, measure, standings
from ggt_lab.runs.student import half_interval

__all__ = ["Landscape", "steps_to"]

_DECAYS = (0.995, 0.95)
_FAMILIES = {
    "SGD": ["SGD"],
    "diagonal": ["DiagonalAdaptive"],
    "diagonal, forgetting": [f"DiagonalAdaptive(beta2={decay})" for decay in _DECAYS],
    "full": ["FullMatrixAdaptive"],
    "full, forgetting": [f"FullMatrixAdaptive(beta2={decay})" for decay in _DECAYS],
}
_FULL = "full-matrix AdaGrad"
_NAMES = {
    "SGD": "SGD",
    "diagonal": "diagonal AdaGrad",
    "diagonal, forgetting": "diagonal AdaGrad with forgetting",
    "full": _FULL,
    "full, forgetting": f"{_FULL} with forgetting",
}
_MEASURES = {
    "log_per_step": "over the run",
    "log_last_tenth": "over the last tenth of the run",
    "log_final": "at the last step",
}
_LEVELS = (0.1, 0.03)
_LARGEST_GRID = 14


class Landscape(ShortExperiment):
    """One of the two landscapes, from one or more starts.

    Args:
        name: the name of the claim.
        title: the experiment in a few words.
        problems: the names of problems that differ in their start, and the start of each in words.
        rates: the exponents of the first grid of learning rates, in half decades.
        forgetting: what the paper says of forgetting.
    """

    seeds = 20

    def __init__(self, name: str, title: str, *, problems: dict[str, str], rates: range, forgetting: str) -> None:
        self.name, self.title = name, title
        self._problems = problems
        self._rates = [float(f"{10 ** (k / 2):.6g}") for k in rates]
        self._forgetting = forgetting

    def first(self, settings: Settings) -> list[Run]:
        """Every optimizer on the first grid."""
        rates, steps = (self._rates[1:4], 20) if settings.smoke else (self._rates, None)
        specs = [spec for family in _FAMILIES.values() for spec in family]
        return [
            run
            for problem in self._problems
            for run in grid(problem, dict.fromkeys(specs, rates), range(settings.seeds), steps=steps)
        ]

    def more(self, settings: Settings, tasks: Sequence[Run], records: Sequence[Record]) -> list[Run]:
        """Rates beyond a grid whose best point is at its edge (to a limit), then finer rates around the best point."""
        if settings.smoke:
            return []
        wanted = []
        for problem in self._problems:
            mine = [run for run in tasks if run.problem == problem]
            rates = {
                spec: {run.lr for run in mine if run.optimizer == spec} for spec in {run.optimizer for run in mine}
            }
            mine_records = _on(problem, records)
            wider = [
                run
                for run in beyond_the_edge(mine, mine_records, by=list(_MEASURES))
                if len(rates[run.optimizer]) < _LARGEST_GRID
            ]
            wanted += wider or around_the_best(mine, mine_records, by=list(_MEASURES))
        return wanted

    def run(self, task: Run) -> Record:
        """One run of a race."""
        return execute(task)

    def verdicts(self, records: Sequence[Record], command: str) -> list[Verdict]:
        """Judge the orderings of the paper by paired tests over seeds, and how soon each level is reached."""
        pairs = [
            ("SGD is slower than diagonal AdaGrad", "diagonal", "SGD", "SGD is the slowest"),
            (f"diagonal AdaGrad is slower than {_FULL}", "full", "diagonal", f"{_FULL} is the fastest"),
            (f"forgetting helps {_FULL}", "full, forgetting", "full", self._forgetting),
        ]
        verdicts = []
        for problem, start in self._problems.items():
            mine = _on(problem, records)
            for by, words in _MEASURES.items():
                champions = _champions(mine, by)
                for statement, better, worse, paper in pairs:
                    differences = gaps(mine, by, champions[better], champions[worse])
                    share = sum(gap < 0 for gap in differences) / len(differences)
                    mean = statistics.fmean(differences)
                    holds = is_negative(differences)
                    verdicts.append(
                        Verdict(
                            claim=self.name,
                            statement=f"{statement} ({words}{start})",
                            paper=paper,
                            ours=(
                                f"mean log₁₀ suboptimality {_pair(champions[better], champions[worse], by)}; "
                                f"the first is lower in {share:.0%} of seeds "
                                f"(in {_share_by_instance(mine, by, better, worse):.0%} "
                                "if learning rates are tuned for each seed by itself)"
                                f"{why_open(holds, len(differences))}"
                            ),
                            spread=f"difference {mean:+.3f} ± {stdev(differences):.3f}{_interval(differences)}",
                            n=len(differences),
                            holds=holds,
                            command=command,
                        )
                    )
            verdicts += self._level_verdicts(problem, start, records, command)
            verdicts.append(self._inside_verdict(problem, start, records, command))
        return verdicts

    def _level_verdicts(self, problem: str, start: str, records: Sequence[Record], command: str) -> list[Verdict]:
        mine = _on(problem, records)
        champions = _champions(mine, "log_per_step")
        verdicts = []
        for level in _LEVELS:
            steps = {
                family: [steps_to(level, run) for run in runs_of(mine, standing)]
                for family, standing in champions.items()
            }
            cap = max(run["curve"][-1]["step"] for run in mine if run["curve"])
            means = {family: statistics.fmean(min(v, cap) for v in values) for family, values in steps.items()}
            n = len(steps["SGD"])
            reached = {family: sum(math.isfinite(value) for value in values) for family, values in steps.items()}
            decided = n >= FEWEST and 2 * reached["full"] >= n  # a mean of caps says nothing
            holds = means["SGD"] > means["diagonal"] > means["full"] if decided else None
            verdicts.append(
                Verdict(
                    claim=self.name,
                    statement=(
                        f"SGD needs more steps than diagonal AdaGrad, and diagonal AdaGrad more than {_FULL}, "
                        f"to reach {level:g} of the initial suboptimality{start}"
                    ),
                    paper="convergence rates rank in this order",
                    ours="mean steps: "
                    + "; ".join(
                        f"{_NAMES[family]} {mean:.0f} (reached in {reached[family]} of {len(steps[family])} seeds)"
                        for family, mean in means.items()
                    )
                    + why_open(holds, n),
                    spread=None,
                    n=n,
                    holds=holds,
                    command=command,
                )
            )
        return verdicts

    def _inside_verdict(self, problem: str, start: str, records: Sequence[Record], command: str) -> Verdict:
        at_edge = [
            f"{_optimizer(standing)} ({words}): lr {standing.lr:g}"
            for by, words in _MEASURES.items()
            for standing in standings(_on(problem, records), by=by)
            if standing.at_edge
        ]
        tuned = ", ".join(
            f"{_NAMES[family]} {standing.lr:g}"
            for family, standing in _champions(_on(problem, records), "log_per_step").items()
        )
        return Verdict(
            claim=self.name,
            statement=f"every best learning rate lies inside of its grid{start}",
            paper="not stated",
            ours=f"at the edge: {'; '.join(at_edge)}" if at_edge else f"all inside: {tuned}",
            spread=None,
            n=len({record["seed"] for record in records}),
            holds=not at_edge,
            command=command,
        )

    def draw(self, records: Sequence[Record], folder: Path) -> list[Figure]:
        """Draw the paper's figure: one curve for each optimizer at its tuned learning rate."""
        figures = []
        for problem, start in self._problems.items():
            mine = _on(problem, records)
            champions = {standing.optimizer: family for family, standing in _champions(mine, "log_per_step").items()}
            shown = [record for record in mine if record["optimizer"] in champions]
            files = draw_curves(
                shown, folder / problem, title=f"{self.title}{start}", by="log_per_step", names=_in_words(champions)
            )
            order = [champions[s.optimizer] for s in standings(shown, by="log_per_step")]
            alt = f"{self.title}{start}: suboptimality per step; from fastest to slowest: {'; '.join(order)}."
            figures.append(Figure(files[0], alt))
        return figures


def _interval(differences: Sequence[float]) -> str:
    """How well the mean of the differences is known, in words."""
    deviation = stdev(differences)
    if len(differences) < FEWEST or not math.isfinite(deviation):
        return ""
    return f" over seeds, its mean ± {half_interval(deviation, len(differences)):.3f} (95 %)"


def steps_to(level: float, record: Record) -> float:
    """Steps until the metric is ``level`` times its start, interpolated on a log scale; infinite if never."""
    points = [(point["step"], max(point[record["metric"]], 1e-300)) for point in record["curve"]]
    goal = level * points[0][1]
    for (left, high), (right, low) in itertools.pairwise(points):
        if low <= goal:
            share = math.log(high / goal) / math.log(high / low) if high > goal else 0.0
            return float(left + share * (right - left))
    return math.inf


def _on(problem: str, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["problem"] == problem]


def _champions(records: Sequence[Record], by: str) -> dict[str, Standing]:
    """The best optimizer of each family, at its best learning rate."""
    ordered = standings(records, by=by)
    return {
        family: next(standing for standing in ordered if standing.optimizer in specs)
        for family, specs in _FAMILIES.items()
    }


def _share_by_instance(records: Sequence[Record], by: str, better: str, worse: str) -> float:
    """The share of seeds in which ``better`` is better, if rate and decay are tuned for each seed by itself."""

    def best(family: str, seed: int) -> float:
        mine = (r for r in records if r["seed"] == seed and r["optimizer"] in _FAMILIES[family])
        return min(measure(record, by) for record in mine)

    seeds = sorted({record["seed"] for record in records})
    return sum(best(better, seed) < best(worse, seed) for seed in seeds) / len(seeds)


def _in_words(champions: dict[str, str]) -> dict[str, str]:
    """The names of the optimizers in a legend."""
    words = {"full": "full matrix", "full, forgetting": "full matrix, forgetting"}
    return {
        optimizer: words.get(family, family) + optimizer[optimizer.find("(") :].replace("(beta2=", " (β₂ = ")
        if "(" in optimizer
        else words.get(family, family)
        for optimizer, family in champions.items()
    }


def _pair(better: Standing, worse: Standing, by: str) -> str:
    return " against ".join(f"{getattr(s, by):.3f} ({_optimizer(s)}, lr {s.lr:g})" for s in (better, worse))


def _optimizer(standing: Standing) -> str:
    """The optimizer, with its decay if it forgets."""
    family = next(name for name, specs in _FAMILIES.items() if standing.optimizer in specs)
    decay = standing.optimizer.partition("beta2=")[2].rstrip(")")
    return f"{_NAMES[family.removesuffix(', forgetting')]}{f' with β₂ = {decay}' if decay else ''}"
