"""The long campaign, with counts: ``python tests/trust/campaign.py states OUT.json 2`` (or ``files``, or ``kills``).

The last number says how much is done: seeds for each member and operator, damages, or kills.
"""

import json
import platform
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, target, amount = sys.argv[1:]
    found = {"torch": torch.__version__, "python": platform.python_version()}
    found |= {"states": states, "files": files, "kills": kills}[what](int(amount))
    Path(target).write_text(json.dumps(found, indent=1) + "\n")
    print({key: value for key, value in found.items() if key != "by operator"})
