"""Do two trees make the same bits? One line for each set of options."""

import sys
import tempfile
from pathlib import Path

import torch
import trees

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
EVERY = 50


def outcomes(tree, folder, name, steps):
    """What `bits_worker` found with this tree."""
    out = Path(folder) / f"{name}.pt"
    if trees.start("bits_worker.py", tree, out, steps, variables=ONE_THREAD).wait() != 0:
        sys.exit(f"the run with {tree} ended with an error")
    return torch.load(out, weights_only=True)


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


def compare(old, new):
    """All differences of two outcomes of one set of options, as lines of text."""
    errors = [f"{name} failed:\n{side['error']}" for name, side in (("old", old), ("new", new)) if "error" in side]
    return errors or parameter_differences(old, new) + state_differences(old, new)


def shortened(lines, everything):
    """The first difference and the number of the others, on one line, or each on a line of its own."""
    if everything:
        return "".join(f"\n    {line}" for line in lines)
    others = f"; and {len(lines) - 1} more differences" if len(lines) > 1 else ""
    return f": {lines[0]}{others}" if lines else ""


def main(arguments):
    with tempfile.TemporaryDirectory() as folder:
        old = outcomes(arguments.old, folder, "old", arguments.steps)
        new = outcomes(arguments.new, folder, "new", arguments.steps)
    different = 0
    for name, outcome in old.items():
        lines = compare(outcome, new[name])
        different += bool(lines)
        print(f"{'DIFFERENT' if lines else 'same bits'}  {name}{shortened(lines, arguments.all)}")
    print(f"{len(old) - different} of {len(old)} sets of options make the same bits in {arguments.steps} steps")
    return 1 if different else 0
