"""The league as one JSON object, made from the finished runs: ``league.json``. `tables` turns it into words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ggt_lab.league.cells import Cell, cell_of, shortness
from ggt_lab.league.comparisons import TAUS, against_all, by_task, pairs, profile, ranks, rivalry, speedup
from ggt_lab.league.entrants import BASELINES, OURS, RECOMMENDED, RECOMMENDED_DEEP
from ggt_lab.league.paper_claims import judged
from ggt_lab.league.play import Field, missing_packages, own_runs, protocol_of, spent_seconds
from ggt_lab.league.records import read_times
from ggt_lab.league.tasks import LeagueTask
from ggt_lab.runs.environment import different_machines
from ggt_lab.runs.results import Record

__all__ = ["STANDARD", "summarize"]

STANDARD = "adamw"
"""The entrant whose final level counts as solving a task, in the performance profiles."""
_DEEP = (RECOMMENDED_DEEP, *BASELINES, "ggt-paper")
"""Who is ranked on deep tasks; the other entrants did not play all of them."""


def summarize(field: Field, folder: Path, missing_data: Mapping[str, str] | None = None) -> Record:
    """The summary of a folder of results, for all tasks and entrants of the field's protocol.

    Every cell is in it: cells that were not run say why.

    Args:
        field: the protocol and the device. Tasks and entrants that are not in the field are in the summary, too.
        folder: the folder of `ggt_lab.league.play.play`.
        missing_data: why a task has no data, by task.
    """
    whole = Field(field.protocol, field.protocol.tasks, field.protocol.entrants, field.device)
    runs = own_runs(whole, folder)
    spent = spent_seconds(runs)
    cells = _cells(whole, runs, missing_data or {}, spent, protocol_of(folder))
    kinds = {task.name: task.kind for task in whole.tasks}
    # Other tasks have other entrants: ranks and profiles are of small tasks alone.
    small, deep = ([cell for cell in cells if kinds[cell.task] == kind] for kind in ("small", "deep"))
    times = _step_seconds(read_times(folder / "times.jsonl"))
    per_second = profile(small, STANDARD, times) if times else {}

    def against_rivals(member: str, of: Sequence[Cell]) -> list[Record]:
        found = rivalry(of, member, BASELINES)
        everybody = against_all(of, member, OURS, [each.task for each in found])
        return [
            {**asdict(one), "level": one.level, "best_of_all": all_.best_rival, "level_with_all": all_.level}
            for one, all_ in zip(found, everybody, strict=True)
        ]

    lengths = {task.name: task.steps for task in whole.tasks}

    def speedups(member: str, of: Sequence[Cell]) -> Record:
        """What `speedup` says of the member and of each rival.

        In steps and in seconds to the level of the best rival; in steps to the rival's own level; and in the rival's
        steps to the member's level.
        """
        ours = rivalry(of, member, BASELINES)
        found: Record = {}
        for rival in BASELINES:
            found[rival] = {
                "steps": speedup(ours, member, rival, lengths),
                "seconds": speedup(ours, member, rival, lengths, times),
                "own_level": speedup(rivalry(of, member, (rival,)), member, rival, lengths),
                "swapped": speedup(rivalry(of, rival, (member,)), rival, member, lengths),
            }
        return found

    verdicts = [
        verdict
        for task in whole.tasks
        for verdict in judged(_where(whole, task, runs)._replace(tasks=(task,)), runs, times)
    ]
    checks = [check for task in whole.tasks if (check := shortness(_where(whole, task, runs), task, runs)) is not None]
    summary: Record = _plain(
        {
            "protocol": field.protocol.common(),
            "device": field.device,
            "standard": STANDARD,
            "recommended": RECOMMENDED,
            "recommended_deep": RECOMMENDED_DEEP,
            "baselines": BASELINES,
            "ours": OURS,
            "tasks": [
                {**asdict(task), "kind": task.kind, "spent_minutes": round(spent[task.name] / 60, 1)}
                for task in whole.tasks
            ],
            "entrants": [asdict(entrant) for entrant in whole.entrants],
            "cells": [_cell(cell, times) for cell in cells],
            "complete": list(by_task(small)),
            "ranks": [asdict(rank) for rank in ranks(small)],
            "ranks_rivals": [asdict(rank) for rank in ranks(small, (RECOMMENDED, *BASELINES))],
            "ranks_deep": [asdict(rank) for rank in ranks(deep, _DEEP)],
            "taus": TAUS,
            "profile_per_step": profile(small, STANDARD),
            "profile_per_second": per_second,
            "profile_deep": profile(deep, STANDARD, names=_DEEP),
            "rivalry": against_rivals(RECOMMENDED, small),
            "rivalry_deep": against_rivals(RECOMMENDED_DEEP, deep),
            "speedups": speedups(RECOMMENDED, small),
            "speedups_deep": speedups(RECOMMENDED_DEEP, deep),
            "pairs": [asdict(pair) for pair in pairs(small)],
            "claims": [asdict(verdict) for verdict in verdicts],
            "shortness": [asdict(check) for check in checks],
            "runs": len(runs),
            "machines": different_machines(list(runs.values())),
        }
    )
    return summary


def _cells(
    field: Field,
    runs: Mapping[str, Record],
    missing_data: Mapping[str, str],
    spent: Mapping[str, float],
    protocol: Record | None,
) -> list[Cell]:
    """All cells; ``protocol`` is what the folder says of itself, and names what was asked for."""
    packages = missing_packages(field)
    begun = {(run["task"], run["entrant"]) for run in runs.values()}
    asked = None if protocol is None else {*protocol["tasks"], *protocol["entrants"]}
    played = {run["task"] for run in runs.values()}
    cells = []
    for task, entrant in field.cells():
        if entrant.name in packages:
            missing = f"{packages[entrant.name]} is not installed"
        elif task.name in missing_data:
            missing = "its data is missing"
        elif task.deep and task.name not in played:
            missing = f"needs a GPU for {task.minutes} minutes" + (f" and {task.data}" if task.data else "")
        elif asked is not None and (task.name, entrant.name) not in begun and not {task.name, entrant.name} <= asked:
            missing = "not asked for"
        else:
            missing = ""
        over = spent.get(task.name, 0.0) >= 60 * task.minutes
        cells.append(cell_of(_where(field, task, runs), task, entrant, runs, missing, over_budget=over))
    return cells


def _where(field: Field, task: LeagueTask, runs: Mapping[str, Record]) -> Field:
    """The field on the device on which the task was played: one folder may hold small tasks and deep ones."""
    devices = {run["device"] for run in runs.values() if run["task"] == task.name}
    return field if field.device in devices or not devices else field._replace(device=min(devices))


def _step_seconds(records: Mapping[str, Record]) -> dict[tuple[str, str], float]:
    """The seconds of a step by task and entrant; the newest record of a task counts."""
    return {
        (record["task"], name): seconds
        for record in records.values()
        for name, seconds in record["step_seconds"].items()
    }


def _cell(cell: Cell, times: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    low, high = cell.interval
    return {
        **asdict(cell),
        "settings": dict(cell.settings),
        "n": len(cell.values),
        "mean": cell.mean,
        "low": low,
        "high": high,
        "step_seconds": times.get((cell.task, cell.entrant)),
    }


def _plain(value: Any) -> Any:  # noqa: ANN401 - anything made of numbers, texts, lists and dicts
    """The value as JSON has it: null for numbers that are not finite, six digits, lists for tuples."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value
