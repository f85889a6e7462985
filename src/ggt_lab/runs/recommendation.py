"""What to use on a problem, in words: which optimizer, learning rate and window, and how sure that is."""

import math
import re
from collections.abc import Mapping, Sequence

from ggt_lab.optimizers.specs import window_of
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import Standing, larger_is_better, left_out, measure, standings
from ggt_lab.runs.student import paired_lead

__all__ = ["listed", "recommendation", "recommendation_of_race"]

_BECAUSE = "because the loss or its gradient was not finite"


def recommendation_of_race(
    tuning: Sequence[Record],
    fresh: Sequence[Record],
    *,
    step_seconds: Mapping[str, float],
    problem: str = "this problem",
) -> str:
    """What to use on this problem, by the runs of a whole race.

    Args:
        tuning: the runs that chose the learning rates.
        fresh: the runs of seeds that chose nothing; without any, the runs of the tuning decide.
        step_seconds: the seconds of a step of each optimizer, as far as they are known.
        problem: what the sentence calls the problem.
    """
    tuned = standings(tuning)
    rates = {standing.optimizer: standing.lr for standing in tuned}
    at_its_rate = (run for run in fresh or tuning if run["lr"] == rates.get(run["optimizer"]))
    runs = {(run["optimizer"], run["seed"]): run for run in at_its_rate}
    seeds = {name: {seed for optimizer, seed in runs if optimizer == name} for name in rates}
    missing = [name for name, found in seeds.items() if not found]
    if missing:
        wait = "waits for its" if len(missing) == 1 else "wait for their"
        return f"No recommendation on {problem} yet: {listed(missing)} {wait} fresh seeds. The same `ggt race` goes on."
    shared = set.intersection(*seeds.values())  # an interrupted race has seeds that not everybody has run
    if not shared:
        return f"No recommendation on {problem}: there is no seed that every optimizer has run."
    return recommendation(
        [run for (_, seed), run in runs.items() if seed in shared],
        edges=[standing.optimizer for standing in tuned if standing.at_edge],
        fresh=bool(fresh),
        step_seconds=step_seconds,
        problem=problem,
    )


def recommendation(
    records: Sequence[Record],
    *,
    edges: Sequence[str] = (),
    fresh: bool = True,
    step_seconds: Mapping[str, float] | None = None,
    problem: str = "this problem",
) -> str:
    """What to use on this problem, and how sure that is.

    The lead over each other optimizer is a mean over seeds of paired differences: for each seed, all optimizers have
    one start and one row of batches. A lead is clear if Student's test shows it at 95 %. Where a lead is not clear,
    nobody is recommended: the optimizers that are level are named, and the cheapest of them.

    Args:
        records: the runs that decide; every optimizer has the same seeds.
        edges: the optimizers whose tuned learning rate is at the edge of its grid.
        fresh: whether the learning rates were chosen by other seeds.
        step_seconds: the seconds of a step of each optimizer, as far as they are known.
        problem: what the sentence calls the problem.
    """
    ranking = standings(records)
    first, others = ranking[0], ranking[1:]
    if not math.isfinite(first.final):
        why = "every optimizer diverged with at least one seed. Try lower learning rates"
        return f"No recommendation on {problem}: {why}."
    skipped, steps = left_out(records, first)
    if skipped and skipped >= steps:
        return f"No recommendation on {problem}: {first.optimizer} took no step, {_BECAUSE}."
    running = [other for other in others if math.isfinite(other.final)]
    leads = {other.optimizer: paired_lead(_finals(records, first), _finals(records, other)) for other in running}
    level = [other for other in running if abs(leads[other.optimizer][0]) <= leads[other.optimizer][1]]
    best = [first, *level]
    if level:
        sentences = _nobody(records, best, fresh=fresh, problem=problem)
        sentences += _cheapest(records, best, step_seconds or {})
        sentences.append(f"More seeds decide: race again with --fresh {max(10, 2 * _seeds(records, first))}.")
    else:
        sentences = [f"Recommended on {problem}: {_named(first)} ({_figure(records, first, fresh=fresh)})."]
        if running:
            mean, half = leads[running[0].optimizer]
            sure = f"(± {half:.2g}, 95 %, paired over seeds): the lead is clear"
            sentences.append(f"Next is {_named(running[0])}, {abs(mean):.2g} behind {sure}.")
    behind = [other.optimizer for other in running if other not in level]
    if level and behind:
        sentences.append(f"Clearly behind: {'; '.join(behind)}.")
    sentences += [f"{other.optimizer} diverged with a seed." for other in others if other not in running]
    for skipped, steps, name in ((*left_out(records, each), each.optimizer) for each in best):
        if skipped:
            sentences.append(f"{skipped} of the {steps} steps of {name} were left out, {_BECAUSE}.")
    sentences += [] if level else _windows(ranking)
    at_edge = [each.optimizer for each in best if each.optimizer in edges]
    if at_edge:
        lie = "rate is at the edge of its grid" if len(at_edge) == 1 else "rates are at the edges of their grids"
        sentences.append(f"Race again with --widen 3, because the {lie}: {'; '.join(at_edge)}.")
    if not fresh:
        sentences.append("The learning rates were chosen by the seeds that are shown, which flatters everybody.")
    return " ".join(sentences)


