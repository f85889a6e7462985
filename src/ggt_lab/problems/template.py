"""A problem of your own: fill in the four methods, then ``ggt race my_problem.py``.

The lab makes one `Problem` for each run. Everything random comes from the seed, so that every optimizer meets the same
start and the same data in the same order.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional


class Problem:
    """Fit a small network to a noisy sine; replace all of it."""

    steps = 300  # how long a run is
    metric = "loss"  # which number of evaluate() decides the race
    larger_is_better = ()  # the numbers of evaluate() that are to be large, such as ("accuracy",)

    def __init__(self, seed: int, device: torch.device) -> None:
        self.batches = torch.Generator().manual_seed(seed)
        x = 6 * torch.rand(768, 1, generator=self.batches) - 3
        y = x.sin() + 0.1 * torch.randn(768, 1, generator=self.batches)
        # The last 256 points are held out: they judge, and no optimizer trains on them.
        self.x, self.y = x[:512].to(device), y[:512].to(device)
        self.held_out_x, self.held_out_y = x[512:].to(device), y[512:].to(device)
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)

    def parameters(self) -> Iterable[nn.Parameter]:
        """What is optimized."""
        return self.model.parameters()

    def loss(self) -> torch.Tensor:
        """The loss of the next batch, to be differentiated."""
        index = torch.randint(0, 512, (32,), generator=self.batches)
        return functional.mse_loss(self.model(self.x[index]), self.y[index])

    def evaluate(self) -> dict[str, float]:
        """Numbers that say how good the parameters are; called without gradients."""
        held_out = functional.mse_loss(self.model(self.held_out_x), self.held_out_y)
        train = functional.mse_loss(self.model(self.x), self.y)
        return {"loss": held_out.item(), "train_loss": train.item()}

    # A schedule of your own, instead of --schedule: the factor of the learning rate when a share of the run is done.
    # def schedule(self, progress: float) -> float:
    #     return min(1.0, progress / 0.1)  # a warm-up over the first tenth
