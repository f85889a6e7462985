"""A Gram matrix against its rows, in one pass for each of a few vectors z: zᵀ K z = ‖Wᵀ z‖².

K - W Wᵀ is symmetric, so zᵀ (K - W Wᵀ) z is a polynomial in z that is zero for all z only if the two matrices are
equal. Random z find a difference with probability one; the size of their entries lies between 1 and 2, so that a
difference in one entry is never made smaller.
"""

import torch
from torch import Tensor

__all__ = ["Probe"]

_BLOCK = 2**20  # elements of a window that are widened to float64 at a time: long runs that stay in the cache
_PROBES = 2
_TOLERANCE = 1e-9  # of a cosine between two rows


class Probe:
    """zᵀ K z against ‖Wᵀ z‖² for a few z, in units in which every row has length one."""

    def __init__(self, gram: Tensor) -> None:
        diagonal = gram.diagonal()
        self.gram, self.scale = gram, torch.where(diagonal > 0, diagonal.rsqrt(), 1.0)
        generator = torch.Generator("cpu").manual_seed(0)  # alike on all ranks
        spread = torch.rand(_PROBES, len(gram), generator=generator, device="cpu", dtype=torch.float64) * 2 - 1
        self.z = (spread + spread.sign()) * self.scale
        self.measured = torch.zeros(_PROBES, dtype=torch.float64, device="cpu")

    def add(self, window: Tensor, weight: float) -> None:
        """Add what the columns of ``window`` give to ‖Wᵀ z‖²."""
        rows = window.detach().reshape(window.shape[0], -1)
        z = self.z.to(rows.device)
        width = min(rows.shape[1], max(1, _BLOCK // len(rows)))
        block = torch.empty(len(rows), width, dtype=torch.float64, device=rows.device)
        found = torch.zeros_like(self.measured, device=rows.device)
        for part in torch.split(rows, width, 1):
            wide = block[:, : part.shape[1]].copy_(part)
            for number, own in enumerate(z):
                sums = torch.mv(wide.t(), own)
                found[number] += torch.dot(sums, sums)
        self.measured += weight * found.cpu()

    def agrees(self, measured: Tensor) -> bool:
        """Whether zᵀ K z is what was ``measured`` over all ranks."""
        symmetric = bool(((self.gram - self.gram.T).abs() * self.scale * self.scale[:, None] <= _TOLERANCE).all())
        expected = (self.z @ self.gram * self.z).sum(1)
        return symmetric and bool(((expected - measured).abs() <= _TOLERANCE * len(self.gram)).all())
