r"""Rows of few bytes on deep tasks: training with each format, at the settings that the league's trials chose.

An entrant of the league is run again with other windows: its spec, its learning rate and its settings stay, and only
the number of rows and their format change. Every run of a task and a seed has the same start and the same batches.

    python benchmarks/row_formats_deep.py OUT --settings LEAGUE_RESULTS --tasks gpt-ptb lstm-ptb resnet \
        --entrants whiten-adamw whiten-muon ggt --jobs 15 --minutes 8 --device cuda --data DIR
    python benchmarks/row_formats_deep.py OUT --tasks gpt-ptb --entrants ggt --lr 1e-3 --momentum 0.9 --weight-decay 0
    python benchmarks/row_formats_deep.py OUT --table               # run nothing, print the tables
    python benchmarks/row_formats_deep.py OUT --smoke --device cpu  # six steps of tiny tasks

Where LEAGUE_RESULTS has no trials of an entrant, ``--like whiten-muon=muon`` takes the settings of another one. Runs go
seed by seed, so that an interrupted series has whole comparisons. OUT/results.jsonl gets each run as it ends, the same
command goes on with the rest, and OUT/tables.md has the tables.
"""

import argparse
import functools
import hashlib
import json
import math
import os
import re
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from ggt_lab import problems  # noqa: F401 - registers them
from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.league.cells import last
from ggt_lab.league.execution import execute
from ggt_lab.league.play import finished
from ggt_lab.league.protocol import PROTOCOL, SMOKE, LeagueRun, best_trial, trials_of
from ggt_lab.runs.process_pool import processes, run_all
from ggt_lab.runs.results import Results
from torch_ggt.formats import format_of

BASE = "float32:20"
FORMATS = (BASE, "int8:20", "int8:7", "bfloat16:20", "int4:13")
_WINDOW = re.compile(r"window=\d+(, *window_dtype=[^,)]+)?")


def with_window(entrant, window):
    """The entrant with another window: "int8:7" are seven rows of int8."""
    stored, rows = window.split(":")
    spec, changed = _WINDOW.subn(f"window={rows}, window_dtype='{stored}'", entrant.spec)
    if changed != 1:
        raise ValueError(f"the spec of {entrant.name} has no window to change: {entrant.spec}")
    return replace(entrant, name=f"{entrant.name} {window}", title=f"{entrant.title}, {window}", spec=spec)


def chosen(protocol, task, entrant, options, done):
    """(power, settings) of an entrant on a task: given by hand, or the league's best trial. None if there is none."""
    if options.lr is not None:
        given = {"momentum": options.momentum, "weight_decay": options.weight_decay}
        return 2 * math.log10(options.lr), tuple(sorted({**entrant.start, **given}.items()))
    if options.smoke and options.settings is None:
        return entrant.power, tuple(sorted(entrant.start.items()))
    source = protocol.entrant(dict(pair.split("=") for pair in options.like).get(entrant.name, entrant.name))
    for device in (options.device, "cuda", "cpu"):  # the league's trials may come from another device
        trials = trials_of(protocol, task, source, done, device)
        best = best_trial([trial for trial in trials if trial.key in done] or trials, done)
        if best is not None:
            return best.power, best.settings
    return None


def runs_of(options):
    """All runs, seed by seed, and the names of the cells for which no settings are known."""
    protocol = SMOKE if options.smoke else PROTOCOL
    done = finished(Results(options.settings / "results.jsonl")) if options.settings else {}
    runs, without = [], []
    for task_name in options.tasks:
        task = protocol.task(task_name)
        for name in options.entrants:
            entrant = protocol.entrant(name)
            found = chosen(protocol, task, entrant, options, done)
            if found is None:
                without.append(f"{name} on {task_name}")
                continue
            for window in options.formats:
                each = with_window(entrant, window)
                rules = json.dumps([task.rules(), each.rules(), protocol.common()], sort_keys=True)
                digest = hashlib.sha256(rules.encode()).hexdigest()[:12]
                steps = options.steps or task.steps
                common = {"task": task, "entrant": each, "power": found[0], "settings": found[1], "steps": steps}
                common |= {"evaluations": options.evaluations, "digest": digest, "device": options.device}
                runs += [LeagueRun(**common, seed=seed) for seed in options.seeds]
    return sorted(runs, key=lambda run: options.seeds.index(run.seed)), without


