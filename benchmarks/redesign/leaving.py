"""How do processes end that split a window, save and load it, and leave their group? Exit codes of many runs."""

import collections
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import trees

RANKS = 2


def run_once(tree, seconds):
    """One run of two processes: for each rank its exit code, the last thing it did, and the end of its errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        processes = [start_rank(tree, rank, port, folder) for rank in range(RANKS)]
        return [end_of(process, deadline) for process in processes]


def start_rank(tree, rank, port, folder):
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return trees.start("leaving_script.py", tree, folder, variables={**group, "OMP_NUM_THREADS": "1"}, **pipes)


def end_of(process, deadline):
    """(exit code as text, last thing done, end of the errors) of a process, which is killed after the deadline."""
    try:
        out, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        code = describe(process.returncode)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        code = "stopped: took too long"
    return code, (out.splitlines() or ["nothing"])[-1], errors[-3000:]


def describe(code):
    return f"{code} ({signal.Signals(-code).name})" if code < 0 else str(code)


def report(ends):
    """Print how often each way to end was seen, and the errors of its first case."""
    counted = collections.Counter((rank, code, last) for rank, code, last, _ in ends)
    for (rank, code, last), number in sorted(counted.items()):
        print(f"{number:5} times  rank {rank}  exit code {code}  last done: {last}")
    shown = set()
    for rank, code, last, errors in ends:
        if code != "0" and (code, last) not in shown:
            shown.add((code, last))
            print(f"\nThe first end with exit code {code} after {last!r}, rank {rank}:\n{errors}")


def main(arguments):
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = list(pool.map(lambda _: run_once(arguments.tree, arguments.seconds), range(arguments.runs)))
    report([(rank, *end) for run in runs for rank, end in enumerate(run)])
    good = sum(all(code == "0" for code, _, _ in run) for run in runs)
    print(f"\n{good} of {len(runs)} runs ended with exit code 0 on both ranks")
    return 0 if good == len(runs) else 1
