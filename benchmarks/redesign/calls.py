"""How many functions of the library does one steady step enter, in which order, and how long are they?

Every code object is a function of its own: lambdas and comprehensions are, too (in Python 3.11; later versions inline
comprehensions). `calls_worker.Trace` says which frames count.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import trees

MODES = ("cpu", "ddp", "triton")


def trace(tree, mode, out):
    """Let one process, or two that form a group, write the trace of rank 0 to a file."""
    variables = {"OMP_NUM_THREADS": "1", "TORCH_GGT_COMPILE": "0", "TORCH_GGT_NATIVE": "0"}
    if mode == "triton":
        variables["TRITON_INTERPRET"] = "1"
    ranks = range(2 if mode == "ddp" else 1)
    processes = [trees.start("calls_worker.py", tree, mode, out, rank, variables=variables) for rank in ranks]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"the traced processes ended with exit codes {codes}")


def print_report(mode, found):
    print(f"The functions that one step enters, mode {mode}:\n")
    for depth, name in found["trace"]:
        print("  " * depth + name)
    print("\nTheir lines, def to end with docstring, the longest first:\n")
    for name, line, lines in sorted(found["functions"], key=lambda function: -function[2]):
        print(f"{lines:5}  {name} (line {line})")
    named = [name for _, name in found["trace"] if not name.endswith(">")]
    named_functions = [name for name, _, _ in found["functions"] if not name.endswith(">")]
    print(
        f"\n{mode}: {found['calls']} calls of {len(found['functions'])} functions in {len(found['files'])} files; "
        f"generators were resumed {found['resumed']} times, which is not counted"
    )
    print(
        f"of these, {len(named)} calls of {len(named_functions)} functions with a name: no comprehensions, no lambdas"
    )
    print(f"files: {', '.join(found['files'])}")


def main(arguments):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trace.json"
        trace(arguments.tree, arguments.mode, out)
        print_report(arguments.mode, json.loads(out.read_text()))
        if arguments.out:
            shutil.copy(out, arguments.out)
    return 0
