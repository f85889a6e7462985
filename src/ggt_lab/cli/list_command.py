"""``ggt list``."""

from dataclasses import dataclass

from ggt_lab.cli.terminal import say

__all__ = ["ListCommand"]


@dataclass(frozen=True)
class ListCommand:
    """List the built-in problems, the optimizers that need no import path, and the experiments."""

    def run(self) -> None:
        """Print the three lists."""
        from ggt_lab.experiments.catalogue import experiment, experiment_names
        from ggt_lab.optimizers.specs import optimizer_names
        from ggt_lab.problems import problem_names

        say("problems:    " + ", ".join(problem_names()))
        say("optimizers:  " + ", ".join(optimizer_names()))
        titles = (f"{name} ({experiment(name).title})" for name in experiment_names())
        say("experiments: " + ", ".join(titles))