def one(run, until):
    """Execute a run. None after the time ``until``, or if it fails: a failure must not end the other runs."""
    if time.time() > until:
        return None
    try:
        return {**execute(run), "metric": run.task.metric, "window": run.entrant.name.rpartition(" ")[2]}
    except Exception as error:
        print(f"failed: {run}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return None


def bytes_of(window):
    stored, rows = window.split(":")
    return int(rows) * format_of(stored).element_bytes


def table(records):
    """Bytes for a parameter against the final loss, divided by the loss with `BASE`: Markdown."""
    lines = []
    for task in dict.fromkeys(record["task"] for record in records):
        of_task = [record for record in records if record["task"] == task]
        entrants = list(dict.fromkeys(record["entrant"].rpartition(" ")[0] for record in of_task))
        metric = of_task[0]["metric"]
        lines.append(f"\n#### {task}, {of_task[0]['steps']} steps: {metric}")
        lines.append(f"\nEach ratio is to {BASE} (± standard error, number of seeds).\n")
        heads = ["window", "bytes per parameter", *(column for name in entrants for column in (name, "ratio"))]
        lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for window in dict.fromkeys(record["window"] for record in of_task):
            cells = [window, f"{bytes_of(window):.1f}"]
            for entrant in entrants:
                ends, base = (
                    {r["seed"]: last(r, metric) for r in of_task if r["entrant"] == f"{entrant} {which}"}
                    for which in (window, BASE)
                )
                cells += [f"{statistics.fmean(ends.values()):.5g}" if ends else "–", ratio_in_words(ends, base)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio_in_words(ends, base):
    """The geometric mean of the ratios, seed by seed, and its standard error."""
    both = [seed for seed in ends if seed in base]
    if not both:
        return "–"
    if not all(math.isfinite(found[seed]) for found in (ends, base) for seed in both):
        return "diverged"
    logs = [math.log(ends[seed] / base[seed]) for seed in both]
    mean = math.exp(statistics.fmean(logs))
    if len(logs) < 2:
        return f"{mean:.4f} (1)"
    return f"{mean:.4f} ± {mean * statistics.stdev(logs) / math.sqrt(len(logs)):.4f} ({len(logs)})"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--settings", type=Path, help="a folder of league results")
    parser.add_argument("--tasks", nargs="+", default=["gpt-ptb", "lstm-ptb", "resnet"])
    parser.add_argument("--entrants", nargs="+", default=["whiten-adamw", "whiten-muon", "ggt"])
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), help="format:rows")
    parser.add_argument("--like", nargs="*", default=[], help="ENTRANT=OTHER: the settings of another entrant")
    parser.add_argument("--seeds", nargs="+", type=int, default=[30, 31, 32])
    parser.add_argument("--lr", type=float, help="in the place of the league's choice, as the next two")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--steps", type=int, help="in the place of the task's own")
    parser.add_argument("--evaluations", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run begins after this time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--smoke", action="store_true", help="tiny tasks")
    parser.add_argument("--table", action="store_true", help="print the tables and run nothing")
    options = parser.parse_args(arguments)
    until = time.time() + 60 * options.minutes
    if options.data is not None:
        os.environ["GGT_DATA"] = str(options.data)
    results = Results(options.out / "results.jsonl")
    if not options.table:
        runs, without = runs_of(options)
        print(f"{len(runs)} runs" + "".join(f"; no settings for {each}" for each in without), flush=True)

        def note(run, record):
            print(f"{run}: {last(record, run.task.metric):.5g}, {record['cost_s']:.0f} s", flush=True)

        with processes(options.jobs) as pool:
            run_all(runs, functools.partial(one, until=until), results, pool, on_done=note)
    text = table([record for record in results if "window" in record])
    if text:
        write_atomically(options.out / "tables.md", text.strip() + "\n")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
