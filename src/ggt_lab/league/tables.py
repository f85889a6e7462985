"""The league in words and tables, from its summary. Markdown and the report show the same parts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ggt_lab.experiments.verdicts import KINDS, Verdict, sentence_about

__all__ = ["CELLS", "VERDICTS", "Part", "cell_words", "page", "parts", "rival_wins"]

CELLS = ("The table", "Deep tasks", "Tasks of the paper")
"""The parts that have entrants × tasks."""
VERDICTS = "Claims of the paper"
"""The part that has the verdicts."""
_PER_STEP, _PER_SECOND = "Performance profile, per step", "Performance profile, per second"
_FIGURES = {
    CELLS[0]: ("cells.png", "Every run with a fresh seed, by task and entrant"),
    _PER_STEP: ("profiles.png", "Performance profiles per step and per second"),
}
"""The figures that `ggt league` draws beside the page, by part."""

Summary = Mapping[str, Any]
Rows = list[list[str]]


class Part(NamedTuple):
    """A heading, a paragraph and a table; the table may be empty."""

    title: str
    words: str
    columns: Sequence[str] = ()
    rows: Rows = []  # noqa: RUF012 - nobody changes it


def cell_words(cell: Mapping[str, Any]) -> str:
    """A cell of the table: the geometric mean, its interval, n, and marks."""
    if cell["status"] in ("not run", "diverged"):
        reason = f": {cell['why']}" if cell["why"] else ""
        return f"not run{reason}" if cell["status"] == "not run" else f"diverged{reason}"
    diverged = sum(value is None for value in cell["values"])
    if diverged:
        words = f"{diverged} of {cell['n']} diverged"
    else:
        digits = _digits(cell)
        words = f"{cell['mean']:.{digits}g}"
        if cell["n"] > 1:
            words += f" ({cell['low']:.{digits}g} to {cell['high']:.{digits}g})"
        words += f", n = {cell['n']}"
    return words + (" (edge)" if cell["edge"] else "") + (f" ({cell['why']})" if cell["why"] else "")


def _digits(cell: Mapping[str, Any]) -> int:
    """Two digits, or as many as tell the mean from the ends of its interval."""
    ends = [cell["mean"], cell["low"], cell["high"]]
    apart = (digits for digits in range(2, 5) if len({f"{end:.{digits}g}" for end in ends}) == len(ends))
    return 2 if cell["n"] < 2 or None in ends else next(apart, 5)


def _played(summary: Summary, kind: str) -> list[str]:
    """The tasks of a kind with at least one cell that has a result."""
    have = {cell["task"] for cell in summary["cells"] if cell["status"] in ("done", "partly", "diverged")}
    return [task["name"] for task in summary["tasks"] if task["name"] in have and _kind(task) == kind]


def _kind(task: Mapping[str, Any]) -> str:
    """The kind of a task; summaries of former days know two kinds, and do not name them."""
    return str(task.get("kind") or ("deep" if task["deep"] else "small"))


def _best(summary: Summary, task: str) -> str | None:
    """The entrant with the lowest mean on a task, among complete cells; None while cells of it are under way."""
    cells = [cell for cell in summary["cells"] if cell["task"] == task]
    under_way = (cell for cell in cells if cell["trials"] and not cell.get("over_budget"))
    if any(cell["status"] in ("not run", "partly") for cell in under_way):
        return None
    done = [cell for cell in cells if cell["status"] == "done" and cell["mean"] is not None]
    return min(done, key=lambda cell: cell["mean"])["entrant"] if done else None


def _cells(summary: Summary, kind: str = "small") -> tuple[list[str], Rows]:
    """Entrants × tasks of a kind that were played. The best of a task is marked."""
    tasks = _played(summary, kind)
    by_place = {(cell["task"], cell["entrant"]): cell for cell in summary["cells"]}
    best = {task: _best(summary, task) for task in tasks}
    rows = []
    for entrant in summary["entrants"] if tasks else ():
        if not any((task["name"], entrant["name"]) in by_place for task in summary["tasks"] if _kind(task) == kind):
            continue
        row = [entrant["title"]]
        for task in tasks:
            cell = by_place.get((task, entrant["name"]))
            words = "does not enter" if cell is None else cell_words(cell)
            row.append(f"{words} ★" if best[task] == entrant["name"] else words)
        rows.append(row)
    return (["entrant", *tasks] if tasks else []), rows


def _markdown(part: Part, figures: str) -> str:
    lines = [f"## {part.title}", "", part.words]
    if part.title in _FIGURES and part.rows:
        name, words = _FIGURES[part.title]
        lines += ["", f"![{words}]({figures}{name})"]
    if part.columns:
        lines += ["", f"| {' | '.join(part.columns)} |", f"|{'---|' * len(part.columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in part.rows]
    return "\n".join(lines)


def rival_wins(summary: Summary) -> list[tuple[str, str, str, float]]:
    """Where a rival is better than everything of ours: (task, rival, our best, our mean / its mean)."""
    found = []
    for task in summary["complete"]:
        done = [c for c in summary["cells"] if c["task"] == task and c["status"] == "done" and c["mean"] is not None]
        ours = [cell for cell in done if cell["entrant"] in summary["ours"]]
        rivals = [cell for cell in done if cell["entrant"] not in summary["ours"]]
        if ours and rivals:
            mine, other = (min(each, key=lambda cell: cell["mean"]) for each in (ours, rivals))
            if other["mean"] < mine["mean"]:
                found.append((task, other["entrant"], mine["entrant"], mine["mean"] / other["mean"]))
    return found


def _titles(summary: Summary) -> dict[str, str]:
    return {entrant["name"]: entrant["title"] for entrant in summary["entrants"]}


def _ranks(summary: Summary, key: str = "ranks") -> tuple[list[str], Rows]:
    rows = []
    for rank in summary.get(key, ()):
        behind = "–"
        if rank.get("behind"):  # not the first; summaries of former days have no such number
            behind = f"{rank['behind']:.1f} ({rank['behind_low']:.1f} to {rank['behind_high']:.1f})"
        interval = f"{rank['low']:.1f} to {rank['high']:.1f}"
        title = _titles(summary)[rank["entrant"]]
        rows.append([title, f"{rank['mean']:.1f}", interval, behind, str(rank["tasks"])])
    return ["entrant", "mean rank", "95 % over resampled tasks", "behind the first (95 %, paired)", "tasks"], rows


def _profile(summary: Summary, key: str) -> tuple[list[str], Rows]:
    if key not in summary:
        return [], []
    shown = [(number, tau) for number, tau in enumerate(summary["taus"]) if tau in (1, 2, 4, 8, 16)]
    rows = [
        [_titles(summary)[name], *(f"{100 * shares[number]:.0f} %" for number, _ in shown)]
        for name, shares in sorted(summary[key].items(), key=lambda item: [-item[1][number] for number, _ in shown])
    ]
    return ["entrant", *(f"τ = {tau:g}" for _, tau in shown)], rows


def _rivalry(summary: Summary, kind: str = "") -> tuple[list[str], Rows]:
    rivals = [summary[f"recommended{kind}"], *summary["baselines"]]
    lengths = {task["name"]: task["steps"] for task in summary["tasks"]}
    rows = []
    for each in summary[f"rivalry{kind}"]:
        steps = [
            f"{each['steps'][name]:.0f}" if each["steps"][name] is not None else f"> {lengths[each['task']]}"
            for name in rivals
        ]
        apart = "diverged" if each["apart"] is None else f"{each['apart']:+.1f}"
        rows.append([each["task"], str(each["place"]), _titles(summary)[each["best_rival"]], apart, *steps])
    heading = ["task", "place", "best rival", "standard errors above it"]
    return ([*heading, *(f"steps, {_titles(summary)[name]}" for name in rivals)] if rows else []), rows


def _pairs(summary: Summary) -> tuple[list[str], Rows]:
    rows = []
    for each in summary["pairs"]:
        factor = "–" if each["factor"] is None else f"{each['factor']:.2g}"
        apart = "–" if each["apart"] is None else f"{each['apart']:+.1f}"
        rows.append([each["task"], _titles(summary)[each["alone"]], factor, apart])
    return ["task", "optimizer", "alone / whitened", "standard errors"], rows


def _tasks(summary: Summary) -> tuple[list[str], Rows]:
    checks = {check["task"]: check for check in summary["shortness"]}
    rows = []
    for task in summary["tasks"]:
        check = checks.get(task["name"])
        words = "–" if check is None else "yes" if check["same_choice"] else f"no, {check['cost']:.3g} times the best"
        budget = f"{task['minutes']} min {'GPU' if task['deep'] else 'core'}"
        numbers = [str(task["steps"]), str(task["tuning_steps"]), task["tuned_by"]]
        spent = f"{task['spent_minutes']:g} min"
        rows.append([task["name"], task["title"], *numbers, budget, spent, words, task["reference"] or "–"])
    heading = ["task", "what is reported", "steps", "steps of a trial", "tuned by", "budget", "spent"]
    return [*heading, "short trials chose what long ones would", "reference"], rows


def _choices(summary: Summary) -> tuple[list[str], Rows]:
    rows = []
    for cell in summary["cells"]:
        if cell["trials"]:
            settings = ", ".join(
                f"{name.replace('_', ' ')} {value:g}"
                + (" (edge)" if name == "momentum" and cell.get("momentum_edge") else "")
                for name, value in cell["settings"].items()
            )
            rate = (f"{cell['lr']:.2g}" if cell["lr"] else "–") + (" (edge)" if cell["edge"] else "")
            seconds = "–" if cell["step_seconds"] is None else f"{1e3 * cell['step_seconds']:.2g} ms"
            counts = [str(cell["trials"]), str(cell["diverged_trials"]), str(cell["skipped"])]
            rows.append([cell["task"], _titles(summary)[cell["entrant"]], rate, settings, *counts, seconds])
    heading = ["task", "entrant", "rate", "settings", "trials", "diverged", "skipped steps", "time of a step"]
    return heading, rows


def _not_run(summary: Summary) -> tuple[list[str], Rows]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for cell in summary["cells"]:
        if cell["status"] in ("not run", "partly"):
            reason = cell["why"] or "no run fitted into the time"
            by_reason.setdefault((cell["task"], reason), []).append(_titles(summary)[cell["entrant"]])
    rows = [[task, ", ".join(names), reason] for (task, reason), names in by_reason.items()]
    return ["task", "entrants", "why"], rows


def _rival_words(summary: Summary) -> str:
    titles = _titles(summary)
    wins = [
        f"{task}: {titles[rival]} (our best, {titles[mine]}, has {factor:.3g} times its number)"
        for task, rival, mine, factor in rival_wins(summary)
    ]
    complete = f"{len(summary['complete'])} complete tasks"
    return f"On {len(wins)} of {complete}. {'; '.join(wins)}." if wins else f"On none of {complete}."


def _member_words(summary: Summary, kind: str = "") -> str:
    tasks = summary[f"rivalry{kind}"]
    level = sum(each["level"] for each in tasks)
    words = f"Against these rivals it is first, or within one standard error of the first, on {level} of {len(tasks)} "
    if not all("level_with_all" in each for each in tasks):
        return f"{words}tasks."
    others = [each for each in tasks if each["best_of_all"] != each["best_rival"]]
    better = [f"{_titles(summary)[each['best_of_all']]} on {each['task']}" for each in others]
    return f"{words}tasks, and against all rivals of the league on {sum(each['level_with_all'] for each in tasks)}" + (
        f" (the best rival is {', '.join(better)})." if better else "."
    )


_SPEEDUP_WORDS = (
    "We divide the steps of our member by the steps of each rival, and take the geometric mean over tasks. Below 1 our "
    "member needs fewer. Who never reaches a level counts with all steps of the run. *Steps* and *seconds* are those "
    "to the final level of the best rival: a task that our member loses counts as 1. The last two columns are mirror "
    "images: our steps to the rival's own final level, divided by all steps of its run; and the rival's steps to the "
    "final level of our member, divided by all steps of our run."
)


def _speedups(summary: Summary) -> tuple[list[str], Rows]:
    rows = []
    for kind, tasks in (("", "small"), ("_deep", "deep")):
        for rival, values in summary.get(f"speedups{kind}", {}).items():
            keys = ("steps", "seconds", "own_level", "swapped")
            numbers = ["–" if values.get(key) is None else f"{values[key]:.2f}" for key in keys]
            names = [_titles(summary)[name] for name in (summary[f"recommended{kind}"], rival)]
            rows.append([tasks, *names, *numbers])
    levels = ["our steps to the rival's level", "the rival's steps to our level"]
    return ["tasks", "our member", "rival", "steps", "seconds", *levels], rows


def _pair_counts(summary: Summary) -> tuple[list[str], Rows]:
    rows = []
    for name in dict.fromkeys(pair["alone"] for pair in summary["pairs"]):
        mine = [pair for pair in summary["pairs"] if pair["alone"] == name]
        helped = sum((pair["factor"] or 0) > 1 for pair in mine)
        apart = [pair["apart"] or 0 for pair in mine]
        counts = (len(mine), helped, sum(each > 2 for each in apart), sum(each < -2 for each in apart))
        rows.append([_titles(summary)[name], *map(str, counts)])
    heading = ["optimizer", "tasks", "whitened is lower", "by more than two standard errors", "higher by more than two"]
    return heading, rows


_CLAIM_WORDS = (
    "These tasks repeat claims of the paper whose old records have flaws: everybody is tuned alike here, on data that "
    "is not reported. Cells have the test loss; the verdicts below have the numbers of the claims."
)


def _claim_parts(summary: Summary) -> list[Part]:
    """The cells and the verdicts of the paper's tasks; no parts where none was played."""
    if not summary.get("claims"):
        return []
    verdicts = sorted((Verdict(**each) for each in summary["claims"]), key=lambda each: KINDS.index(each.kind))
    left, run = ([v for v in verdicts if v.kind == KINDS[0] and (v.n > 0) is there] for there in (False, True))
    rows = [[v.claim, v.kind, v.statement, v.word_or_not_run, v.paper, v.ours_and_spread, str(v.n)] for v in verdicts]
    return [
        Part(CELLS[2], _CLAIM_WORDS, *_cells(summary, "paper")),
        Part(
            VERDICTS,
            f"The statements of the paper come first. {sentence_about(run)} {len(left)} more were not run.",
            ["claim", "of", "statement", "verdict", "paper", "ours", "n"],
            rows,
        ),
    ]


