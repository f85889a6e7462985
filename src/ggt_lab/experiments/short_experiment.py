"""What experiments of short tasks share: keys of tasks, and tasks that need no settings."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ggt_lab.experiments.experiment import Settings
from ggt_lab.runs.results import Record, Task

__all__ = ["ShortExperiment", "ShortTask"]


@dataclass(frozen=True)
class ShortTask:
    """A task that takes seconds on a CPU. Its fields are its key: a kind of tasks adds its own fields."""

    kind: ClassVar[str]
    """What tells the keys of one kind of tasks from the keys of other kinds."""

    @property
    def key(self) -> str:
        """The task in words that do not change."""
        return json.dumps([self.kind, asdict(self)], sort_keys=True)


class ShortExperiment:
    """An experiment whose tasks need no settings. It has no tasks after the first ones, unless it says so."""

    def run(self, task: Any) -> Record:  # noqa: ANN401 - each experiment has tasks of its own kind
        """Do one task."""
        raise NotImplementedError

    def execute(self, task: Any, settings: Settings) -> Record:  # noqa: ANN401
        """Do one task, in a process of its own."""
        del settings
        return self.run(task)

    def more(self, settings: Settings, tasks: Sequence[Any], records: Sequence[Record]) -> Sequence[Task]:
        """No further tasks."""
        del settings, tasks, records
        return []
