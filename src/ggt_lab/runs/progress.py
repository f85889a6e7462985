"""How far a list of tasks is: what a progress bar is told."""

from collections.abc import Callable, Sequence

from ggt_lab.runs.process_pool import waiting
from ggt_lab.runs.results import Record, Results, Task

__all__ = ["count_tasks"]

Progress = Callable[[int, int, str], None]
"""Called with (tasks done, tasks in all, the task that was done last)."""


def count_tasks(
    tasks: Sequence[Task], results: Results, progress: Progress | None
) -> Callable[[Task, Record], None] | None:
    """A function that tells ``progress`` of each task that is done; tasks of earlier calls count as done."""
    if progress is None:
        return None
    total, done = len(tasks), len(tasks) - len(waiting(tasks, results))
    progress(done, total, "")

    def count(task: Task, _: Record) -> None:
        nonlocal done
        done += 1
        progress(done, total, str(task))

    return count