_CELL_WORDS = (
    "A cell is the geometric mean over n fresh seeds, and in parentheses this mean divided and multiplied by the "
    "exponential of its standard error. With few seeds one standard error is weak evidence. Small is good. ★ marks "
    "the best of a task. (edge): the best learning rate is the lowest or the highest rate tried."
)


_FEW = "Few optimizers are ranked here, so that our many members do not stand between a member and a rival."


_CHOICE_WORDS = (
    "All entrants have equal numbers of trials. (edge): the lowest or the highest that its trials had. A rate at an "
    "edge is followed by the next rate, at most twice. Nobody was offered a momentum below 0.8 or above 0.98."
)


_DEEP_WORDS = (
    "Trials are shorter than reported runs here. The rate rises for 5 % of the steps and falls by a cosine. With Muon "
    "and NorMuon, AdamW has the embeddings and the last layer; with our polar finishes these have the finish adam. "
    "Ranks and profiles below are of small tasks where they do not say deep."
)


def parts(summary: Summary) -> list[Part]:
    """The whole league, the most important first."""
    titles = _titles(summary)
    rivals = ", ".join(titles[name] for name in summary["baselines"])
    solved = (
        f"The share of the tasks that an entrant solves within τ times the cost of the cheapest. A task is solved at "
        f"the level that {titles[summary['standard']]} has at its end."
    )
    seconds = (
        "As above; the cost is steps times the time of a step, and all entrants took their steps in turns."
        if summary["profile_per_second"]
        else "The times of steps were not measured (`ggt league --times`)."
    )
    not_run = _not_run(summary)
    complete = ", ".join(summary["complete"]) or "none"
    ranked = f"Complete tasks count: {complete}. Entrants that enter all of them are ranked, against each other."
    return [
        Part(CELLS[0], f"{summary['runs']} runs. {_CELL_WORDS}", *_cells(summary)),
        Part(f"{titles[summary['recommended']]} against {rivals}", _member_words(summary), *_rivalry(summary)),
        Part(CELLS[1], _DEEP_WORDS, *_cells(summary, "deep")),
        Part(
            f"{titles[summary['recommended_deep']]} against {rivals}, deep tasks",
            _member_words(summary, "_deep"),
            *_rivalry(summary, "_deep"),
        ),
        Part("Steps to the level of the best rival", _SPEEDUP_WORDS, *_speedups(summary)),
        *_claim_parts(summary),
        Part("Where a rival is better than everything of ours", _rival_words(summary)),
        Part("Mean ranks", ranked, *_ranks(summary)),
        Part("Mean ranks, our member and its rivals alone", f"Small tasks. {_FEW}", *_ranks(summary, "ranks_rivals")),
        Part("Mean ranks, deep tasks", f"Tasks on which all of them ended. {_FEW}", *_ranks(summary, "ranks_deep")),
        Part(_PER_STEP, solved, *_profile(summary, "profile_per_step")),
        Part(_PER_SECOND, seconds, *_profile(summary, "profile_per_second")),
        Part("Performance profile per step, deep tasks", solved, *_profile(summary, "profile_deep")),
        Part("Whitening in front of an optimizer, counted", "Small tasks.", *_pair_counts(summary)),
        Part("Whitening in front of an optimizer", "Small tasks.", *_pairs(summary)),
        Part("Not run", "Every cell was run." if not not_run[1] else "These cells have no result.", *not_run),
        Part("Tasks", "Steps and budgets were fixed before the first run.", *_tasks(summary)),
        Part("What the trials chose", _CHOICE_WORDS, *_choices(summary)),
    ]


def page(summary: Summary, figures: str = "") -> str:
    """The whole league as a Markdown page.

    Args:
        summary: the summary.
        figures: the folder of the figures as the page names it, with a slash at its end; empty for the page's own.
    """
    tables = [_markdown(part, figures) for part in parts(summary)]
    return "\n\n".join(["# The tables of the league", "`ggt league` wrote this page.", *tables]) + "\n"
