"""Why does GGT with one matrix not lead in the CNN's first epochs? Looks at single runs, at constant rates.

    python benchmarks/first_epochs.py OUT.jsonl "PaperGGT(window=200, adjust_lr_fn='original', scope='parameter')" 0.1
        [--warm-up 200] [--norms equal] [--small] [--device cpu] [--seed 0] [--epochs 2]

appends one line, with the mean training loss of every tenth of an epoch. Data as for ``ggt reproduce C1``. ``--small``
is a network for a CPU. ``--norms`` asks whether it matters how long the steps of the tensors are:

- "equal": every tensor's gradient is divided by a running mean of its length, before the optimizer sees it;
- "gradient": every tensor's step is stretched by that mean, over its root mean square among the tensors.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.runs.environment import environment
from ggt_lab.runs.long_run import class_with

_SMALL = (("base", 8), ("blocks", 2))
_DECAY = 0.99  # of the running means


class Norms:
    """Running means of the lengths of the tensors' gradients, and what is done with them."""

    def __init__(self, parameters: list[torch.nn.Parameter], what: str) -> None:
        self._parameters, self._what = parameters, what
        self._squares, self._steps = torch.zeros(len(parameters)), 0

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Around ``optimizer.step()``, with the gradients there."""
        lengths = self._update()
        if self._what == "equal":
            for parameter, length in zip(self._parameters, lengths, strict=True):
                assert parameter.grad is not None
                parameter.grad.div_(length + 1e-30)
        before = [parameter.detach().clone() for parameter in self._parameters] if self._what == "gradient" else []
        yield
        if self._what == "gradient":
            factors = lengths / lengths.square().mean().sqrt()
            with torch.no_grad():
                for parameter, start, factor in zip(self._parameters, before, factors, strict=True):
                    parameter.copy_(start + factor * (parameter - start))

    def _update(self) -> torch.Tensor:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        squares = torch.stack([gradient.square().sum() for gradient in gradients])
        self._squares = _DECAY * self._squares.to(squares.device) + (1 - _DECAY) * squares
        self._steps += 1
        return (self._squares / (1 - _DECAY**self._steps)).sqrt()


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("optimizer")
    parser.add_argument("lr", type=float)
    parser.add_argument("--warm-up", type=int, default=0, help="steps over which the rate rises to its full value")
    parser.add_argument("--norms", choices=("as they are", "equal", "gradient"), default="as they are")
    parser.add_argument("--problem", default="cifar10")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    problem = class_with(arguments.problem, _SMALL if arguments.small else ())(
        arguments.seed, torch.device(arguments.device)
    )
    parameters = list(problem.parameters())
    optimizer = optimizer_factory(arguments.optimizer)(parameters, arguments.lr)
    norms = Norms(parameters, arguments.norms)
    means: list[float] = []
    while problem.step < arguments.epochs * problem.steps_per_epoch:
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * min(1.0, (problem.step + 1) / max(1, arguments.warm_up))
        problem.take_gradients()
        with norms.around_step():
            optimizer.step()
        if problem.step % max(1, problem.steps_per_epoch // 10) == 0:
            means.append(round(problem.evaluate()["train_loss"], 4))
    record = {
        **{
            name: getattr(arguments, name)
            for name in ("optimizer", "lr", "warm_up", "norms", "problem", "small", "seed")
        },
        "parameters": sum(parameter.numel() for parameter in parameters),
        "train_loss_of_tenths": means,
        "environment": environment(),
    }
    with arguments.out.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
