"""Is a full matrix worth its cost for this model? Pure functions answer from recorded spectra and compared steps.

λ are the eigenvalues of GᵀG, the squares of the recorded singular values. Every number comes with its value for
gradients without structure.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torch_ggt.spectrum.comparison import StepComparison, rounding_level

__all__ = ["Diagnosis", "diagnose", "effective_rank", "eigenvalues_above_rounding", "isotropic_moment", "stable_rank"]

# A cosine of 0.95 is an angle of 18°: 10 % of a step's energy has another direction. Most gradients have more noise.
ENOUGH_COSINE = 0.95
# The step rescales directions by √condition against each other. √10 ≈ 3 is the ratio of neighbours in a grid of
# learning rates. Uneven gradient lengths alone can bring three times the condition number of unstructured gradients.
LARGE_CONDITION = 10.0
BEYOND_ISOTROPIC = 3.0
# Whitening paid on problems with a share of noise below 0.04, and hardly on those with 0.2 and more (docs/defaults.md).
MUCH_NOISE = 0.2


@dataclass(frozen=True)
class Diagnosis:
    """What a window and its recorded spectra say; a number is NaN if the window holds only zeros and cannot give it.

    Spectra are medians over the last quarter of the records, and cosines over the last quarter of the moments at which
    steps were compared. The fields that end in ``isotropic`` are for gradients without structure, with the momentum and
    decay of these rows.
    """

    history: str  #: What the rows are: "momentum" or "gradient".
    window: int  #: r, the size of the window.
    rows: int  #: How many of the r rows were filled at the last record.
    records: int  #: How many spectra were recorded.
    moments: int  #: At how many moments steps were compared.
    condition: float  #: λmax/λmin of GᵀG over the filled rows, without eigenvalues at rounding level.
    condition_max: float  #: The largest condition number of all records.
    condition_isotropic: float
    dropped: int  #: How many eigenvalues of the last record were at rounding level.
    rounding: float  #: The rounding level, as a share of Σλ.
    effective_rank: float  #: exp(entropy of λ/Σλ), at most r.
    effective_rank_isotropic: float
    stable_rank: float  #: Σλ/λmax, at most r.
    cosine_diagonal: float  #: The cosine of the full-matrix step with the diagonal step.
    cosine_sgd: float  #: The cosine of the full-matrix step with the newest row itself.
    cosine_sgd_isotropic: float  #: It is below 1, because the matrix undoes momentum's correlation.
    cosine_by_window: dict[int, float]  #: The cosine of the full-matrix step with the step of the newest s rows.
    noise: float = math.nan
    """The mean share of a gradient that lies outside the span of the other rows; NaN if the rows are momentum."""

    @property
    def energy_beyond_diagonal(self) -> float:
        """The share 1 - cos² of the step's squared length that no multiple of the diagonal step produces."""
        return 1 - self.cosine_diagonal**2

    @property
    def energy_beyond_sgd(self) -> float:
        """1 - cos² for the step of SGD, or of SGD with momentum if the window holds momentum."""
        return 1 - self.cosine_sgd**2

    @property
    def sufficient_window(self) -> int | None:
        """The smallest s with a cosine of at least 0.95; None if only the whole window reaches it."""
        *shorter, _ = self.cosine_by_window.items()
        return min((s for s, cosine in shorter if cosine >= ENOUGH_COSINE), default=None)

    @property
    def threshold_condition(self) -> float:
        """The least condition number of anisotropic rows, the larger of 10 and 3 times `condition_isotropic`."""
        return max(LARGE_CONDITION, BEYOND_ISOTROPIC * self.condition_isotropic)

    @property
    def verdict(self) -> str:
        """Whether to race a full-matrix method, and why. It proves neither a gain nor its absence.

        The paper saw condition numbers of 10³ on a CNN, with little gain, and of up to 10⁶ on a recurrent net, with
        much gain. Small eigenvalues that are only noise raise the condition number, too. A diagonal of few rows is
        noisy by itself: for Gaussian gradients without structure, its cosine is 0.80 for r = 1, 0.95 for r = 5 and 0.99
        for r = 20. With momentum 0.9 it is 0.8.
        """
        if math.isnan(self.condition) or math.isnan(self.cosine_diagonal):
            return "Nothing can be said: the newest rows are zero."
        if self.rows < 2:
            return "Nothing can be said of a single row: record more steps."
        cosines = {self._plain_method: self.cosine_sgd, "a diagonal method such as Adam": self.cosine_diagonal}
        noisy = ""
        if self.noise >= MUCH_NOISE:
            noisy = (
                f"{self.noise:.0%} of a gradient lies outside the span of the other rows. Gradients with so much noise "
                f"(≥ {MUCH_NOISE:.0%}) gained little from whitening in our measurements. Larger batches have less."
            )
        near = " or ".join(name for name, cosine in cosines.items() if cosine >= ENOUGH_COSINE)
        if near:
            words = f"Little to gain over {near}, which steps in nearly the same direction (cosine ≥ {ENOUGH_COSINE})."
            return f"{words} {noisy}" if noisy else words
        if self.condition < self.threshold_condition:
            return (
                f"Little reason to expect a gain: the step differs from a cheaper one (cosines < {ENOUGH_COSINE}), "
                f"but with a condition number below {self.threshold_condition:.3g} it rescales directions hardly more "
                "than momentum and chance alone would have it."
            )
        if noisy:
            return f"Little reason to expect a gain. {noisy}"
        return (
            f"Worth a race: the rows are anisotropic (condition ≥ {self.threshold_condition:.3g}), and neither "
            f"{' nor '.join(cosines)} makes this step (cosines < {ENOUGH_COSINE}). That it is another step does not "
            "prove that it is a better one."
        )

    @property
    def _plain_method(self) -> str:
        return "SGD with momentum" if self.history == "momentum" else "SGD"

    @property
    def summary(self) -> str:
        """The whole diagnosis in words."""
        window = f"{self.rows} {self.history} rows" + ("" if self.rows == self.window else f" (of {self.window})")
        records, moments = _last_quarter(range(self.records)), _last_quarter(range(self.moments))
        when = f"the median of the last {len(moments)} of {self.moments} moments"
        whole = max(self.cosine_by_window)
        if self.sufficient_window is None:
            suffices = f"No shorter window gives this step with cosine 0.95: {whole} rows or more are needed."
        else:
            at = self.cosine_by_window[self.sufficient_window]
            suffices = f"The newest {self.sufficient_window} of {whole} rows suffice: cosine {at:.3f} (≥ 0.95)."
        noise = "" if math.isnan(self.noise) else f"{self.noise:.1%} of a row lies outside the span of the others. "
        return (
            f"{window}: condition {self.condition:.3g} (median of the last {len(records)} of {self.records} records; "
            f"at most {self.condition_max:.3g}; {self.condition_isotropic:.3g} without structure), effective rank "
            f"{self.effective_rank:.1f} ({self.effective_rank_isotropic:.1f} without structure), stable rank "
            f"{self.stable_rank:.1f}; {self.dropped} eigenvalues at rounding level were left out. The full-matrix step "
            f"has cosine {self.cosine_diagonal:.3f} with the diagonal step ({self.energy_beyond_diagonal:.0%} of its "
            f"energy lies elsewhere) and {self.cosine_sgd:.3f} with that of {self._plain_method} "
            f"({self.energy_beyond_sgd:.0%}; cosine {self.cosine_sgd_isotropic:.3f} without structure), "
            f"{'at one moment' if self.moments == 1 else when}. {suffices} {noise}{self.verdict}"
        )

    def numbers(self) -> dict[str, Any]:
        """All fields, and the numbers that follow from them, as plain JSON types; None stands for NaN."""
        following = ("energy_beyond_diagonal", "energy_beyond_sgd", "sufficient_window", "threshold_condition")
        found = asdict(self) | {name: getattr(self, name) for name in following} | {"threshold_cosine": ENOUGH_COSINE}
        found["cosine_by_window"] = {str(s): _plain(cosine) for s, cosine in self.cosine_by_window.items()}
        return {name: _plain(value) for name, value in found.items()}


