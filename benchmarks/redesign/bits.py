"""Do two trees make the same steps? One line for each set of options.

On a CPU they must make the same bits. On a GPU they must agree to rounding: the order of sums may differ, and with it
the last digit of a number. There the figure is the largest relative difference of the parameters over all steps, for
each dtype of a parameter, and `LIMITS` says how large it may be.
"""

import json
import tempfile
import time
from pathlib import Path

import torch
import trees
from option_sets import OPTION_SETS

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
EVERY = 50
LIMITS = {"float64": 1e-9, "float32": 1e-5, "complex64": 1e-5, "bfloat16": 1e-2}
"""Of the relative difference of parameters of a dtype. A number near a border may be rounded to either side of it."""
LIMIT_OF_BFLOAT16_ROWS = 1e-3
"""At least, where rows are bfloat16: the few numbers that are rounded otherwise differ by 1/256."""


def outcomes(arguments):
    """What `bits_worker` found with each tree, {"old": {name of a set: outcome}, "new": ...}.

    All processes run at once. Each writes a file for every set, so that one that is stopped loses nothing else.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for side in ("old", "new"):
            (Path(folder) / side).mkdir()
            for part in range(arguments.processes):
                given = (Path(folder) / side, arguments.steps, arguments.device, part, arguments.processes)
                process = trees.start("bits_worker.py", getattr(arguments, side), *given, variables=ONE_THREAD)
                processes.append(process)
        end = time.monotonic() + arguments.seconds
        for process in processes:
            trees.wait_until(process, end)
        return {side: {name: _read(Path(folder) / side, name) for name in OPTION_SETS} for side in ("old", "new")}


def _read(folder, name):
    path = folder / f"{list(OPTION_SETS).index(name)}.pt"
    if not path.exists():
        return {"error": "nothing was written: the process ended before, or was stopped when time was up"}
    return torch.load(path, weights_only=True)


# ---- bits ------------------------------------------------------------------------------------------------------------


def relative(old, new):
    """The length of the difference over the length of the old values."""
    if old is None or new is None or old.shape != new.shape:
        return "no relative difference, because shapes or types differ"
    return f"relative difference {float((new - old).norm() / old.norm()):.1e}"


def parameter_differences(old, new):
    """Where the parameters part, as text; none if all digests agree."""
    parts = [step for step, pair in enumerate(zip(old["digests"], new["digests"], strict=True)) if pair[0] != pair[1]]
    if not parts:
        return []
    first, last = parts[0], len(old["digests"]) - 1
    checked = [step + 1 for step in parts if (step + 1) % EVERY == 0]
    differences = [relative(old["values"][step], new["values"][step]) for step in (first, last)]
    return [
        f"parameters part at step {first + 1} ({differences[0]}), after the last step {differences[1]}; "
        f"of every {EVERY}th step, these differ: {checked}"
    ]


def state_differences(old, new):
    """Keys that one of the two lacks, and values that differ, as text."""
    old, new = old["state"], new["state"]
    lines = [f"state of old only: {key}" for key in old if key not in new]
    lines += [f"state of new only: {key}" for key in new if key not in old]
    for key in old:
        if key in new and old[key][0] != new[key][0]:
            kinds = [str(side[key][0]).rsplit(" ", 1)[0] for side in (old, new)]
            kind = kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]} became {kinds[1]}"
            lines.append(f"state of {key} ({kind}): {relative(old[key][1], new[key][1])}")
    return lines


def errors_of(old, new):
    """The errors of both sides, as lines of text."""
    return [f"{name} failed:\n{side['error']}" for name, side in (("old", old), ("new", new)) if "error" in side]


def compare(old, new):
    """All differences of two outcomes of one set of options, as lines of text."""
    return errors_of(old, new) or parameter_differences(old, new) + state_differences(old, new)


def shortened(lines, everything):
    """The first difference and the number of the others, on one line, or each on a line of its own."""
    if everything:
        return "".join(f"\n    {line}" for line in lines)
    others = f"; and {len(lines) - 1} more differences" if len(lines) > 1 else ""
    return f": {lines[0]}{others}" if lines else ""


def report_bits(found, arguments):
    """Print one line for each set; how many sets differ."""
    different = 0
    for name in OPTION_SETS:
        lines = compare(found["old"][name], found["new"][name])
        different += bool(lines)
        print(f"{'DIFFERENT' if lines else 'same bits'}  {name}{shortened(lines, arguments.all)}")
    sets = len(OPTION_SETS)
    print(f"{sets - different} of {sets} sets of options make the same bits in {arguments.steps} steps")
    return different


# ---- rounding --------------------------------------------------------------------------------------------------------


def rounding(case, old, new):
    """The figures of one set of options: {dtype of parameters: largest relative difference, its step, the limit}."""
    errors = errors_of(old, new)
    if errors:
        return {"verdict": "FAILED", "errors": errors}
    rows_are_bfloat16 = case.options.get("window_dtype") == torch.bfloat16
    figures, columns = {}, torch.tensor(_column_dtypes(old))
    for number, dtype in enumerate(LIMITS):
        chosen = columns == number
        if not bool(chosen.any()):
            continue
        ours, theirs = new["values"][:, chosen], old["values"][:, chosen]
        differences = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
        figures[dtype] = {
            "largest": float(differences.max()),
            "at_step": int(differences.argmax()) + 1,
            "after_the_last_step": float(differences[-1]),
            "limit": max(LIMITS[dtype], LIMIT_OF_BFLOAT16_ROWS * rows_are_bfloat16),
        }
    fine = all(figure["largest"] <= figure["limit"] for figure in figures.values())  # NaN is not
    verdict = "agree" if fine else "CHANGED ON PURPOSE" if case.changed else "TOO LARGE"
    same = old["digests"] == new["digests"]
    return {"verdict": verdict, "same_bits": same, "finite": bool(new["values"].isfinite().all()), "dtypes": figures}


def _column_dtypes(outcome):
    """For each column of ``values`` the place of its parameter's dtype in `LIMITS`."""
    names = list(LIMITS)
    return [names.index(dtype) for dtype, count in outcome["columns"] for _ in range(count)]


