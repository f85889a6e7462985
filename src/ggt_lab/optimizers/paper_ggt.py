"""GGT with the defaults of the paper's family: momentum in the window, and no finish."""

from typing import Any

from torch.optim.optimizer import ParamsT

from torch_ggt import GGT

__all__ = ["PaperGGT"]


class PaperGGT(GGT):
    """GGT whose step is the paper's, up to a factor: 0.2·√d by default, so that learning rates of Adam carry over.

    Args:
        params: as in GGT.
        *args: lr, betas, eps and weight_decay, as in GGT.
        **options: as in GGT. Those that are not given are the paper's.

    Example:
        >>> import torch
        >>> PaperGGT([torch.nn.Parameter(torch.ones(2))], lr=1.0, adjust_lr_fn="original").defaults["history"]
        'momentum'
    """

    def __init__(self, params: ParamsT, *args: Any, **options: Any) -> None:  # noqa: ANN401 - see GGT
        paper: dict[str, Any] = {"history": "momentum", "finish": "none", "shrinkage": 0.0}
        if len(args) < 4:
            paper["weight_decay"] = 0.0
        super().__init__(params, *args, **{**paper, **options})
