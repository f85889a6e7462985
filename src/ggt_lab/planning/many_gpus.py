"""What a step of GGT costs on many GPUs, on paper and by simulation: 7 B and 70 B parameters on 64 to 1024 of them.

On paper: `ggt_lab.planning.step_plan` gives the time for the columns of one GPU, with constants measured on one GPU.
The network between the GPUs is assumed, not measured (`Network`). Columns are counted from the shapes of the model, and
parts of unequal size and alignment are taken into account.

By simulation: every rank takes a little longer than planned and is interrupted now and then (`Noise`), and an
all-reduce waits for the last rank. The simulation follows the messages through the tree one by one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ggt_lab.planning.calibration import Calibration
from ggt_lab.planning.step_plan import Plan, make_plan
from torch_ggt.layout import ALIGNMENT

__all__ = [
    "GPUS",
    "MODELS",
    "Network",
    "Noise",
    "Scaled",
    "all_reduce_s",
    "columns_of_a_rank",
    "largest",
    "scale_step",
    "simulate",
    "training_step_s",
]

Shape = tuple[int, ...]
Times = np.ndarray[tuple[int, int], np.dtype[np.float64]]

GPUS = (64, 128, 256, 512, 1024)


def _transformer(width: int, layers: int, inner: int, key_width: int, vocabulary: int = 32_000) -> list[Shape]:
    """The shapes of a transformer with gated perceptrons and grouped keys, as in the Llama 2 models."""
    layer: list[Shape] = [(width, width), (key_width, width), (key_width, width), (width, width)]
    layer += [(inner, width), (inner, width), (width, inner), (width,), (width,)]
    return [(vocabulary, width), *layers * layer, (width,), (vocabulary, width)]


MODELS: dict[str, list[Shape]] = {
    "7B": _transformer(4096, 32, 11_008, 4096),
    "70B": _transformer(8192, 80, 28_672, 1024),
}
"""The shapes of two models, with 6.74 B and 69.0 B parameters."""


@dataclass(frozen=True)
class Network:
    """Assumed, not measured: 8 GPUs to a node with NVLink, 400 Gb/s InfiniBand for each GPU between nodes.

    Attributes:
        node: the number of GPUs in a node.
        near_s: seconds of one message within a node.
        far_s: seconds of one message between nodes.
        near_bandwidth: bytes per second and GPU within a node.
        far_bandwidth: bytes per second and GPU between nodes.
        launch_s: seconds to start a collective.
    """

    node: int = 8
    near_s: float = 2e-6
    far_s: float = 6e-6
    near_bandwidth: float = 400e9
    far_bandwidth: float = 50e9
    launch_s: float = 1.5e-5

    def hops(self, gpus: int) -> list[tuple[float, float]]:
        """(latency, bandwidth) of each level of a binary tree over the GPUs, the lowest level first."""
        near = math.ceil(math.log2(min(gpus, self.node)))
        far = math.ceil(math.log2(max(1, gpus / self.node)))
        return [(self.near_s, self.near_bandwidth)] * near + [(self.far_s, self.far_bandwidth)] * far


@dataclass(frozen=True)
class Noise:
    """Assumed: how ranks differ from the plan.

    Attributes:
        spread: the relative standard deviation of the time of a pass.
        pause_s: seconds of an interruption.
        pauses: how often an interruption hits a rank in half a step.
    """

    spread: float = 0.02
    pause_s: float = 1e-3
    pauses: float = 1e-5


@dataclass(frozen=True)
class Scaled:
    """One step on many GPUs.

    Attributes:
        model: the name of the model.
        parameters: d.
        gpus: N.
        shards: the number of GPUs over which a parameter is split; the others hold replicas.
        plan: what one GPU does.
        simulated_s: median and 99th percentile of the seconds of a step with noise, without the all-gather.
        reduce_s: seconds of the all-reduce of a Gram row over all ranks.
        gather_s: seconds of the all-gather of the updated parameters, if every rank holds the whole model.
    """

    model: str
    parameters: int
    gpus: int
    shards: int
    plan: Plan
    simulated_s: tuple[float, float]
    reduce_s: float
    gather_s: float

    @property
    def local_s(self) -> float:
        """Seconds of what a GPU does by itself."""
        return self.plan.device_s - self.plan.collectives_s

    @property
    def step_s(self) -> float:
        """Seconds of a step on paper: all parts one after the other."""
        return self.local_s + self.reduce_s + self.gather_s

    @property
    def waiting_s(self) -> float:
        """Seconds that noise adds in the median."""
        return max(0.0, self.simulated_s[0] - self.local_s - self.reduce_s)


def columns_of_a_rank(shapes: Sequence[Shape], shards: int) -> int:
    """The columns of the window on the rank that has most. FSDP2 cuts a tensor along its first dimension.

    Example:
        >>> columns_of_a_rank([(100, 64), (10,)], 4)
        1664
    """
    parts = (-(-shape[0] // shards) * math.prod(shape[1:]) for shape in shapes)
    return sum(-(-part // ALIGNMENT) * ALIGNMENT for part in parts)


def all_reduce_s(count: int, gpus: int, network: Network) -> float:
    """Seconds of an all-reduce of ``count`` float64 numbers: up a binary tree and down again.

    Example:
        >>> round(1e6 * all_reduce_s(22, 64, Network()), 1)
        63.0
    """
    if gpus == 1:
        return 0.0
    return network.launch_s + 2 * sum(latency + 8 * count / speed for latency, speed in network.hops(gpus))


def scale_step(
    model: str,
    gpus: int,
    *,
    window: int,
    calibration: Calibration,
    dtype: str = "bfloat16",
    replicas: int = 1,
    replicated: bool = False,
    memory: float = 70e9,
    network: Network | None = None,
    noise: Noise | None = None,
) -> Scaled:
    """Predict one step.

    Args:
        model: one of `MODELS`.
        gpus: N.
        window: r.
        calibration: the measured constants of one GPU.
        dtype: of the window.
        replicas: the number of groups of N/replicas ranks that hold a copy of the model (HSDP).
        replicated: True if every rank holds the whole model (DDP); its window is split over all ranks.
        memory: bytes of a GPU; by default half of an H200, for the other half holds activations.
        network: `Network` with its defaults if None.
        noise: `Noise` with its defaults if None.

    Raises:
        ValueError: an unknown model, or a number of GPUs that the replicas do not divide.
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if gpus < 1 or replicas < 1 or gpus % replicas:
        raise ValueError(f"{gpus} GPUs cannot be {replicas} replicas: both must be from 1 on, and one divide the other")
    network, noise = network or Network(), noise or Noise()
    shards = gpus // replicas
    parameters = sum(map(math.prod, MODELS[model]))
    plan = make_plan(
        parameters if replicated else columns_of_a_rank(MODELS[model], shards) * shards,
        window=window,
        dtype=dtype,
        calibration=calibration,
        gpus=shards,
        replicated=replicated,
        memory=memory,
    )
    count = window + 3  # a Gram row, its square, and two counts of ranks that cannot take the step
    gather = 0.0
    if replicated and gpus > 1:
        gather = network.launch_s + 4 * parameters * (gpus - 1) / gpus / network.far_bandwidth
    local = plan.device_s - plan.collectives_s
    simulated = simulate(local, plan.passes_s / 2 + plan.traffic_s / 2, count, gpus, network, noise)
    return Scaled(
        model=model,
        parameters=parameters,
        gpus=gpus,
        shards=shards,
        plan=plan,
        reduce_s=all_reduce_s(count, gpus, network),
        gather_s=gather,
        simulated_s=(float(np.median(simulated)), float(np.quantile(simulated, 0.99))),
    )


