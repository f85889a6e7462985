"""What the measured steps say about the model that `ggt_lab.planning.step_plan` predicts with.

    device time = factor · 2·r·d·bytes/bandwidth + 34·d/bandwidth + solve(r) + small

The factor is by how much the two passes over the window are slower than a copy of as many bytes, per dtype of the rows;
34 bytes per parameter is everything of d elements that a step reads and writes beside the window (see the table in
docs/design.md); solve(r) is interpolated between measured sizes; small are the launches that do next to nothing. Where
the host is not ahead of the device, a step takes the host's time instead.
"""

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.runs.results import Record

__all__ = [
    "Calibration",
    "Measured",
    "calibrate",
    "device_seconds",
    "load_calibration",
    "measured_steps",
    "solve_times",
    "write_calibration",
]

TRAFFIC = 34
"""Bytes per parameter that a step moves beside the window."""

SHIPPED = Path(__file__).with_name("calibration.json")
"""One NVIDIA H200, as measured under ``records/``; ``python -m ggt_lab.planning.step_plan records`` writes it anew."""

_LARGE, _SMALL = 3e-4, 3e-5  # seconds of the floor: where the passes are most of a step, and where next to nothing
_HOST_BOUND = 1.3
_SMALL_ASSUMED, _HOST_ASSUMED = 2.5e-5, 3e-4


@dataclass(frozen=True)
class Measured:
    """A step of scope="model" that was measured.

    Attributes:
        case: its name.
        d: parameters.
        r: window.
        dtype: of the window, "float32" or "bfloat16".
        device_s: seconds, captured in a CUDA graph.
        eager_s: seconds, started by the host.
        bandwidth: of a copy, bytes per second.
        solve_s: seconds of the r × r part in it, where a profile tells.
    """

    case: str
    d: int
    r: int
    dtype: str
    device_s: float
    eager_s: float
    bandwidth: float
    solve_s: float | None = None

    @property
    def floor_s(self) -> float:
        """2·r·d·bytes over the bandwidth."""
        return 2 * self.r * self.d * item_size(self.dtype) / self.bandwidth


@dataclass(frozen=True)
class Calibration:
    """The constants of the model.

    Attributes:
        hardware: what they were measured on.
        bandwidth: of a copy, bytes per second.
        factors: passes over the window, by dtype: their time over a copy's.
        solves: (r, seconds) of the r × r part, by r.
        small_s: seconds of the small launches.
        host_s: seconds that the host needs to start a step.
        assumed: which of these no case tells, so that a guess stands in.
        cases: what they come from.
    """

    hardware: str
    bandwidth: float
    factors: Mapping[str, float]
    solves: Sequence[tuple[int, float]]
    small_s: float
    host_s: float
    assumed: Sequence[str] = ()
    cases: Sequence[str] = ()

    def solve_s(self, r: int) -> float:
        """Interpolated in log r, with the last slope beyond the last size and constant before the first.

        Example:
            >>> c = Calibration("", 1.0, {}, [(10, 1.0), (100, 10.0)], 0.0, 0.0)
            >>> [round(c.solve_s(r), 9) for r in (5, 10, 20, 1000)]
            [1.0, 1.0, 2.0, 100.0]
        """
        if r <= self.solves[0][0] or len(self.solves) == 1:
            return self.solves[0][1]
        pairs = list(itertools.pairwise(self.solves))
        (r0, t0), (r1, t1) = next((pair for pair in pairs if r <= pair[1][0]), pairs[-1])
        slope = math.log(t1 / t0) / math.log(r1 / r0)
        return t0 * math.exp(slope * math.log(r / r0))

    def factor(self, dtype: str) -> float:
        """Of the dtype, or the mean of all that were measured."""
        return self.factors.get(dtype, statistics.fmean(self.factors.values()))


def item_size(dtype: str) -> int:
    """Bytes of a number."""
    return int(getattr(torch, dtype).itemsize)


def device_seconds(calibration: Calibration, d: float, r: int, dtype: str, bandwidth: float) -> float:
    """The model above: seconds of a step on one device with d columns."""
    passes = calibration.factor(dtype) * 2 * r * d * item_size(dtype) / bandwidth
    return passes + TRAFFIC * d / bandwidth + calibration.solve_s(r) + calibration.small_s


