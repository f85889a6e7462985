"""The Trainer of Hugging Face: a callback that logs the window and puts a split window together before it is saved."""

from typing import Any

from torch_ggt.integrations.extras import check_every, need
from torch_ggt.integrations.figures import consolidate, window_owner, write

need("transformers", "4.47", "the argument optimizer_cls_and_kwargs of Trainer")

from transformers import (  # noqa: E402 - its absence is explained first
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

__all__ = ["WindowCallback"]


class WindowCallback(TrainerCallback):
    """Log the `figures` of the optimizer, and let rank 0 save the whole window where it is split over ranks.

    The Trainer calls ``state_dict()`` on rank 0 alone. A window that is split (``process_group=...``) must be put
    together by all ranks before that, and this callback does so. Without it such a run cannot be resumed.

    The figures enter ``trainer.state.log_history``, beside the loss. The Trainer calls its own reporters
    (``report_to``) before the callbacks of the user, so they do not see the figures: give a ``writer``.

    Args:
        writer: a SummaryWriter of TensorBoard, a W&B run, or None. It is used on rank 0.
        every: write to ``writer`` after each ``every``-th step.
    """

    def __init__(self, writer: Any = None, every: int = 50) -> None:  # noqa: ANN401 - see `write`
        self.writer, self.every = writer, check_every("WindowCallback", every)
        self._found: dict[str, float] = {}

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Refuse an optimizer without a window, and a way of saving that loses parts of it."""
        owner = window_owner(kwargs["optimizer"])
        if args.save_on_each_node and owner.process_group is not None:
            raise ValueError(
                "WindowCallback: save_on_each_node=True saves on several ranks, but only rank 0 can have the whole "
                "window; set it to False and let output_dir be a folder that all nodes share"
            )

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Log, and put the window together if the Trainer is about to save."""
        due = state.global_step % self.every == 0 and self.writer is not None
        if control.should_log or due:  # on every rank: a split window is looked at by all
            self._found = write(
                self.writer if due and state.is_world_process_zero else None, kwargs["optimizer"], state.global_step
            )
        self._consolidate(args, control, kwargs["optimizer"])

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Put the window together if the Trainer is about to save."""
        self._consolidate(args, control, kwargs["optimizer"])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Add the figures of this step to the history, and to what later callbacks see."""
        if self._found:
            state.log_history[-1].update(self._found)
            kwargs["logs"].update(self._found)
            self._found = {}

    @staticmethod
    def _consolidate(args: TrainingArguments, control: TrainerControl, optimizer: Any) -> None:  # noqa: ANN401
        # With save_strategy="best" the Trainer decides after an evaluation, and tells no callback before it saves.
        if control.should_save or (control.should_evaluate and args.save_strategy == "best"):
            consolidate(optimizer)
