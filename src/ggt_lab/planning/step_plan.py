"""What GGT would need for a model: bytes of window per GPU, the time of a step, and the largest window that fits.

The time is predicted with the formula of `ggt_lab.planning.calibration`, whose constants were measured.
`ggt_lab.planning.calibration_check` says how far off the predictions are.
"""

from dataclasses import dataclass

from ggt_lab.planning.calibration import TRAFFIC, Calibration, device_seconds, item_size

__all__ = ["DTYPES", "Plan", "largest_window", "make_plan"]

DTYPES = ("float32", "bfloat16")
"""The number types of a window."""

_STATE = 8  # bytes per column: momentum, and the row that waits to be written
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
    window_bytes: float
    """The rows of the window."""
    state_bytes: float
    """Momentum, the row that waits to be written, and the r × r matrices."""
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
        return self.window_bytes + self.state_bytes + self.model_bytes

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
    gpus: int = 1,
    replicated: bool = False,
    memory: float = 141e9,
    bandwidth: float | None = None,
    network_bandwidth: float = 50e9,
    network_latency: float = 3e-5,
) -> Plan:
    """Predict what a window costs.

    Args:
        parameters: d.
        window: r.
        dtype: one of `DTYPES`.
        calibration: the measured constants.
        gpus: N, the GPUs that share the columns: each has d/N.
        replicated: True if every GPU holds all parameters and gradients (data parallel): then the updated columns must
            be gathered. False if parameters and gradients are split like the window (fully sharded).
        memory: bytes of a GPU.
        bandwidth: bytes per second of a GPU's memory; the bandwidth of the calibration if None.
        network_bandwidth: bytes per second between GPUs, per GPU.
        network_latency: seconds of a collective of a few numbers.

    Raises:
        ValueError: a number below 1, an unknown dtype, or more GPUs than columns.
    """
    for name, value in (("parameters", parameters), ("window", window), ("gpus", gpus)):
        if value < 1:
            raise ValueError(f"{name} must be from 1 on, got {value}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be {' or '.join(DTYPES)}, got {dtype!r}")
    if gpus > parameters:
        raise ValueError(f"{gpus} GPUs cannot share {parameters} columns; give at most one GPU per parameter")
    speed = calibration.bandwidth if bandwidth is None else bandwidth
    columns = -(-parameters // gpus)
    model = _PARAMETER * (parameters if replicated else columns)
    total = device_seconds(calibration, columns, window, dtype, speed)
    traffic, solve = TRAFFIC * columns / speed, calibration.solve_s(window)
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
        window_bytes=float(window * columns * item_size(dtype)),
        state_bytes=float(_STATE * columns + 8 * window**2 * (1 + _NODES)),
        model_bytes=float(model),
        memory=memory,
        passes_s=total - traffic - solve - calibration.small_s,
        traffic_s=traffic,
        solve_s=solve,
        launch_s=calibration.small_s,
        collectives_s=collectives,
        host_s=calibration.host_s,
        # Rows beyond the number of columns would span nothing new.
        fits={kind: min(parameters, largest_window(columns, kind, _USABLE * memory - model)) for kind in DTYPES},
    )


def largest_window(columns: int, dtype: str, budget: float) -> int:
    """The largest r for which window, state and r × r matrices take at most ``budget`` bytes.

    Example:
        >>> largest_window(1_000_000, "float32", 100e6)
        22
    """
    left = budget - _STATE * columns
    if left <= 0:
        return 0
    per_row, square = columns * item_size(dtype), 8 * (1 + _NODES)
    # The positive root of square·r² + per_row·r = left, in the form without cancellation.
    r = int(2 * left / (per_row + (per_row**2 + 4 * square * left) ** 0.5))
    while square * (r + 1) ** 2 + per_row * (r + 1) <= left:  # rounding
        r += 1
    while r > 0 and square * r**2 + per_row * r > left:
        r -= 1
    return r
