"""Lightning: a callback that logs the window. Training, saving and resuming need no glue."""

from typing import Any

from torch_ggt.integrations.extras import check_every, need
from torch_ggt.integrations.figures import figures, has_window

need("lightning", "2.0", "the package lightning.pytorch")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402 - its absence is explained first

__all__ = ["LogWindow"]


class LogWindow(Callback):
    """Log the `figures` of every optimizer that has a window to all loggers of the trainer.

    The names are "ggt/rows" and so on; with several such optimizers "ggt/0/rows", where 0 is the optimizer's place in
    ``trainer.optimizers``.

    Args:
        every: log each ``every``-th step of the optimizers.
    """

    def __init__(self, every: int = 50) -> None:
        self.every = check_every("LogWindow", every)
        self._seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse optimizers without a window, before training begins."""
        self._seen = trainer.global_step
        if not any(map(has_window, trainer.optimizers)):
            kinds = ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers) or "no optimizer"
            raise TypeError(
                f"LogWindow: {kinds} has no window; return torch_ggt.GGT(...) or torch_ggt.whiten(...) from "
                "configure_optimizers, or leave the callback out"
            )

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Log, if the optimizers have stepped ``every`` times since."""
        step = trainer.global_step
        if step // self.every == self._seen // self.every:
            return  # this batch was accumulated, or it is not the time
        self._seen = step
        places = [place for place, optimizer in enumerate(trainer.optimizers) if has_window(optimizer)]
        found: dict[str, float] = {}
        for place in places:  # on every rank: a split window is looked at by all
            prefix = "ggt/" if len(places) == 1 else f"ggt/{place}/"
            found |= {prefix + name: value for name, value in figures(trainer.optimizers[place]).items()}
        for logger in trainer.loggers:  # which write on rank 0 only
            logger.log_metrics(found, step)
