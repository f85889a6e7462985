import math

import pytest
import scipy.special
import torch

from torch_ggt.quadrature import _complete_elliptic, _jacobi_sc, inverse_sqrt_nodes


@pytest.mark.parametrize("ratio", [1e-8, 1e-5, 1e-2, 0.5, 0.99])
def test_elliptic_functions_agree_with_scipy(ratio):
    period, strip = _complete_elliptic(ratio), _complete_elliptic(math.sqrt(1 - ratio**2))
    assert period == pytest.approx(scipy.special.ellipkm1(ratio**2), rel=1e-12)
    for fraction in (0.01, 0.2, 0.5):
        sn, cn, _, _ = scipy.special.ellipj(fraction * period, 1 - ratio**2)
        assert _jacobi_sc(fraction * period, period, strip, ratio) == pytest.approx(sn / cn, rel=1e-7)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8, 1e-11])
@pytest.mark.parametrize(("low", "high"), [(3e-5, 2.0), (1e-3, 2.0), (0.9, 1.0), (1e-8, 1e3)])
def test_rule_keeps_its_tolerance_on_the_whole_interval(low, high, tolerance):
    shifts, weights = inverse_sqrt_nodes(low, high, tolerance)
    roots = torch.logspace(math.log10(low), math.log10(high), 500, dtype=torch.float64)
    roots.clamp_(low, high)
    shift, weight = torch.tensor(shifts, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    values = (weight / (shift + roots[:, None] ** 2)).sum(1)
    assert (values * roots - 1).abs().max() <= tolerance
    assert min(weights) > 0


def test_number_of_nodes_is_as_derived():
    # 1/√λ on a spectrum of condition (1/low)²: the published count for r = 256, jitter 1e-6, with room for ε.
    low = math.sqrt(1e-6 / 256) / 2
    assert len(inverse_sqrt_nodes(low, 2.0, 1e-8).shifts) == 26


@pytest.mark.parametrize(
    ("low", "high", "tolerance"), [(0.0, 1.0, 0.1), (2.0, 1.0, 0.1), (0.1, 1.0, 0.0), (0.1, 1.0, 1.5)]
)
def test_refuses_what_has_no_rule(low, high, tolerance):
    with pytest.raises(ValueError, match="must"):
        inverse_sqrt_nodes(low, high, tolerance)
