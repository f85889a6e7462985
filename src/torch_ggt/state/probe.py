"""A Gram matrix against its rows, in one pass: K z = W (Wᵀ z) for a few vectors z."""

import torch
from torch import Tensor

__all__ = ["Probe"]

_BLOCK = 2**18  # elements of a window that are widened to float64 at a time
_PROBES = 2
_TOLERANCE = 1e-9  # of a cosine between two rows


class Probe:
    """K z against W (Wᵀ z) for a few z, in units in which every row has length one."""

    def __init__(self, gram: Tensor) -> None:
        diagonal = gram.diagonal()
        self.gram, self.scale = gram, torch.where(diagonal > 0, diagonal.rsqrt(), 1.0)
        generator = torch.Generator("cpu").manual_seed(0)  # alike on all ranks
        signs = torch.randint(0, 2, (_PROBES, len(gram)), generator=generator, device="cpu").double() * 2 - 1
        self.z = signs * self.scale
        self.measured = torch.zeros_like(self.z)

    def add(self, window: Tensor, weight: float) -> None:
        """Add what the columns of ``window`` give to W (Wᵀ z)."""
        rows = window.detach().reshape(window.shape[0], -1)
        z = self.z.to(rows.device)
        for part in torch.split(rows, max(1, _BLOCK // len(rows)), 1):
            wide = part.double()
            self.measured += weight * ((z @ wide) @ wide.T).cpu()

    def agrees(self, measured: Tensor) -> bool:
        """Whether K z is what was ``measured`` over all ranks."""
        symmetric = bool(((self.gram - self.gram.T).abs() * self.scale * self.scale[:, None] <= _TOLERANCE).all())
        off = (self.z @ self.gram - measured.view_as(self.z)).abs() * self.scale
        return symmetric and bool((off <= _TOLERANCE * len(self.gram)).all())
