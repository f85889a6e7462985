"""Where a result was made: versions, machine, and the command."""

import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import torch_ggt
from ggt_lab.runs.results import Record

__all__ = ["command_line", "different_machines", "environment"]


def environment() -> Record:
    """Versions, machine, and the exact command of this process."""
    return {
        "torch_ggt": torch_ggt.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": command_line(),
    }


def command_line() -> str:
    """What was typed, so that it can be pasted."""
    module = getattr(sys.modules["__main__"], "__spec__", None)  # a script has none
    script = Path(sys.argv[0])
    if module is not None:
        program = ["python", "-m", module.name.removesuffix(".__main__")]
    else:  # also in a process that a command started: it has the command's arguments
        program = ["python", "-m", script.parent.name] if script.name == "__main__.py" else [script.name]
    return shlex.join([*(["ggt"] if program[-1] == "ggt_lab" else program), *sys.argv[1:]])


def different_machines(records: Sequence[Record]) -> list[Record]:
    """The machines on which records were made, each machine once, without the commands."""
    found: list[Record] = []
    for record in records:
        where = record.get("environment")
        machine = {key: value for key, value in where.items() if key != "command"} if isinstance(where, dict) else {}
        if machine and machine not in found:
            found.append(machine)
    return found