def report_rounding(found, arguments):
    """Print one line for each set and write the figures; how many sets differ by more than rounding."""
    rows = {name: rounding(case, found["old"][name], found["new"][name]) for name, case in OPTION_SETS.items()}
    report = {"environment": trees.about(arguments, "bits"), "steps": arguments.steps, "limits": LIMITS, "sets": rows}
    if arguments.out:
        Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")
    print(f"{'set of options':62} {'verdict':18} largest relative difference (limit), for each dtype of parameters")
    for name, row in rows.items():
        if "errors" in row:
            last_lines = "; ".join(error.strip().splitlines()[-1][:160] for error in row["errors"])
            print(f"{name:62} {row['verdict']:18} {last_lines}")
            continue
        figures = ", ".join(f"{d} {f['largest']:.1e} ({f['limit']:.0e})" for d, f in row["dtypes"].items())
        print(f"{name:62} {row['verdict']:18} {'the same bits' if row['same_bits'] else figures}")
    bad = sum(row["verdict"] in ("FAILED", "TOO LARGE") for row in rows.values())
    same = sum(row.get("same_bits", False) for row in rows.values())
    agree = sum(row["verdict"] == "agree" for row in rows.values())
    print(
        f"{agree} of {len(rows)} sets of options agree to rounding in {arguments.steps} steps, "
        f"{same} of them bit by bit; {bad} failed or differ too much"
    )
    return bad


def main(arguments):
    found = outcomes(arguments)
    to_rounding = arguments.rounding or arguments.device == "cuda"
    bad = report_rounding(found, arguments) if to_rounding else report_bits(found, arguments)
    return 1 if bad else 0