def measured_steps(records: Sequence[Record]) -> list[Measured]:
    """The GGT steps with one matrix among the records of `ggt_lab.runs.results.read_cases`."""
    found = []
    for record in records:
        if record["kind"] not in ("steps", "scopes", "baselines") or record["device"] != "cuda":
            continue
        result, options = record.get("result") or {}, record["options"]
        if options["optimizer"] != "GGT" or options.get("scope", "model") != "model" or "eager" not in result:
            continue
        eager, captured, profile = result["eager"], result.get("captured"), result.get("launches")
        solve = profile.get("us", {}).get("_solve") if isinstance(profile, dict) else None
        found.append(
            Measured(
                case=record["case"],
                d=int(result["d"]),
                r=int(result["r"]),
                dtype=str(result["dtype"]).removeprefix("torch."),
                device_s=(captured if isinstance(captured, dict) else eager)["median_ms"] * 1e-3,
                eager_s=eager["median_ms"] * 1e-3,
                bandwidth=float(record["copy_bandwidth"]),
                solve_s=None if solve is None else solve * 1e-6,
            )
        )
    return found


def solve_times(records: Sequence[Record]) -> dict[int, float]:
    """Seconds of the r × r part by r, from the cases that measure it alone, captured."""
    found = {}
    for record in records:
        result = record.get("result") or {}
        ms = result.get("kernel, captured")
        if record["kind"] == "root" and result["batch"] == 1 and isinstance(ms, float):
            found[int(result["r"])] = ms * 1e-3
    return found


def calibrate(steps: Sequence[Measured], solves: Mapping[int, float], hardware: str = "") -> Calibration:
    """Constants from measured steps: medians, so that no single case decides where there are many.

    Args:
        steps: at least one.
        solves: seconds of the r × r part by r; those that profiles of the steps tell are added.
        hardware: to be named.

    Raises:
        ValueError: nothing to calibrate with.
    """
    if not steps:
        raise ValueError("no measured GGT step to calibrate with; run ggt bench --what steps root first")
    by_r: dict[int, list[float]] = {}
    for step in steps:
        if step.solve_s is not None:
            by_r.setdefault(step.r, []).append(step.solve_s)
    table = {**{r: statistics.median(times) for r, times in by_r.items()}, **solves}
    if not table:
        raise ValueError("no measured time of the r × r part; run ggt bench --what root")
    assumed = []
    bandwidth = statistics.median(step.bandwidth for step in steps)
    # Small first: it is a small part of the steps that tell the factors.
    draft = Calibration(hardware, bandwidth, {"float32": 1.0}, sorted(table.items()), 0.0, 0.0)
    small_steps = [
        step.device_s - _without_passes(draft, step) - step.floor_s for step in steps if step.floor_s < _SMALL
    ]
    small = max(0.0, statistics.median(small_steps)) if small_steps else _SMALL_ASSUMED
    if not small_steps:
        assumed.append("small launches")
    draft = dataclasses.replace(draft, small_s=small)
    large = [step for step in steps if step.floor_s >= _LARGE] or list(steps)
    found: dict[str, list[float]] = {}
    for step in large:
        found.setdefault(step.dtype, []).append((step.device_s - _without_passes(draft, step)) / step.floor_s)
    factors = {dtype: statistics.median(values) for dtype, values in sorted(found.items())}
    host_bound = [step.eager_s for step in steps if step.eager_s > _HOST_BOUND * step.device_s]
    host = statistics.median(host_bound) if host_bound else _HOST_ASSUMED
    if not host_bound:
        assumed.append("host")
    names = [step.case for step in steps]
    return dataclasses.replace(draft, factors=factors, host_s=host, assumed=assumed, cases=names)


def _without_passes(calibration: Calibration, step: Measured) -> float:
    return TRAFFIC * step.d / step.bandwidth + calibration.solve_s(step.r) + calibration.small_s


def load_calibration(file: Path = SHIPPED) -> tuple[Calibration, dict[str, float]]:
    """What `write_calibration` wrote: the constants, and the relative error of each case."""
    content = json.loads(file.read_text())
    constants = content["calibration"]
    return Calibration(**{**constants, "solves": [(r, t) for r, t in constants["solves"]]}), content["errors"]


def write_calibration(calibration: Calibration, errors: Mapping[str, float], file: Path = SHIPPED) -> None:
    """Write the constants, and the relative error of each case when it is predicted from the other cases."""
    content = {"calibration": dataclasses.asdict(calibration), "errors": dict(errors)}
    write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