def simulate(
    local_s: float, before_s: float, count: int, gpus: int, network: Network, noise: Noise, *, steps: int = 400
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds of each of many steps. In each step all ranks work, wait in an all-reduce for the last one, and work on.

    Args:
        local_s: planned seconds of what a rank does by itself.
        before_s: the part of ``local_s`` before the all-reduce.
        count: the number of float64 numbers in the all-reduce.
        gpus: the number of ranks.
        network: the network between the ranks.
        noise: how ranks differ from the plan.
        steps: the number of steps.
    """
    random = np.random.default_rng(0)

    def with_noise(seconds: float) -> Times:
        stretched = seconds * (1 + noise.spread * np.abs(random.standard_normal((steps, gpus))))
        late: Times = stretched + noise.pause_s * (random.random((steps, gpus)) < noise.pauses)
        return late

    summed = _all_reduce(with_noise(before_s), count, network)
    return np.asarray((summed + with_noise(local_s - before_s)).max(axis=1))


def _all_reduce(ready: Times, count: int, network: Network) -> Times:
    """When each rank has the sums, if it is ready at ``ready``: message by message up a binary tree, and down."""
    if ready.shape[1] == 1:
        return ready
    hops = network.hops(ready.shape[1])
    at = ready
    for latency, speed in hops:  # a parent waits for its child's message
        if at.shape[1] % 2:
            at = np.concatenate([at, np.full((len(at), 1), -np.inf)], axis=1)
        at = np.maximum(at[:, ::2], at[:, 1::2] + latency + 8 * count / speed)
    down = sum(latency + 8 * count / speed for latency, speed in hops)
    return np.broadcast_to(at + down + network.launch_s, ready.shape)


def training_step_s(parameters: int, gpus: int, *, tokens: float = 4e6, flops: float = 4e14) -> float:
    """Seconds of a forward and backward pass: 6·d·tokens operations, ``flops`` per second and GPU (40 % of an H200).

    Example:
        >>> round(training_step_s(7_000_000_000, 64), 2)
        6.56
    """
    return 6 * parameters * tokens / (gpus * flops)


def largest(fits: Callable[[int], bool], limit: int = 1000) -> int:
    """The largest r from 1 to ``limit`` that fits, 0 if none does. If r fits, every smaller window must fit.

    Example:
        >>> largest(lambda r: r * r < 50)
        7
    """
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
