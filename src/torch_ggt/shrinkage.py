r"""How much of a window is noise, and a second-moment matrix that is whitened only as far as it is not.

The full matrix of a few gradients is a poor estimate where gradients are mostly noise: whitening then divides by the
accidents of the window. Statistics has a remedy, which is to shrink the estimate towards a multiple of the identity:

.. math:: M_q = (1 - q)\,M + q\,\mathrm{tr}(M)\,I

With q = 0 the step is whitened, as in the paper. With q = 1 it has the direction of the raw vector. The window itself
can say what q should be: a row that the other rows explain is signal, and what they do not explain of it is noise.
"""

import torch
from torch import Tensor

__all__ = ["RIDGE", "noise_share", "shrunk"]

# Added to a matrix of correlations, whose diagonal is one: its Cholesky factor exists for collinear rows, too.
RIDGE = 1e-10


def noise_share(gram: Tensor) -> Tensor:
    r"""The noise in a window: the mean share of a row that lies outside the span of the other rows, in [0, 1].

    .. math:: q_i = \frac{\min_c \|w_i - \sum_{j \ne i} c_j w_j\|^2}{\|w_i\|^2} = \frac{1}{K_{ii}\,(K^{-1})_{ii}}

    One row alone is all noise. Full-batch gradients of a smooth loss have shares of 1e-4 and less. It does not depend
    on the lengths of the rows, nor on their decay.

    Args:
        gram: K = W Wᵀ, float64, shape (..., r, r). A row of zeros counts as one that is not there.

    Returns:
        the mean of q_i over the rows that are there, shape (...); zero for an empty window.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> noise_share(rows @ rows.T)
        tensor(0.5000, dtype=torch.float64)
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    there = squares > 0
    scale = torch.where(there, squares, 1.0).rsqrt()
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    correlations = scale[..., :, None] * gram * scale[..., None, :] + (~there).diag_embed() + RIDGE * identity
    factor, failed = torch.linalg.cholesky_ex(correlations)
    inverse = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
    shares = there / inverse.square().sum(-2)
    mean = shares.sum(-1).div_(there.sum(-1).clamp_min_(1)).clamp_(0.0, 1.0)
    return torch.where(failed == 0, mean, 0.0)  # no factor: rounding made collinear rows indefinite, which is no noise


def shrunk(moment: Tensor, share: Tensor | float) -> Tensor:
    """M_q = (1 - q) M + q tr(M) I, for M (..., r, r) and q (...) or a number."""
    share = share[..., None, None] if isinstance(share, Tensor) else share  # a tensor of a number: the host would wait
    trace = moment.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    identity = torch.eye(moment.shape[-1], dtype=moment.dtype, device=moment.device)
    return (1 - share) * moment + share * trace * identity