def listed(words: Sequence[str]) -> str:
    """The words as a row with "and" before the last.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _named(standing: Standing) -> str:
    rows = window_of(standing.optimizer)
    window = f" and a window of {rows} rows" if rows is not None else ""
    return f"{standing.optimizer} with lr {standing.lr:g}{window}"


def _seeds(records: Sequence[Record], standing: Standing) -> int:
    return len(_finals(records, standing))


def _number(records: Sequence[Record], standing: Standing) -> str:
    spread = f" ± {standing.spread:.2g}" if _seeds(records, standing) > 1 else ""
    return f"{records[0]['metric']} {standing.final:.4g}{spread}"


def _counted(records: Sequence[Record], standing: Standing, *, fresh: bool) -> str:
    seeds = _seeds(records, standing)
    return f"{seeds} {'fresh ' if fresh else ''}seed{'s' if seeds > 1 else ''}"


def _figure(records: Sequence[Record], standing: Standing, *, fresh: bool) -> str:
    aim = ", larger is better" if larger_is_better(records) else ""
    return f"{_number(records, standing)} over {_counted(records, standing, fresh=fresh)}{aim}"


def _nobody(records: Sequence[Record], best: Sequence[Standing], *, fresh: bool, problem: str) -> list[str]:
    """That nobody is clearly first, who is first by the mean, and who is level with it."""
    first, aim = best[0], ", larger is better" if larger_is_better(records) else ""
    seeds, level = _counted(records, first, fresh=fresh), "; ".join(each.optimizer for each in best[1:])
    told = (
        "do not tell it apart (95 %, paired over seeds) from" if _seeds(records, first) > 1 else "decides nothing about"
    )
    return [
        f"No optimizer is clearly first on {problem}.",
        f"{_named(first)} has the best mean ({_number(records, first)}{aim}).",
        f"{seeds} {told}: {level}.",
    ]


def _cheapest(records: Sequence[Record], best: Sequence[Standing], step_seconds: Mapping[str, float]) -> list[str]:
    """Which of these optimizers has the smallest window, and which the shortest step, as far as they differ."""
    rows = {each.optimizer: window_of(each.optimizer) or 0 for each in best}
    fewest = min(rows.values())
    small = [each for each in best if rows[each.optimizer] == fewest] if fewest < max(rows.values()) else []
    timed = all(each.optimizer in step_seconds for each in best)
    quick = min(best, key=lambda each: step_seconds[each.optimizer]) if timed else None
    window = "the smallest window" if fewest else "no window"
    sentences = []
    if quick is not None:
        slower = sorted(step_seconds[each.optimizer] for each in best if each != quick)
        others = " to ".join(dict.fromkeys(map(_milliseconds, (slower[0], slower[-1]))))
        step = f"the shortest step, {_milliseconds(step_seconds[quick.optimizer])} (the others: {others})"
        both = f"{window} and {step}" if quick in small else step
        sentences.append(f"Of these {_named(quick)} ({_number(records, quick)}) has {both}.")
    if small and quick not in small:
        have = "has" if len(small) == 1 else "have"
        sentences.append(
            f"Of these {'; '.join(f'{_named(e)} ({_number(records, e)})' for e in small)} {have} {window}."
        )
    return sentences


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _windows(ranking: Sequence[Standing]) -> list[str]:
    """Which windows were raced, if the recommended optimizer has one."""
    rows = [window_of(each.optimizer) for each in ranking]
    if rows[0] is None:
        return []
    raced = sorted({each for each in rows if each is not None})
    if len(raced) > 1:
        return [f"Windows raced: {', '.join(map(str, raced))}."]
    wanted = f"window={50 if rows[0] != 50 else 100}"
    return [f'No other window was raced: add "{_with_window(ranking[0].optimizer, wanted)}" to compare.']


def _with_window(spec: str, window: str) -> str:
    """The optimizer with another window and all its other options."""
    changed, count = re.subn(r"\bwindow\s*=\s*\d+", window, spec)
    if count:
        return changed
    before = spec.removesuffix(")") if spec.endswith(")") else f"{spec}("
    return f"{before}{'' if before.endswith('(') else ', '}{window})"


def _finals(records: Sequence[Record], standing: Standing) -> list[float]:
    """The metric at the end of each seed, in the order of seeds."""
    mine = [r for r in records if (r["optimizer"], r["lr"]) == (standing.optimizer, standing.lr)]
    return [measure(record, "final") for record in sorted(mine, key=lambda record: int(record["seed"]))]
