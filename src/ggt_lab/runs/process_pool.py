"""Tasks in parallel processes. Each result is written at once, and a finished task is never run again."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TypeVar

import torch

from ggt_lab.runs.environment import environment
from ggt_lab.runs.results import Record, Results, Task

__all__ = ["TaskError", "processes", "run_all", "run_as_ready", "waiting"]


_T = TypeVar("_T", bound=Task)


class TaskError(RuntimeError):
    """A process ended in the middle of a task."""


def waiting(tasks: Iterable[_T], results: Results) -> list[_T]:
    """The tasks whose results are not there yet, each once."""
    finished = results.finished()
    return list({task.key: task for task in tasks if task.key not in finished}.values())


@contextmanager
def processes(workers: int) -> Iterator[Executor]:
    """A pool of ``workers`` processes with one thread each. A process starts when there is something to do.

    The processes end with the block. They end at once at Ctrl-C, and also when this process is killed.
    """
    # Spawned, not forked: a forked process cannot use CUDA, and it inherits thread pools that do not run.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        yield pool
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back for the length of the block.

    A process that is started in the block never gets it: this process ends its workers itself, and a worker that is
    interrupted while it imports torch would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _not_an_exit(error: Exception | SystemExit, task: object) -> Exception:
    """The error of a task. A task that called ``sys.exit`` must not end this process without a word."""
    if isinstance(error, SystemExit):
        return TaskError(f"{task} ended its process with sys.exit({error.code!r})")
    return error


def _start_worker() -> None:
    torch.set_num_threads(1)  # threads that outnumber the cores wait for each other most of the time
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    # A worker whose parent was killed would wait for work for ever, with all its memory.
    threading.Thread(target=watch, daemon=True).start()


def run_all(
    tasks: Iterable[_T],
    execute: Callable[[_T], Record | None],
    results: Results,
    pool: Executor,
    *,
    on_done: Callable[[_T, Record], None] | None = None,
) -> None:
    """Run the tasks that are not finished yet, and append each record as soon as it is there; see `run_as_ready`.

    Args:
        tasks: the work.
        execute: does one task.
        results: the file of the records.
        pool: the processes, see `processes`.
        on_done: called after each task.
    """
    left = waiting(tasks, results)

    def all_at_once() -> list[_T]:
        return [left.pop(0) for _ in range(len(left))]

    run_as_ready(all_at_once, execute, results, pool, on_done=on_done)


def run_as_ready(
    ready: Callable[[], Iterable[_T]],
    execute: Callable[[_T], Record | None],
    results: Results,
    pool: Executor,
    *,
    on_done: Callable[[_T, Record], None] | None = None,
) -> None:
    """Run tasks of which some depend on the results of others, and append each record as soon as it is there.

    After an interruption, by Ctrl-C or worse, the same call goes on with the rest. If a task raises, the tasks that
    run beside it are finished and written, and then the error is raised.

    Args:
        ready: gives the tasks that can begin now, each task once. It is called at the beginning and after each task.
        execute: does one task. It must be a function of a module, so that a process can import it. It returns None
            for a task that is not finished, and then nothing is appended.
        results: the file of the records; each record gets the task's key and the environment.
        pool: the processes, see `processes`.
        on_done: called after each task.
    """
    made_in = environment()
    jobs: dict[Future[Record | None], _T] = {}
    failure: Exception | None = None

    def begin() -> None:
        with _interrupts_later():  # a submission may start a process
            jobs.update({pool.submit(execute, task): task for task in ready()})

    begin()
    while jobs:
        for job in futures.wait(jobs, return_when=futures.FIRST_COMPLETED).done:
            task = jobs.pop(job)
            if job.cancelled():
                continue
            try:
                result = job.result()
            except BrokenProcessPool as error:
                raise TaskError(
                    "a process ended in the middle of its work (killed, perhaps for want of memory: try fewer workers)."
                    f" What is finished is in {results.path}; the same command goes on from there."
                ) from error
            except (Exception, SystemExit) as error:  # it is raised below
                failure = failure or _not_an_exit(error, task)
                for other in jobs:
                    other.cancel()
                continue
            if result is None:
                continue
            record = {"key": task.key, **result, "environment": made_in}
            results.append(record)
            if on_done is not None:
                on_done(task, record)
        if failure is None:
            begin()
    if failure is not None:
        raise failure
