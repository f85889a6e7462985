"""The names of problems, optimizers and experiments, without importing torch.

`known_names.json` holds the names, and the versions that they belong to. Where other versions are installed, the names
come from the problems, optimizers and experiments themselves, which takes seconds. After a change of any name, write
the file again:

    python -m ggt_lab.cli.known_names
"""

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

from ggt_lab.cli.versions import own_version, torch_version

__all__ = ["Names", "known_names", "live_names"]

_FILE = "known_names.json"


@dataclass(frozen=True)
class Names:
    """What a person may type."""

    problems: list[str]
    optimizers: list[str]
    experiments: dict[str, str]
    """The title of each experiment."""


def known_names() -> Names:
    """The names, from the file if it is of the installed versions."""
    content = json.loads(resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    return Names(**content["names"]) if content["versions"] == _versions() else live_names()


def live_names() -> Names:
    """The names, from the problems, optimizers and experiments themselves."""
    from ggt_lab.experiments.catalogue import experiment, experiment_names
    from ggt_lab.optimizers.specs import optimizer_names
    from ggt_lab.problems import problem_names

    titles = {name: experiment(name).title for name in experiment_names()}
    return Names(problem_names(), optimizer_names(), titles)


def _versions() -> dict[str, str]:
    """The versions on which the names depend: of this package, and the first two numbers of torch's."""
    return {"torch-ggt": own_version(), "torch": ".".join((torch_version() or "").split(".")[:2])}


if __name__ == "__main__":
    from ggt_lab.data.atomic_files import write_atomically

    written = {"versions": _versions(), "names": asdict(live_names())}
    write_atomically(Path(__file__).with_name(_FILE), json.dumps(written, indent=1, ensure_ascii=False) + "\n")
