"""What GGT would need for a model: bytes of window per GPU, the time of a step, and the largest window that fits.

The time is predicted with the formula of `ggt_lab.planning.calibration`, whose constants were measured.
`ggt_lab.planning.calibration_check` says how far off the predictions are.
"""

from dataclasses import dataclass

from ggt_lab.planning.calibration import TRAFFIC, Calibration, device_seconds, item_size

__all__ = ["DTYPES", "Plan", "largest_window", "make_plan"]

DTYPES = ("float32", "bfloat16")
"""What a window may be planned in."""

_STATE = 8  # bytes per column: momentum, and the row that waits for the verdict
_PARAMETER = 8  # bytes per parameter and its gradient, float32
_NODES = 27  # shifted solves of an r × r matrix, each with its scratch
_USABLE = 0.95  # of a GPU's memory: the rest is the context's and the allocator's


@dataclass(frozen=True)
class Plan:
    """Bytes are per GPU, times in seconds.

    Attributes:
        parameters: of the whole model.
        window: r.
        dtype: of the window.
        gpus: that share the columns of the window.
        window_bytes: the window's rows.
        state_bytes: momentum, the waiting row, and what is r × r.
        model_bytes: parameters and gradients, float32; activations are not included.
        memory: of a GPU.
        passes_s: both passes over the window.
        traffic_s: what else of d elements is read and written.
        solve_s: the r × r part.
        launch_s: small launches.
        collectives_s: what waits for other GPUs.
        host_s: what the host needs to start a step.
        fits: the largest window in each dtype beside parameters and gradients, 0 if none.
    """

    parameters: int
    window: int
    dtype: str
    gpus: int
    window_bytes: float
    state_bytes: float
    model_bytes: float
    memory: float
    passes_s: float
    traffic_s: float
    solve_s: float
    launch_s: float
    collectives_s: float
    host_s: float
    fits: dict[str, int]

    @property
    def device_s(self) -> float:
        """A step where the host is ahead, or captured."""
        return self.passes_s + self.traffic_s + self.solve_s + self.launch_s + self.collectives_s

    @property
    def step_s(self) -> float:
        """A step in a loop that does nothing else: the host's time where that is longer."""
        return max(self.device_s, self.host_s)

    @property
    def total_bytes(self) -> float:
        """Everything but activations."""
        return self.window_bytes + self.state_bytes + self.model_bytes

    @property
    def fits_here(self) -> bool:
        """Whether it goes into the memory of a GPU."""
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
        gpus: N, that share the columns: d/N each.
        replicated: parameters and gradients are whole on every GPU (data parallel), so that the updated columns must be
            gathered; otherwise they are split as the window is (fully sharded).
        memory: of a GPU, bytes.
        bandwidth: of its memory, bytes per second; as measured with the calibration if None.
        network_bandwidth: between GPUs, bytes per second and GPU.
        network_latency: of a collective of a few numbers, seconds.

    Raises:
        ValueError: what was given cannot be.
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
        # One Gram row, its square and a verdict, float64; by a ring every byte travels twice, but for one part of N.
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
        # More rows than columns would span nothing new.
        fits={kind: min(parameters, largest_window(columns, kind, _USABLE * memory - model)) for kind in DTYPES},
    )


def largest_window(columns: int, dtype: str, budget: float) -> int:
    """The largest r such that window, state and r × r matrices of so many columns take at most ``budget`` bytes.

    Example:
        >>> largest_window(1_000_000, "float32", 100e6)
        22
    """
    left = budget - _STATE * columns
    if left <= 0:
        return 0
    per_row, square = columns * item_size(dtype), 8 * (1 + _NODES)
    # The positive root of square·r² + per_row·r = left, in the form that does not cancel.
    r = int(2 * left / (per_row + (per_row**2 + 4 * square * left) ** 0.5))
    while square * (r + 1) ** 2 + per_row * (r + 1) <= left:  # rounding
        r += 1
    while r > 0 and square * r**2 + per_row * r > left:
        r -= 1
    return r
