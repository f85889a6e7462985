"""``ggt league``."""

from dataclasses import dataclass
from pathlib import Path

from ggt_lab.cli.terminal import say

__all__ = ["LeagueCommand"]


@dataclass(frozen=True)
class LeagueCommand:
    """Play the league: tasks × optimizers, equal trials for all, then fresh seeds. Run again to go on."""

    task: tuple[str, ...] = ()
    """Tasks, by name; by default all small tasks."""
    entrant: tuple[str, ...] = ()
    """Entrants, by name; by default all."""
    smoke: bool = False
    """Tiny runs, under a minute: does it run here?"""
    jobs: int = 1
    """How many runs train at a time."""
    minutes: float | None = None
    """Begin no run after this time; the same command goes on later."""
    device: str = "cpu"
    """cpu or cuda."""
    out: Path | None = None
    """Folder of the results; out/league by default, out/league-smoke with --smoke."""

    def run(self) -> None:
        """Make the runs that are missing."""
        from ggt_lab.league.play import Field, play
        from ggt_lab.league.protocol import PROTOCOL, SMOKE

        protocol = SMOKE if self.smoke else PROTOCOL
        tasks = [protocol.task(n) for n in self.task] or [t for t in protocol.tasks if not t.deep]
        entrants = [protocol.entrant(name) for name in self.entrant] or list(protocol.entrants)
        field = Field(protocol, tuple(tasks), tuple(entrants), self.device)
        folder = self.out or Path("out/league-smoke" if self.smoke else "out/league")
        play(field, folder, jobs=self.jobs, minutes=self.minutes, on_done=lambda run, _: say(str(run)))
