"""What the deep problems share. The problems themselves are in `image_problems` and `text_problems`.

Settings (batch, length, epochs, dropout, size of the model) are class attributes, so that a subclass is a problem with
other settings. Every problem has a tiny variant, whose name ends in ``-tiny``: its settings are those in ``tiny``, and
its data is made up on the spot.

Nothing random has a state. The order of an epoch is a function of (seed, epoch), and the noise inside the model
(dropout, shakes) is a function of (seed, step). So a run that is saved and loaded goes on as if it had not been
interrupted. No step waits for the device.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ggt_lab.problems.gradient_graph import GradientGraph
from ggt_lab.problems.registry import register

__all__ = ["DeepProblem", "derived_seed", "in_parts", "register_with_tiny"]

_ORDER, _NOISE = 1, 2
_WARM = 3  # steps before a graph is captured
_C = TypeVar("_C", bound="type[DeepProblem]")


def register_with_tiny(name: str) -> Callable[[_C], _C]:
    """Class decorator that registers a deep problem as ``name``, and its tiny variant as ``name-tiny``."""

    def add(cls: _C) -> _C:
        register(name)(cls)
        changes = {**cls.tiny, "synthetic": True, "compiled": False}  # compiling takes longer than a tiny run
        register(f"{name}-tiny")(type(f"Tiny{cls.__name__}", (cls,), changes))
        return cls

    return add


def derived_seed(seed: int, purpose: int, number: int) -> int:
    """A seed for one purpose of a run. Different purposes get streams that are independent of each other."""
    return int(np.random.SeedSequence((seed, purpose, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def in_parts(size: int, first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts of both tensors, ``size`` rows at a time."""
    return zip(torch.split(first, size), torch.split(second, size), strict=True)


def l2_penalty(parameters: Iterable[Tensor], l2: float) -> Tensor:
    """λ/2·‖w‖²."""
    return l2 / 2 * torch.stack([p.square().sum() for p in parameters]).sum()


