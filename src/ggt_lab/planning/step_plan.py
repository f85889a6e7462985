"""What GGT would need for a model: bytes of window per GPU, the time of a step, and the largest window that fits.

The bytes are those of `torch_ggt.GGT.memory`, and the scratch memory of the solver. The time is predicted with the
formula of `ggt_lab.planning.calibration`, whose constants were measured. `ggt_lab.planning.calibration_check` says how
far off the predictions are.
"""

from dataclasses import dataclass

from ggt_lab.planning.calibration import Calibration, device_seconds, item_size, traffic
from torch_ggt import GGT

__all__ = ["DTYPES", "WRAPPED", "Plan", "largest_window", "make_plan"]

DTYPES = ("float32", "bfloat16", "int8", "int4")
"""The number types of a window. "@host" after one of them keeps the rows in host memory."""

WRAPPED = {"adamw": 8, "muon": 4, "sgd": 0, "sgd-momentum": 4}
"""Optimizers that the window can whiten gradients for, and the bytes per parameter of their own state in float32."""

_PARAMETER = 8  # bytes per parameter and its gradient, float32
_NODES = 27  # shifted solves of an r × r matrix, each with its scratch
_USABLE = 0.95  # share of a GPU's memory; the CUDA context and the allocator take the rest


@dataclass(frozen=True)
class Plan:
    """What a window costs. Bytes are bytes of one GPU, times are in seconds."""

    parameters: int
    """The parameters of the whole model."""
    window: int
    """r."""
    dtype: str
    """The number type of the window."""
    gpus: int
    """How many GPUs share the columns of the window."""
    whiten: str | None
    """The optimizer that gets whitened gradients; None: GGT makes the steps itself."""
    finish: str
    """What becomes of each tensor's step."""
    window_bytes: float
    """The rows of the window that are in the memory of the GPU."""
    host_bytes: float
    """The rows of the window that are in host memory."""
    state_bytes: float
    """Momentum and what a finish remembers, the row that waits to be written, and the r × r matrices."""
    wrapped_bytes: float
    """The state of the optimizer behind the window, 0 for GGT itself."""
    model_bytes: float
    """Parameters and gradients in float32, without activations."""
    memory: float
    """The memory of a GPU."""
    passes_s: float
    """Both passes over the window."""
    traffic_s: float
    """Reading and writing all other vectors of d elements."""
    solve_s: float
    """The r × r part."""
    launch_s: float
    """Small launches."""
    collectives_s: float
    """Waiting for other GPUs."""
    host_s: float
    """The time that the host needs to start a step."""
    fits: dict[str, int]
    """The largest window in each dtype beside parameters and gradients, 0 if none fits."""

    @property
    def device_s(self) -> float:
        """A step that does not wait for the host, because the host is ahead or the step is captured."""
        return self.passes_s + self.traffic_s + self.solve_s + self.launch_s + self.collectives_s

    @property
    def step_s(self) -> float:
        """A step in a loop that does nothing else: the time of the device or of the host, whichever is longer."""
        return max(self.device_s, self.host_s)

    @property
    def total_bytes(self) -> float:
        """All bytes without activations."""
        return self.window_bytes + self.state_bytes + self.wrapped_bytes + self.model_bytes

    @property
    def fits_here(self) -> bool:
        """Whether all of it goes into the memory of a GPU."""
        return self.total_bytes <= _USABLE * self.memory


