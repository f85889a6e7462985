"""A report in a few sentences, computed from its results: what was raced, who won, which claims hold."""

import math
from collections.abc import Sequence

from ggt_lab.experiments.seed_statistics import FEWEST, lacks_seeds
from ggt_lab.experiments.verdicts import count, sentence_about
from ggt_lab.report.collection import Collection
from ggt_lab.report.races import Race
from ggt_lab.runs.recommendation import listed
from ggt_lab.runs.standings import Standing, left_out, standings, steps_left_out

__all__ = ["number", "seeds", "summary", "winner"]


def number(value: float) -> str:
    """Four digits, as in the table of ``ggt race``. A number that is not finite comes from a run that diverged."""
    return f"{value:.4g}" if math.isfinite(value) else "diverged"


def summary(collection: Collection) -> list[str]:
    """The report in a few sentences: what is recommended, what was raced, who won, which claims hold."""
    races = [race for section in collection.sections for race in section.races]
    verdicts = [verdict for section in collection.sections for verdict in section.verdicts]
    spectra = sum(len(section.spectra) for section in collection.sections)
    sentences = [race.recommendation for race in races if race.recommendation]
    if races:
        best = [winner(race) for race in races if not race.recommendation and not race.tunes]
        sentences += [_raced(races), *best, *_edges(races)]
    if verdicts:
        sentences.append(sentence_about(verdicts))
        few = sum(map(lacks_seeds, verdicts))
        if few:
            what = "claim is" if few == 1 else "claims are"
            sentences.append(f"{few} {what} undecided because of fewer than {FEWEST} seeds, which never decide.")
    if spectra:
        sentences.append(f"{count(spectra, 'spectrum was', 'spectra were')} recorded during training.")
    return sentences


def winner(race: Race) -> str:
    """Who ends best on one problem, and whether the lead may be luck.

    A lead is clear if it is larger than the spread (standard deviation over seeds) of the first and of the second.
    """
    ranking = standings(race.records)
    first = ranking[0]
    if not math.isfinite(first.final):
        return f"On {race.title} every optimizer diverged."
    skipped, steps = left_out(race.records, first)
    if skipped and skipped >= steps:
        return f"On {race.title} no step was taken."
    words = f"Best at the end on {race.title}: {first.optimizer} with {race.metric} {_measured(first, race)}"
    if race.larger_is_better:
        words += " (larger is better)"
    if len(ranking) > 1 and math.isfinite(ranking[1].final):
        second = ranking[1]
        words += f", before {second.optimizer} with {_measured(second, race)}"
        if seeds(race, first) < 2:
            words += " (one seed only)"
        elif abs(second.final - first.final) <= max(first.spread, second.spread):
            words += " (a lead within the spread of the seeds)"
    return f"{words}."


def _measured(standing: Standing, race: Race) -> str:
    # No-break spaces: a number and its spread stay on one line.
    spread = f"\u00a0±\u00a0{standing.spread:.2g}" if seeds(race, standing) > 1 else ""
    return f"{number(standing.final)}{spread}"


def seeds(race: Race, standing: Standing) -> int:
    """The number of seeds in the mean of a standing."""
    return sum((run["optimizer"], run["lr"]) == (standing.optimizer, standing.lr) for run in race.records)


def _raced(races: Sequence[Race]) -> str:
    runs = [run for race in races for run in race.records]
    optimizers = list(dict.fromkeys(str(run["optimizer"]) for run in runs))
    problems = list(dict.fromkeys(race.problem for race in races))
    diverged = sum(run["status"] != "done" for run in runs)
    field = listed(optimizers) if len(optimizers) <= 4 else count(len(optimizers), "optimizer")
    where = listed(problems) if len(problems) <= 4 else count(len(problems), "problem")
    skipped = sum(map(steps_left_out, runs))
    words = f"{field} raced on {where}: {count(len(runs), 'run')}, {diverged or 'none'} of which diverged."
    because = "because the loss or its gradient was not finite"
    return f"{words} {count(skipped, 'step was', 'steps were')} left out, {because}." if skipped else words


def _edges(races: Sequence[Race]) -> list[str]:
    tuned = [each for race in races if race.tunes or not race.about for each in standings(race.records)]
    edges = sum(standing.at_edge for standing in tuned)
    if not edges:
        return []
    lie = "lies at the edge of its grid" if edges == 1 else "lie at the edge of their grid"
    return [f"{edges} of {count(len(tuned), 'tuned learning rate')} {lie}: a wider grid may do better."]