class DeepProblem:
    """Epochs, noise that depends on the step, the running training loss, and exact resumption.

    Attributes:
        metric: the number of `evaluate` that is to be small.
        head: the name of the weight of the last layer. Muon leaves it to AdamW, and its name alone tells what it is.
        epochs: the length of a run; ``steps`` is ``epochs`` times ``steps_per_epoch``.
        batch: the number of sequences or images in a step.
        autocast: on a GPU, compute the model in bfloat16. Recurrent layers are computed in float16, for cuDNN does so
            under any autocast. Parameters and their gradients stay float32.
        gradient_scale: a power of two by which gradients are larger on their way through the model. Float16 turns
            numbers below 6e-8 into zero, and in a mean over many tokens the gradient of one token is that small.
        captured: on a GPU, let `take_gradients` make a CUDA graph of the forward and backward pass.
        compiled: on a GPU, let torch.compile fuse the small kernels of a training step; this takes about a minute once.
        l2: λ. The objective is the loss plus λ/2·‖w‖² over all parameters; reported losses are without the penalty.
        clip: `take_gradients` clips the gradient to this norm; 0 leaves it alone.
        synthetic: use made-up data in place of the real data.
        tiny: the attributes of the tiny variant that differ.
        steps_per_epoch: the number of whole batches in the data; set when the data is loaded.
        step: the number of losses that were taken.
    """

    metric: str
    head: str = "out.weight"
    epochs: int
    batch: int
    autocast: bool = False
    gradient_scale: float = 1.0
    captured: bool = False
    compiled: bool = False
    l2: float = 0.0
    clip: float = 0.0
    synthetic: bool = False
    tiny: ClassVar[Mapping[str, Any]] = {}

    model: nn.Module
    steps: int
    steps_per_epoch: int

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, torch.device(device)
        self.step = 0
        self._load()
        if self.steps_per_epoch < 1:
            raise ValueError(f"the data is less than one batch of {self.batch}; take a smaller batch or length")
        self.steps = self.epochs * self.steps_per_epoch
        torch.manual_seed(seed)
        self.model = self._make_model().to(self.device)
        if self.compiled and self.device.type == "cuda":
            # In place, so that parameters keep their names, and with the random numbers of the uncompiled model.
            self.model.compile(dynamic=False, options={"fallback_random": True})
        if self.gradient_scale != 1:
            for parameter in self.parameters():
                parameter.register_hook(lambda grad: grad / self.gradient_scale)  # type: ignore[no-untyped-call]
        self._losses = torch.zeros((), dtype=torch.float64, device=self.device)
        self._counted = 0
        self._graph: GradientGraph | None = None
        self._shapes: list[torch.Size] = []
        self._alike = 0

    def _load(self) -> None:
        """Put the data on the device, and set ``steps_per_epoch``."""
        raise NotImplementedError

    def _make_model(self) -> nn.Module:
        raise NotImplementedError

    def _start_epoch(self, generator: torch.Generator) -> None:
        """Lay out the data of an epoch; everything random from ``generator``."""
        raise NotImplementedError

    def _inputs_of(self, position: int) -> tuple[Tensor, ...]:
        """The inputs of batch ``position`` of the epoch."""
        raise NotImplementedError

    def _loss_of(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss of a batch, and the tensors from which the next batch goes on; `_carry` gets them."""
        raise NotImplementedError

    def _carry(self, carried: tuple[Tensor, ...]) -> None:
        """Keep the tensors from which the next batch goes on."""

    def _evaluate(self) -> dict[str, float]:
        raise NotImplementedError

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.model.parameters()

    def loss(self) -> Tensor:
        """The objective of the next step; its gradient is to be taken."""
        objective, loss, carried = self._forward(*self._begin_step())
        self._end_step(loss, carried)
        return objective

    def take_gradients(self) -> None:
        """Replace the gradients by those of the next step, clipped. The long runs call this in place of `loss`."""
        inputs = self._begin_step()
        if self.captured and self.device.type == "cuda" and self._graph is None and self._is_warm(inputs):
            self._graph = GradientGraph(self._forward, inputs, self.parameters())
        if self._graph is not None:
            loss, carried = self._graph.replay(inputs)
        else:
            self.model.zero_grad()
            objective, loss, carried = self._forward(*inputs)
            objective.backward()  # type: ignore[no-untyped-call]
        if self.clip:
            nn.utils.clip_grad_norm_(self.parameters(), self.clip)
        self._end_step(loss, carried)

    def _is_warm(self, inputs: tuple[Tensor, ...]) -> bool:
        """Whether a few steps with inputs of these shapes were made in this process."""
        shapes = [tensor.shape for tensor in inputs]
        self._alike = self._alike + 1 if shapes == self._shapes else 0
        self._shapes = shapes
        return self._alike >= _WARM

    def _begin_step(self) -> tuple[Tensor, ...]:
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if position == 0:
            self._start_epoch(self._order_of(epoch))
        if not self.model.training:
            self.model.train()
        torch.manual_seed(derived_seed(self.seed, _NOISE, self.step))
        return self._inputs_of(position)

    def _forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The objective, the loss to report, and the tensors from which the next step goes on."""
        with self._precision():
            loss, carried = self._loss_of(*inputs)
        objective = loss + l2_penalty(self.parameters(), self.l2) if self.l2 else loss
        if self.gradient_scale != 1:
            objective.register_hook(lambda grad: grad * self.gradient_scale)  # type: ignore[no-untyped-call]
        return objective, loss.detach(), carried

    def _end_step(self, loss: Tensor, carried: tuple[Tensor, ...]) -> None:
        self._carry(carried)
        self._losses += loss
        self._counted += 1
        self.step += 1

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        """Numbers of held-out data alone. This look changes nothing."""
        self.model.eval()
        # A look is short, and to compile the model again for it takes longer.
        with self._precision(), torch.compiler.set_stance("force_eager"):
            return self._evaluate()

    def evaluate(self) -> dict[str, float]:
        """Numbers of held-out data, and the mean training loss since the last evaluation, if there was a step."""
        numbers = self.held_out()
        if self._counted:
            numbers["train_loss"] = self._losses.item() / self._counted
        self._losses.zero_()
        self._counted = 0
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Everything that a fresh object of this class and seed needs to go on. The tensors are copies."""
        return {
            "settings": self._settings(),
            "model": {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()},
            "step": self.step,
            "losses": self._losses.clone(),
            "counted": self._counted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the point at which ``state`` was taken.

        Raises:
            ValueError: the state is from another problem, seed or setting; then nothing is changed.
        """
        theirs, ours = state["settings"], self._settings()
        differing = [
            f"{key} ({theirs.get(key)!r} there, {ours[key]!r} here)" for key in ours if theirs.get(key) != ours[key]
        ]
        if differing:
            raise ValueError(f"the saved run is another one: it differs in {', '.join(differing)}")
        self._graph, self._shapes, self._alike = None, [], 0
        self.model.load_state_dict(state["model"])
        self.step, self._counted = state["step"], state["counted"]
        self._losses.copy_(state["losses"])
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if position:  # otherwise the next step starts an epoch anyway
            self._start_epoch(self._order_of(epoch))

    def _precision(self) -> torch.autocast:
        enabled = self.autocast and self.device.type == "cuda"
        # Without the cache of casts: a graph would go on reading the casts of the step in which it was captured.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def _order_of(self, epoch: int) -> torch.Generator:
        # On the CPU, so that all devices see one order. It is copied to the device once in an epoch.
        return torch.Generator().manual_seed(derived_seed(self.seed, _ORDER, epoch))

    def _settings(self) -> dict[str, Any]:
        """The settings that a saved run and this object must share."""
        return {
            "problem": type(self).__name__,
            "seed": self.seed,
            "batch": self.batch,
            "autocast": self.autocast,
            "gradient_scale": self.gradient_scale,
            "l2": self.l2,
            "clip": self.clip,
            "steps_per_epoch": self.steps_per_epoch,
        }