def make_plan(
    parameters: int,
    *,
    window: int,
    dtype: str,
    calibration: Calibration,
    history: str = "gradient",
    finish: str | None = None,
    whiten: str | None = None,
    gpus: int = 1,
    replicated: bool = False,
    memory: float = 141e9,
    bandwidth: float | None = None,
    host_bandwidth: float = 55e9,
    network_bandwidth: float = 50e9,
    network_latency: float = 3e-5,
) -> Plan:
    """Predict what a window costs.

    Args:
        parameters: d.
        window: r.
        dtype: one of `DTYPES`, with or without "@host".
        calibration: the measured constants.
        history: what the window stores, as in GGT. Whitening has gradients in the window, and no momentum.
        finish: what becomes of each tensor's step, as in GGT. Its bytes are counted, its time is not. None: "adam", and
            "none" with ``whiten``.
        whiten: one of `WRAPPED`: the window whitens the gradients of that optimizer. The bytes of the optimizer's own
            state are counted; the time of its step is not.
        gpus: N, the GPUs that share the columns: each has d/N.
        replicated: True if every GPU holds all parameters and gradients (data parallel): then the updated columns must
            be gathered. False if parameters and gradients are split like the window (fully sharded).
        memory: bytes of a GPU.
        bandwidth: bytes per second of a GPU's memory; the bandwidth of the calibration if None.
        host_bandwidth: bytes per second from pinned host memory to a GPU. It limits the passes over rows in host
            memory: their time is a floor, and measured steps took 1.2 to 3.4 times as long (docs/row_formats.md). The
            default was measured on the machine of the records.
        network_bandwidth: bytes per second between GPUs, per GPU.
        network_latency: seconds of a collective of a few numbers.

    Raises:
        ValueError: a number below 1, an unknown dtype, history, finish or optimizer, or more GPUs than columns.
    """
    for name, value in (("parameters", parameters), ("window", window), ("gpus", gpus)):
        if value < 1:
            raise ValueError(f"{name} must be from 1 on, got {value}")
    kind, on_host = dtype.removesuffix("@host"), dtype.endswith("@host")
    if kind not in DTYPES:
        words = f"dtype must be {' or '.join(DTYPES)}, got {dtype!r}"
        raise ValueError(f"{words}; '@host' after it is for rows in host memory")
    if on_host and gpus > 1:
        raise ValueError(f"a window that GPUs share cannot be in host memory, got gpus={gpus} and dtype={dtype!r}")
    if whiten is not None and whiten not in WRAPPED:
        raise ValueError(f"whiten must be {', '.join(WRAPPED)} or nothing, got {whiten!r}")
    if finish is None:
        finish = "none" if whiten else "adam"
    if whiten is not None and finish != "none":
        raise ValueError(f"whiten={whiten!r} leaves the steps to that optimizer, got finish={finish!r} besides")
    if gpus > parameters:
        raise ValueError(f"{gpus} GPUs cannot share {parameters} columns; give at most one GPU per parameter")
    speed = calibration.bandwidth if bandwidth is None else bandwidth
    columns = -(-parameters // gpus)
    whole = parameters if replicated else columns
    model, wrapped = _PARAMETER * whole, WRAPPED[whiten] * whole if whiten else 0
    history = "gradient" if whiten else history
    window_bytes, state_bytes = _bytes(parameters, window, dtype, history=history, finish=finish, gpus=gpus)
    budget = _USABLE * memory - model - wrapped
    total = device_seconds(calibration, columns, window, kind, speed)
    beside, solve = traffic(kind) * columns / speed, calibration.solve_s(window)
    collectives = 0.0
    if gpus > 1:
        # A Gram row, its square and a flag in float64. In a ring every byte travels twice, without one part of N.
        share = (gpus - 1) / gpus
        collectives = network_latency + 2 * share * 8 * (window + 2) / network_bandwidth
        if replicated:
            collectives += network_latency + share * 4 * parameters / network_bandwidth
    return Plan(
        parameters=parameters,
        window=window,
        dtype=dtype,
        gpus=gpus,
        whiten=whiten,
        finish=finish,
        window_bytes=0.0 if on_host else float(window_bytes),
        host_bytes=float(window_bytes) if on_host else 0.0,
        state_bytes=float(state_bytes),
        wrapped_bytes=float(wrapped),
        model_bytes=float(model),
        memory=memory,
        passes_s=2 * window_bytes / host_bandwidth if on_host else total - beside - solve - calibration.small_s,
        traffic_s=beside,
        solve_s=solve,
        launch_s=calibration.small_s,
        collectives_s=collectives,
        host_s=calibration.host_s,
        fits={
            kind: largest_window(parameters, kind, budget, history=history, finish=finish, gpus=gpus) for kind in DTYPES
        },
    )


def _bytes(parameters: int, window: int, dtype: str, *, history: str, finish: str, gpus: int) -> tuple[int, int]:
    """(bytes of the rows, bytes of all other state and of the solver's scratch) of one GPU, while a step is made."""
    memory = GGT.memory(parameters, window=window, window_dtype=dtype, history=history, finish=finish, ranks=gpus)
    return memory.window, memory.total - memory.window + 8 * _NODES * window**2


def largest_window(
    parameters: int, dtype: str, budget: float, *, history: str = "gradient", finish: str = "adam", gpus: int = 1
) -> int:
    """The largest r for which window, state and r × r matrices take at most ``budget`` bytes of a GPU; 0 if none does.

    It is at most the number of parameters: rows beyond that would span nothing new.

    Example:
        >>> largest_window(1_000_000, "float32", 100e6)
        21
    """
    low, high = 0, 1 + min(parameters, int(max(0.0, budget) / (-(-parameters // gpus) * item_size(dtype))))
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        fits = sum(_bytes(parameters, middle, dtype, history=history, finish=finish, gpus=gpus)) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low
