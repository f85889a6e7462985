"""``ggt list``."""

import textwrap
from dataclasses import dataclass

from ggt_lab.cli.terminal import say

__all__ = ["ListCommand"]


@dataclass(frozen=True)
class ListCommand:
    """List the built-in problems, the optimizers that need no import path, and the experiments."""

    def run(self) -> None:
        """Print the three lists."""
        from ggt_lab.cli.known_names import known_names

        names = known_names()
        for heading, listed in (("problems", names.problems), ("optimizers", names.optimizers)):
            say(heading, style="bold")
            words = textwrap.wrap(", ".join(listed), 76, break_on_hyphens=False)
            say(textwrap.indent("\n".join(words), "  "))
        say("  LBFGS and SparseAdam of torch.optim cannot be raced.")
        say("experiments", style="bold")
        say("\n".join(f"  {name:4}{title}" for name, title in names.experiments.items()))
