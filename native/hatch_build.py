"""Compile passes.c into the wheel. The library belongs to a machine, and to no version of Python or torch."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The compiler may change the order of sums, and may not suppose that all numbers are finite.
FLAGS = "-O3 -fPIC -shared -fassociative-math -fno-signed-zeros -fno-trapping-math -fno-math-errno"
WIDEST = "-mprefer-vector-width=512"


class Compile(BuildHookInterface):
    """Makes passes.so beside passes.c."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel is an editable one, which has the library of the last build."""
        package = Path(self.root) / "src" / "torch_ggt_cpu"
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        platform = sysconfig.get_platform()
        flags = [*FLAGS.split(), *([WIDEST] if platform.endswith("x86_64") else [])]
        library = package / "passes.so"
        try:
            subprocess.run([*compiler, *flags, "-o", str(library), str(package / "passes.c")], check=True)
        except FileNotFoundError as error:
            raise SystemExit(f"torch-ggt-cpu needs a C compiler, and {compiler[0]!r} was not found") from error
        build_data["artifacts"].append("src/torch_ggt_cpu/passes.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"
