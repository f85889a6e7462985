"""The formula for the time of a step, and its constants, which come from measured steps.

    device time = factor · 2·r·d·bytes/bandwidth + traffic·d/bandwidth + solve(r) + small

The factor says how many times slower the two passes over the window are than a copy of as many bytes; each dtype of the
rows has its own. ``traffic`` is the bytes per parameter that are read and written beside the window: 34 (see the table
in docs/design.md), and 46 with rows of integers, of which the newest is encoded and read once more. The measured steps
with integers moved 70: they were timed before their step was applied in the pass that makes it.
solve(r) is interpolated between measured sizes. "small" is the time of launches that do almost nothing. If the host is
not ahead of the device, a step takes the time of the host instead.
"""

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ggt_lab.data.atomic_files import write_atomically
from ggt_lab.runs.results import Record
from torch_ggt.formats import FORMATS

__all__ = [
    "Calibration",
    "Measured",
    "calibrate",
    "device_seconds",
    "load_calibration",
    "measured_steps",
    "solve_times",
    "traffic",
    "write_calibration",
]

_TRAFFIC, _CODED_TRAFFIC = 34, 46

SHIPPED = Path(__file__).with_name("calibration.json")
"""The constants of one NVIDIA H200, measured under ``records/``. ``ggt calibrate records`` writes the file again."""

# Seconds of the floor: above the first the passes are most of a step, below the second they are almost nothing.
_LARGE, _SMALL = 3e-4, 3e-5
_HOST_BOUND = 1.3
_SMALL_ASSUMED, _HOST_ASSUMED = 2.5e-5, 3e-4


@dataclass(frozen=True)
class Measured:
    """A measured step with scope="model".

    Attributes:
        case: the name of the case.
        d: the number of parameters.
        r: the number of rows of the window.
        dtype: the number type of the window, "float32" or "bfloat16".
        device_s: seconds of a step that is captured in a CUDA graph.
        eager_s: seconds of a step that the host starts.
        bandwidth: bytes per second of a copy.
        solve_s: seconds of the r × r part, if a profile tells.
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
        """2·r·d·bytes divided by the bandwidth."""
        return 2 * self.r * self.d * item_size(self.dtype) / self.bandwidth


@dataclass(frozen=True)
class Calibration:
    """The constants of the formula.

    Attributes:
        hardware: the machine on which they were measured.
        bandwidth: bytes per second of a copy.
        factors: the time of the passes over the window divided by the time of a copy, by dtype.
        solves: (r, seconds) of the r × r part, in the order of r.
        small_s: seconds of the small launches.
        host_s: seconds that the host needs to start a step.
        assumed: the constants that no case tells, so that they are guessed.
        cases: the cases that the constants come from.
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
        """Seconds of the r × r part: interpolated in log r, constant below the first size, the last slope beyond.

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
        """The factor of a dtype; the mean of all factors if it was not measured."""
        return self.factors.get(dtype, statistics.fmean(self.factors.values()))


def item_size(dtype: str) -> float:
    """Bytes of an element of a row in that format, its share of a scale included."""
    return FORMATS[dtype].element_bytes


def traffic(dtype: str) -> int:
    """Bytes per parameter that a step moves beside the window."""
    return _CODED_TRAFFIC if FORMATS[dtype].coded else _TRAFFIC


def device_seconds(calibration: Calibration, d: float, r: int, dtype: str, bandwidth: float) -> float:
    """The formula above: seconds of a step on one device with d columns."""
    passes = calibration.factor(dtype) * 2 * r * d * item_size(dtype) / bandwidth
    return passes + traffic(dtype) * d / bandwidth + calibration.solve_s(r) + calibration.small_s


def measured_steps(records: Sequence[Record]) -> list[Measured]:
    """The GGT steps with one matrix among the records of `ggt_lab.bench.case_files.read_cases`."""
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
    """The constants from measured steps. They are medians, so that no single case decides.

    Args:
        steps: at least one.
        solves: seconds of the r × r part, by r. Times from the profiles of the steps are added.
        hardware: the name of the machine.

    Raises:
        ValueError: there is no step, or no time of the r × r part.
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
    # The small launches come first: they are a small part of the steps that tell the factors.
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
    return traffic(step.dtype) * step.d / step.bandwidth + calibration.solve_s(step.r) + calibration.small_s


def load_calibration(file: Path = SHIPPED) -> tuple[Calibration, dict[str, float]]:
    """What `write_calibration` wrote: the constants, and the relative error of each case."""
    content = json.loads(file.read_text())
    constants = content["calibration"]
    return Calibration(**{**constants, "solves": [(r, t) for r, t in constants["solves"]]}), content["errors"]


def write_calibration(calibration: Calibration, errors: Mapping[str, float], file: Path = SHIPPED) -> None:
    """Write the constants, and the relative error of each case when it is predicted from the other cases."""
    content = {"calibration": dataclasses.asdict(calibration), "errors": dict(errors)}
    write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