def diagnose(
    spectra: Sequence[Tensor],
    comparisons: Sequence[StepComparison],
    *,
    isotropic: Tensor,
    history: str = "gradient",
    dtype: torch.dtype = torch.float64,
) -> Diagnosis:
    """Summarize recorded spectra and step comparisons.

    Args:
        spectra: the singular values of the filled rows, each of shape (≤ r,); at least one spectrum, oldest first.
        comparisons: results of `compare_steps`; at least one, oldest first.
        isotropic: the result of `isotropic_moment` for the whole window, shape (r, r).
        history: what the rows are, "momentum" or "gradient".
        dtype: the dtype of the rows, which sets the rounding level.
    """
    if not spectra or not comparisons:
        raise ValueError(
            f"diagnose needs at least one spectrum and one comparison, got {len(spectra)} and {len(comparisons)}: "
            "take a step with a finite gradient that is not zero first"
        )
    kept = [eigenvalues_above_rounding(spectrum, dtype) for spectrum in spectra]
    conditions = [_condition(eigenvalues) for eigenvalues in kept]
    recent, last = _last_quarter(kept), _last_quarter(comparisons)
    sizes = list(last[-1].by_window)
    last = [comparison for comparison in last if list(comparison.by_window) == sizes]  # equally many rows
    rows = spectra[-1].numel()
    twin_eigenvalues, twin_vectors = torch.linalg.eigh(isotropic[:rows, :rows])
    twin_sigma = twin_eigenvalues.clamp_min(0).sqrt()
    twin_kept = eigenvalues_above_rounding(twin_sigma, dtype)
    return Diagnosis(
        history=history,
        window=isotropic.shape[0],
        rows=rows,
        records=len(spectra),
        moments=len(comparisons),
        condition=_median(_last_quarter(conditions)),
        condition_max=max((c for c in conditions if not math.isnan(c)), default=math.nan),
        condition_isotropic=_condition(twin_kept),
        dropped=rows - kept[-1].numel(),
        rounding=rounding_level(dtype, rows),
        effective_rank=_median(map(effective_rank, recent)),
        effective_rank_isotropic=effective_rank(twin_kept),
        stable_rank=_median(map(stable_rank, recent)),
        cosine_diagonal=_median(comparison.diagonal for comparison in last),
        cosine_sgd=_median(comparison.sgd for comparison in last),
        # eᵀM^½e/‖G e‖, for a step of length 1
        cosine_sgd_isotropic=float(twin_sigma @ twin_vectors[0].square() / isotropic[0, 0].sqrt()),
        cosine_by_window={s: _median(comparison.by_window[s] for comparison in last) for s in sizes},
        # Rows of momentum share their past, and explain each other whatever the noise.
        noise=_median(comparison.noise for comparison in last) if history == "gradient" else math.nan,
    )


