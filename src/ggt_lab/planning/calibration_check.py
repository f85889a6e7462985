"""How far off the predictions are: every measured step is predicted from all the other steps."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ggt_lab.planning.calibration import Calibration, calibrate, device_seconds, measured_steps, solve_times
from ggt_lab.runs.results import Record

__all__ = ["Check", "calibration_of", "check_against", "worst_and_typical"]


class Check(NamedTuple):
    """A measured step, and its prediction from all the other steps."""

    case: str
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """(predicted - measured)/measured."""
        return self.predicted_ms / self.measured_ms - 1


def check_against(records: Sequence[Record]) -> list[Check]:
    """Predict every measured step from all the other steps, and compare. Times are device times of captured steps.

    Args:
        records: as `ggt_lab.bench.case_files.read_cases` returns them; two steps or more.

    Raises:
        ValueError: too few to leave one out.
    """
    steps, solves = measured_steps(records), solve_times(records)
    if len(steps) < 2:
        raise ValueError(f"checking the model takes two measured steps or more, got {len(steps)}")
    checks = []
    for number, step in enumerate(steps):
        others = calibrate(steps[:number] + steps[number + 1 :], solves)
        predicted = device_seconds(others, step.d, step.r, step.dtype, step.bandwidth)
        checks.append(Check(step.case, 1e3 * step.device_s, 1e3 * predicted))
    return checks


def worst_and_typical(errors: Sequence[float]) -> tuple[float, float]:
    """The largest and the median absolute error.

    Example:
        >>> worst_and_typical([0.1, -0.3, 0.2])
        (0.3, 0.2)
    """
    sizes = [abs(error) for error in errors]
    return max(sizes), statistics.median(sizes)


def calibration_of(records: Sequence[Record]) -> tuple[Calibration, dict[str, float]]:
    """The constants from records of one kind of GPU, and the error of each case predicted from the other cases.

    Raises:
        ValueError: there are too few cases, or several kinds of GPU.
    """
    steps = {step.case for step in measured_steps(records)}
    gpus = {str(record.get("environment", {}).get("gpu")) for record in records if record["case"] in steps}
    if len(gpus) > 1:
        raise ValueError(f"these records are of several GPUs ({', '.join(sorted(gpus))}); give those of one")
    errors = {check.case: check.error for check in check_against(records)}
    return calibrate(measured_steps(records), solve_times(records), hardware=gpus.pop()), errors
