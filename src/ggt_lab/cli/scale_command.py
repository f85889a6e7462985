"""``ggt scale``."""

import json
from dataclasses import dataclass
from pathlib import Path

from ggt_lab.cli.terminal import Column, say, show_table

__all__ = ["ScaleCommand"]


@dataclass(frozen=True)
class ScaleCommand:
    """What a step costs for 7 B and 70 B parameters on 64 to 1024 GPUs: on paper and simulated, as table and figure."""

    window: int = 20
    """r, how many gradients the window holds."""
    dtype: str = "bfloat16"
    """The number type of the window: float32, bfloat16, int8 or int4."""
    out: Path = Path("out/scale")
    """Where scale.md, scale.json and the figure go."""

    def run(self) -> None:
        """Predict, write, and show."""
        from ggt_lab.data.atomic_files import write_atomically
        from ggt_lab.figures.many_gpus_figure import draw_scale
        from ggt_lab.planning.many_gpus_table import HEADINGS, cells, markdown, scale_table, title

        rows = scale_table(self.window, self.dtype)
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / "scale.json", json.dumps(rows, indent=1) + "\n")
        write_atomically(self.out / "scale.md", markdown(rows))
        files = draw_scale(rows, self.out / "scale")
        columns = [Column(heading, right=True) for heading in HEADINGS]
        show_table(title(rows), columns, list(map(cells, rows)), keys=3)  # model, GPUs and mode name a row
        say(f"Wrote {self.out / 'scale.md'}, {files[0]} and the numbers in {self.out / 'scale.json'}.")
        say("The network and the noise are assumed; one GPU was measured.")