def eigenvalues_above_rounding(singular_values: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """λ = σ² without eigenvalues at the rounding level of rows of ``dtype``; shape (≤ r,), in the given order."""
    eigenvalues = singular_values.square()
    return eigenvalues[eigenvalues > rounding_level(dtype, eigenvalues.numel()) * eigenvalues.sum()]


def effective_rank(eigenvalues: Tensor) -> float:
    """exp(entropy of λ/Σλ): r for r equal eigenvalues, 1 for a single eigenvalue, NaN for no eigenvalues."""
    shares = eigenvalues / eigenvalues.sum()
    return math.exp(-float(torch.xlogy(shares, shares).sum())) if eigenvalues.sum() > 0 else math.nan


def stable_rank(eigenvalues: Tensor) -> float:
    """Σλ/λmax. It is like `effective_rank`, but small eigenvalues hardly count; NaN for no eigenvalues."""
    return float(eigenvalues.sum() / eigenvalues.max()) if eigenvalues.sum() > 0 else math.nan


def isotropic_moment(decay: Tensor, *, beta1: float = 0.0, nesterov: bool = False) -> Tensor:
    r"""M for orthonormal gradients, (r, r) in float64: it shows only momentum and decay, and no structure.

    Rows :math:`w_t = \sum_k h_k g_{t-k}` of orthonormal g have :math:`w_s\cdot w_t = \sum_k h_k h_{k+|s-t|}`. For
    momentum, h_k = β₁^k, this is β₁^|s-t|/(1 - β₁²). Its condition number grows with r to ((1 + β₁)/(1 - β₁))², which
    is 361 for β₁ = 0.9.

    Args:
        decay: the weights β₂^age, newest first, shape (r,).
        beta1: β₁ of the momentum in the window; 0 if the window holds gradients.
        nesterov: whether the window holds g + β₁ v; then h_0 = 1 + β₁ and h_k = β₁^(k + 1).
    """
    ages = torch.arange(decay.numel(), dtype=torch.float64, device=decay.device)
    lag = (ages[:, None] - ages).abs()
    powers = torch.as_tensor(beta1, dtype=torch.float64) ** lag
    tail = powers / (1 - beta1**2)  # Σ_k β₁^k β₁^(k + lag)
    if nesterov:
        first = torch.where(lag == 0, 1 + beta1, beta1 * powers) * (1 + beta1)
        tail = first + beta1**4 * tail
    return decay.double()[:, None] * tail * decay.double()


def _condition(eigenvalues: Tensor) -> float:
    return float(eigenvalues.max() / eigenvalues.min()) if eigenvalues.numel() else math.nan


def _last_quarter(items: Sequence[Any]) -> Sequence[Any]:
    return items[-max(1, math.ceil(len(items) / 4)) :]


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field
    return None if isinstance(value, float) and not math.isfinite(value) else value
