"""The races of a folder: which runs may be compared, which of them tune learning rates, and which decide."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ggt_lab.runs.race_seconds import with_seconds
from ggt_lab.runs.recommendation import recommendation_of_race
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import larger_is_better

__all__ = ["Race", "split_into_races", "tuned_and_decided"]


@dataclass(frozen=True)
class Race:
    """Runs that may be compared: they have one problem, one length and one device."""

    title: str
    problem: str
    records: tuple[Record, ...]

    step_seconds: Mapping[str, float] = field(default_factory=dict)
    """The seconds of a step of each optimizer, taken in turns; empty if the curves have the clock of each run."""
    tunes: bool = False
    """These runs chose the learning rates, and others decide."""
    recommendation: str = ""
    """What to use on the problem, if these runs decide a race of ``ggt race``."""
    about: str = ""
    """What these runs are for, if others of the race are for something else."""

    @property
    def metric(self) -> str:
        """The number that decides."""
        return str(self.records[0]["metric"])

    @property
    def larger_is_better(self) -> bool:
        """Whether the metric is to be large."""
        return larger_is_better(self.records)


def split_into_races(records: Iterable[Record], step_seconds: Mapping[str, float]) -> tuple[Race, ...]:
    """One race for each problem, length, device, metric, schedule and file: only such runs can be compared."""
    kinds: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        kinds.setdefault(_kind(record), []).append(record)
    races = []
    for (problem, steps, device, metric, aim, schedule, version), runs in kinds.items():
        twins = [kind for kind in kinds if kind[0] == problem]
        versions = list(dict.fromkeys(kind[6] for kind in twins))
        # The title names only what tells this race from other races on the problem.
        details = [
            word
            for position, word in (
                (1, f"{steps} steps" if steps is not None else "full length"),
                (2, str(device)),
                (3, str(metric)),
                (4, f"{'larger' if aim else 'smaller'} is better"),
                (5, f"{schedule} schedule"),
                (6, f"version {1 + versions.index(version)} of the file"),
            )
            if len({kind[position] for kind in twins}) > 1
        ]
        timed = all(run["optimizer"] in step_seconds for run in runs)
        shown = with_seconds(runs, step_seconds) if timed else runs
        title = ", ".join([str(problem), *details])
        races.append(Race(title, str(problem), tuple(shown), step_seconds if timed else {}))
    return tuple(races)


def tuned_and_decided(
    races: Sequence[Race], fresh: Sequence[Race], *, named: bool
) -> tuple[tuple[Race, ...], tuple[Race, ...]]:
    """The races of a folder and the races of its fresh seeds, which then know what they are for and who is recommended.

    Args:
        races: the races of the folder.
        fresh: the races of the folder of fresh seeds in it.
        named: whether a recommendation names the problem.
    """
    twins = {_kind(race.records[0]): race for race in races}
    deciding = {_kind(race.records[0]): race for race in fresh}

    def words(tuning: Race, decides: Sequence[Record]) -> str:
        problem = tuning.title if named else "this problem"
        return recommendation_of_race(tuning.records, decides, step_seconds=tuning.step_seconds, problem=problem)

    def tuned(kind: tuple[Any, ...], race: Race) -> Race:
        if kind not in deciding:
            return replace(race, recommendation=words(race, ())) if race.step_seconds else race
        about = (
            "These runs chose the learning rate of each optimizer, and they decide nothing else: a rate looks better "
            "than it is with the seeds that chose it. The fresh seeds decide."
        )
        return replace(race, title=f"{race.title}: tuning of the learning rates", tunes=True, about=about)

    def decided(kind: tuple[Any, ...], race: Race) -> Race:
        if kind not in twins:
            return race
        return replace(
            race,
            title=f"{twins[kind].title}: fresh seeds, which decide",
            about="These seeds chose no learning rate: every optimizer runs at its tuned rate. They decide.",
            recommendation=words(twins[kind], race.records),
        )

    return tuple(tuned(*each) for each in twins.items()), tuple(decided(*each) for each in deciding.items())


def _kind(record: Record) -> tuple[Any, ...]:
    """What runs have in common that may be compared."""
    aim, schedule = bool(record.get("larger_is_better")), record.get("schedule") or "constant"
    steps, device = record.get("steps"), record.get("device")
    return record["problem"], steps, device, record["metric"], aim, schedule, _version(record)


def _version(record: Record) -> str:
    """The file of the problem as it was then, by a hash; empty for a built-in problem."""
    try:
        words = json.loads(record["key"])
    except (KeyError, TypeError, ValueError):  # records of other programs have other keys
        return ""
    return str(words.get("content", "")) if isinstance(words, dict) else ""
