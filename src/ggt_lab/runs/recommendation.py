"""What to use on a problem, in words: which optimizer, learning rate and window, and how sure that is."""

import math
import re
from collections.abc import Sequence

from ggt_lab.optimizers.specs import window_of
from ggt_lab.runs.results import Record
from ggt_lab.runs.standings import Standing, larger_is_better, left_out, measure, standings
from ggt_lab.runs.student import paired_lead

__all__ = ["recommendation"]


def recommendation(records: Sequence[Record], *, edges: Sequence[str] = (), fresh: bool = True) -> str:
    """What to use on this problem, and how sure that is.

    The lead over each other optimizer is a mean over seeds of paired differences: for each seed, all optimizers have
    one start and one row of batches. A lead is clear if Student's test shows it at 95 %.

    Args:
        records: the runs that decide.
        edges: the optimizers whose tuned learning rate is at the edge of its grid.
        fresh: whether the learning rates were chosen by other seeds.
    """
    ranking = standings(records)
    first, others = ranking[0], ranking[1:]
    metric = str(records[0]["metric"])
    if not math.isfinite(first.final):
        return "No recommendation: every optimizer diverged with at least one seed. Try lower learning rates."
    seeds = len(_finals(records, first))
    skipped, steps = left_out(records, first)
    because = "because the loss or its gradient was not finite"
    if skipped and skipped >= steps:
        return f"No recommendation: {first.optimizer} took no step, {because}."
    number = f"{metric} {first.final:.4g}" + (f" ± {first.spread:.2g}" if seeds > 1 else "")
    aim = ", larger is better" if larger_is_better(records) else ""
    counted = f"{seeds} {'fresh ' if fresh else ''}seed{'s' if seeds > 1 else ''}"
    sentences = [f"Recommended on this problem: {_named(first)} ({number} over {counted}{aim})."]
    if skipped:
        sentences.append(f"{skipped} of its {steps} steps were left out, {because}.")
    sentences += _sureness(records, first, others)
    sentences += _windows(ranking)
    if first.optimizer in edges:
        sentences.append(f"The rate of {first.optimizer} is at the edge of its grid: race again with --widen 3.")
    if not fresh:
        sentences.append("The learning rates were chosen by the seeds that are shown, which flatters everybody.")
    return " ".join(sentences)


def _named(standing: Standing) -> str:
    rows = window_of(standing.optimizer)
    window = f" and a window of {rows} rows" if rows is not None else ""
    return f"{standing.optimizer} with lr {standing.lr:g}{window}"


def _sureness(records: Sequence[Record], first: Standing, others: Sequence[Standing]) -> list[str]:
    """How far the others are behind, and which of them are not told apart from the first."""
    running = [other for other in others if math.isfinite(other.final)]
    said = [f"{other.optimizer} diverged with a seed." for other in others if not math.isfinite(other.final)]
    if not running:
        return said
    leads = {other.optimizer: paired_lead(_finals(records, first), _finals(records, other)) for other in running}
    mean, half = leads[running[0].optimizer]
    next_one = f"Next is {_named(running[0])}, {abs(mean):.2g} behind"
    if math.isinf(half):
        return [f"{next_one}. One seed decides nothing: race with --fresh 3 or more.", *said]
    level = [name for name, (lead, unsure) in leads.items() if abs(lead) <= unsure]
    clear = f"{next_one} (± {half:.2g}, 95 %, paired over seeds)"
    if not level:
        return [f"{clear}: the lead is clear.", *said]
    names = ", ".join(level)
    return [f"{clear}. Not told apart from the first: {names}. More seeds (--fresh) would say more.", *said]


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
