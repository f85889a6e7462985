"""The long campaign, with counts: ``python tests/trust/campaign.py states OUT.json 2``.

The first word says what is done, and the number says how much of it:

===========  =======================================
states       seeds for each member and operator
files        damages
kills        kills
endurance    steps of each member
adversaries  generated cases
relatives    generated cases of the relatives and of `whiten`
peers        damages of each kind, for each peer
cost         repetitions of each measurement
===========  =======================================

For a GPU there are two drivers beside it: sanitizer.py and admit_race.py.
"""

import json
import platform
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))


def states(seeds):
    from mutations import MEMBERS, OPERATORS, campaign

    counts = campaign(list(MEMBERS), list(OPERATORS), list(range(seeds)))
    total = sum(counts.values(), Counter())
    return {
        "members": list(MEMBERS),
        "operators": len(OPERATORS),
        "damaged states": sum(total.values()),
        "outcomes": dict(total),
        "by operator": {name: dict(found) for name, found in counts.items()},
    }


def files(damages):
    from damage import outcomes_of_damage

    with tempfile.TemporaryDirectory() as folder:
        found = outcomes_of_damage(Path(folder), damages)
    return {"damaged files": sum(found.values()), "outcomes": dict(found)}


def kills(number):
    from damage import outcomes_of_kills

    with tempfile.TemporaryDirectory() as folder:
        found = outcomes_of_kills(Path(folder), number)
    return {"kills": number, "outcomes": dict(found)}


def endurance(steps):
    from endurance import MEMBERS, endure

    found = {}
    for name in MEMBERS:
        found[name] = endure(name, steps)
        print(name, found[name], flush=True)  # the next member may be killed
    return found


def adversaries(number):
    from adversaries import EDITS, STREAMS, generate, violations

    kinds, worst, broken, steps = Counter(), {}, {}, 0
    for seed in range(number):
        case = generate(random.Random(seed))
        found, notes = violations(case)
        kinds[case.kind] += 1
        steps += len(case.events)
        for name, value in notes:
            worst[name] = max(value, worst.get(name, 0.0))
        if found:
            broken[seed] = found
            print(f"seed {seed}: {found}\n{case}")
    return {
        "cases": number,
        "steps": steps,
        "violations": broken,
        "kinds of gradients": {kind: kinds[kind] for kind in STREAMS},
        "options edited in mid-run": list(EDITS),
        "worst": dict(sorted(worst.items())),
    }


def relatives(number):
    import kin

    members, worst, broken, steps, compared = Counter(), {}, {}, 0, Counter()
    for seed in range(number):
        case = kin.generate(random.Random(seed))
        found, notes = kin.violations(case)
        members[case.member] += 1
        steps += len(case.events)
        for name, value in notes:
            compared[name.split(", ")[1]] += 1
            worst[name] = max(value, worst.get(name, 0.0))
        if found:
            broken[seed] = found
            print(f"seed {seed}: {found}\n{case}", flush=True)
    return {
        "cases": number,
        "steps": steps,
        "violations": broken,
        "cases of each member": dict(members),
        "steps compared": dict(compared),
        "worst": dict(sorted(worst.items())),
    }


def peers(number):
    from peers import compare, versions

    return {"versions": versions(), "damages of each kind": number, "outcomes": compare(number)}


def cost(repetitions):
    from cost import of_a_step, of_loading

    return {"a step": of_a_step(repetitions), "loading": of_loading(repetitions)}


WORK = {work.__name__: work for work in (states, files, kills, endurance, adversaries, relatives, peers, cost)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    what, target, amount = sys.argv[1:]
    found = {"torch": torch.__version__, "python": platform.python_version()}
    found |= WORK[what](int(amount))
    Path(target).write_text(json.dumps(found, indent=1) + "\n")
    print({key: value for key, value in found.items() if key != "by operator"})
