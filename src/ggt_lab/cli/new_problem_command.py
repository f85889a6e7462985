"""``ggt new-problem``."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ggt_lab.cli.options import Positional
from ggt_lab.cli.terminal import say

__all__ = ["NewProblemCommand"]


@dataclass(frozen=True)
class NewProblemCommand:
    """Write a template for a problem of your own."""

    path: Positional[Path] = Path("my_problem.py")
    """The file to write, whose name ends in .py; an existing file is left alone."""

    def run(self) -> None:
        """Copy the template."""
        path = self.path if self.path.suffix == ".py" else Path(f"{self.path}.py")
        if path.exists():
            raise ValueError(f"{path} exists already; choose another name")
        template = resources.files("ggt_lab").joinpath("problems", "template.py")
        path.write_text(template.read_text(encoding="utf-8"))
        say(f"Wrote {path}. Try it: ggt race {path}")
