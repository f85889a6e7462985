"""Runs each case in a process of its own: a failed capture or a lack of memory in one case cannot spoil the next.

Each finished case is a JSON file, and the same command goes on with the rest. The processes are forked from a process
that has imported torch and touched no device, which saves seconds for each case.
"""

import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch

from ggt_lab.bench.cases import KINDS, Case, cases, named
from ggt_lab.bench.cpu_step import cpu
from ggt_lab.bench.host_step import host
from ggt_lab.bench.kernel_variants import kernels, root
from ggt_lab.bench.member_step import members
from ggt_lab.bench.optimizer_step import NotInstalledError, step
from ggt_lab.bench.paper_step import paper
from ggt_lab.bench.timing import copy_bandwidth
from ggt_lab.bench.training_step import training
from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.runs.environment import environment
from ggt_lab.runs.results import Record

__all__ = ["MEASURES", "measure_case", "run_cases", "unfinished", "wanted_cases"]

MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "steps": step,
    "scopes": step,
    "baselines": step,
    "paper": paper,
    "training": training,
    "members": members,
    "root": root,
    "kernels": kernels,
    "host": host,
    "cpu": cpu,
}
"""The function that measures a case of each kind: (device, bandwidth, **options) → figures."""

LONGEST = 240.0
"""The seconds after which a case is given up and recorded as failed."""

FINISHED = ("done", "not installed")
_LOG_TAIL = 1500


def wanted_cases(
    what: Sequence[str], device: str | None, *, quick: bool, only: Sequence[str] = ()
) -> tuple[list[Case], str]:
    """The cases to measure, and the device.

    Args:
        what: kinds of cases; none: all kinds that the device can measure.
        device: "cuda" or "cpu"; None takes cuda where there is one.
        quick: only the cases with a promised figure.
        only: names of cases, in the order of measuring, in the place of kinds.

    Raises:
        ValueError: there is no such kind, case or device, or this machine cannot measure it.
    """
    gpu = torch.cuda.is_available()
    device = device or ("cuda" if gpu else "cpu")
    if device not in ("cuda", "cpu"):
        raise ValueError(f"device must be cuda or cpu, got {device!r}")
    if device == "cuda" and not gpu:
        raise ValueError("torch sees no CUDA device here; --device cpu measures the CPU's step")
    of_a_gpu = [kind for kind in KINDS if kind != "cpu"]
    if only:
        wanted = named(only)
        what = [*dict.fromkeys(case.kind for case in wanted)]
    else:
        wanted = cases(what or (of_a_gpu if device == "cuda" else ["cpu"]), quick=quick)
    too_large = [kind for kind in what if kind in of_a_gpu]
    if device == "cpu" and too_large:
        raise ValueError(f"{', '.join(too_large)} need a GPU at their sizes; without a GPU there is --what cpu")
    return wanted, device


def run_cases(
    cases: Sequence[Case],
    out: Path,
    *,
    device: str,
    seconds: float = math.inf,
    longest: float = LONGEST,
    on_done: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Measure the cases that are not finished, and write a JSON file for each.

    Args:
        cases: the cases, in the order of measuring.
        out: the folder of the JSON files; logs go to ``out/logs``.
        device: "cuda" or "cpu".
        seconds: the time for all cases; the next call measures the rest.
        longest: the seconds after which a single case is given up.
        on_done: called with each record, also with records of earlier calls.

    Returns:
        The records of all cases that are measured now, also of failed cases.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "logs").mkdir(exist_ok=True)
    end = time.monotonic() + seconds
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ggt_lab.bench.case_runner"])
    records = []
    for case in cases:
        record = _finished(out / f"{case.name}.json")
        if record is None:
            left = end - time.monotonic()
            if left <= 0:
                continue
            record = _in_a_process(context, case, out, device, limit=min(longest, left), cut_short=left < longest)
        if record is not None:
            records.append(record)
            if on_done:
                on_done(record)
    return records


def measure_case(case: Case, device: torch.device) -> Record:
    """Measure one case in this process; an error gives a record too."""
    start = time.perf_counter()
    record: Record = {"case": case.name, "kind": case.kind, "options": case.options, "device": device.type}
    record["environment"] = _environment(device)  # before the case: a device that failed cannot be asked
    try:
        torch.manual_seed(0)
        bandwidth = copy_bandwidth(device)
        record["copy_bandwidth"] = bandwidth
        record["result"] = MEASURES[case.kind](device, bandwidth, **case.options)
        record["status"] = "done"
    except NotInstalledError as error:
        record.update(status="not installed", error=str(error))
    except Exception as error:
        record.update(status="failed", error=f"{type(error).__name__}: {str(error)[:1000]}")
    record["seconds"] = time.perf_counter() - start
    return record


def _environment(device: torch.device) -> Record:
    where = environment()
    where["triton"] = _version("triton")
    if device.type == "cuda":
        where.update(cuda=torch.version.cuda, capability=list(torch.cuda.get_device_capability()))
    return where


def _version(package: str) -> str | None:
    try:
        return str(__import__(package).__version__)
    except ImportError:
        return None


def _finished(file: Path) -> Record | None:
    """The record in the file, if the case need not be measured again. A failed case is measured again."""
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("status") in FINISHED else None


def _in_a_process(
    context: ForkServerContext, case: Case, out: Path, device: str, *, limit: float, cut_short: bool
) -> Record | None:
    """Run one case; None if the time for all cases was up, not the time for this case."""
    file, log = out / f"{case.name}.json", out / "logs" / f"{case.name}.log"
    file.unlink(missing_ok=True)
    process = context.Process(target=_child, args=(case, file, log, device, sys.argv))
    start = time.perf_counter()
    process.start()
    try:
        process.join(limit)
        timed_out = process.is_alive()
    finally:
        if process.is_alive():
            process.kill()
            process.join()
    if file.exists():
        record: Record = json.loads(file.read_text())
        return record
    if timed_out and cut_short:
        return None
    words = f"not finished after {limit:.0f} s" if timed_out else f"its process ended with code {process.exitcode}"
    tail = log.read_text(errors="replace")[-_LOG_TAIL:] if log.exists() else ""
    failed: Record = {"case": case.name, "kind": case.kind, "options": case.options, "device": device}
    failed.update(status="failed", error=words, log=tail, seconds=time.perf_counter() - start)
    # Nothing here may touch the device: this process only waits for other processes.
    failed["environment"] = {"torch": torch.__version__, "command": " ".join(sys.argv[1:])}
    write_atomically(file, json.dumps(failed, indent=1))
    return failed


def _child(case: Case, file: Path, log: Path, device: str, arguments: list[str]) -> None:
    sys.argv = arguments  # a record says which command made it
    with log.open("wb") as to:
        os.dup2(to.fileno(), 1)
        os.dup2(to.fileno(), 2)
    write_atomically(file, json.dumps(measure_case(case, torch.device(device)), indent=1))
    os._exit(0)  # after a failure, a normal exit may hang in the driver


def unfinished(cases: Collection[Case], records: Sequence[Record]) -> list[Case]:
    """The cases that have no record."""
    known = {record["case"] for record in records}
    return [case for case in cases if case.name not in known]
