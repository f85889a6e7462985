r"""The paper's formulas, dense, slow and literal, in float64: the specification that everything fast is tested against.

It imports nothing from the fast path, and works by the SVD of G rather than by eigenvalues of GᵀG or GGᵀ, which lose
half of the digits. Every method maps a sequence of stochastic gradients (1-D tensors) to a sequence of steps u_t, to be
used as x ← x - η·u_t. Symbols are the paper's: window r, decay β₂, G_t with columns g_{t-k} = β₂^k ∇f(x_{t-k}).
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = [
    "FinishReference",
    "GGTReference",
    "dense_adadelta",
    "dense_adagrad",
    "dense_nadam",
    "dense_rmsprop",
    "diagonal_adagrad",
    "diagonal_forgetting",
    "full_adagrad",
    "full_forgetting",
    "inverse_root",
    "polar_factor",
    "rmsprop",
]

_ROUNDING = 2.0**-52


def inverse_root(G: Tensor, v: Tensor, *, eps: float, jitter: float = 0.0) -> Tensor:
    r"""[(GGᵀ + δI)^½ + εI]⁻¹ v with δ = jitter·tr(GᵀG)/r, by the SVD G = U Σ Vᵀ.

    .. math:: u = U_r[(\Sigma_r^2+\delta)^{1/2} + \varepsilon]^{-1}U_r^\top v
                + \frac{1}{\sqrt\delta+\varepsilon}(I - U_rU_r^\top)v

    A singular value below rounding counts as zero, and a complement below rounding as none: without that the factor
    1/ε multiplies noise. With ε = δ = 0 the complement is dropped (the pseudo-inverse).

    Args:
        G: shape (d, r), columns already decayed; r counts empty columns, too.
        v: shape (d,).
        eps: ε ≥ 0.
        jitter: relative to the mean eigenvalue of GᵀG.

    Returns:
        u, float64, shape (d,).
    """
    G, v = G.double(), v.double()
    delta = jitter * float(G.square().sum()) / G.shape[1]
    U, sigma, _ = torch.linalg.svd(G, full_matrices=False)
    largest = float(sigma[0]) if sigma.numel() else 0.0
    rank = int((sigma > max(G.shape) * _ROUNDING * largest).sum())
    U, sigma = U[:, :rank], sigma[:rank]
    inside = U.T @ v
    u: Tensor = U @ (inside / ((sigma.square() + delta).sqrt() + eps))
    complement = v - U @ inside
    complement -= U @ (U.T @ complement)
    floor = delta**0.5 + eps
    if floor > 0 and float(complement.norm()) > max(G.shape) * _ROUNDING * float(v.norm()):
        u = u + complement / floor
    return u


def full_adagrad(gradients: Iterable[Tensor], *, eps: float) -> list[Tensor]:
    """Full-matrix AdaGrad: G_t holds every gradient so far."""
    return full_forgetting(gradients, beta2=1.0, eps=eps)


def full_forgetting(gradients: Iterable[Tensor], *, beta2: float, eps: float) -> list[Tensor]:
    """Full-matrix adaptivity with exponential forgetting and no window: Algorithm 1 with r = ∞."""
    columns: list[Tensor] = []
    steps = []
    for gradient in gradients:
        columns = [gradient.double(), *(beta2 * column for column in columns)]
        steps.append(inverse_root(torch.stack(columns, 1), gradient, eps=eps))
    return steps


def diagonal_adagrad(gradients: Iterable[Tensor], *, eps: float) -> list[Tensor]:
    """Diagonal AdaGrad: the off-diagonal entries of GGᵀ set to zero."""
    return diagonal_forgetting(gradients, beta2=1.0, eps=eps)


def diagonal_forgetting(gradients: Iterable[Tensor], *, beta2: float, eps: float) -> list[Tensor]:
    """Adam without its heuristics, weighted as Algorithm 1 weighs: the diagonal of GGᵀ, gradients decayed by β₂."""
    steps = []
    squares: Tensor | float = 0.0
    for gradient in gradients:
        g = gradient.double()
        squares = beta2**2 * squares + g.square()
        steps.append(g / (squares.sqrt() + eps))
    return steps


def rmsprop(gradients: Iterable[Tensor], *, beta2: float, eps: float) -> list[Tensor]:
    """RMSprop as published (Adam without momentum and bias correction): a running mean of the squares."""
    steps = []
    mean_square: Tensor | float = 0.0
    for gradient in gradients:
        g = gradient.double()
        mean_square = beta2 * mean_square + (1 - beta2) * g.square()
        steps.append(g / (mean_square.sqrt() + eps))
    return steps


class GGTReference:
    """Algorithm 1, with the paper's tweaks: momentum, momentum in the window, decoupled ε, jitter.

    Args:
        window: r.
        eps: ε.
        jitter: δ = jitter·tr(GᵀG)/r.
        history: what the columns of G are, "gradient" (as printed) or "momentum".
        nesterov: precondition (and, with history="momentum", store) the look-ahead g + β₁v.
        sgd_scale: the decoupled 1/ε: adds sgd_scale·v to the step.
        truncate_momentum: with history="gradient", sum momentum over the window only, so that it stays in the span of
            G. False is the literal form, whose remainder outside of the span is multiplied by 1/ε.

    Example:
        >>> ggt = GGTReference(window=2, eps=0.0)
        >>> ggt.step(torch.tensor([3.0, 4.0]), betas=(0.0, 1.0))
        tensor([0.6000, 0.8000], dtype=torch.float64)
    """

    def __init__(
        self,
        *,
        window: int,
        eps: float,
        jitter: float = 0.0,
        history: str = "gradient",
        nesterov: bool = False,
        sgd_scale: float = 0.0,
        truncate_momentum: bool = True,
    ) -> None:
        self.window = window
        self.eps = eps
        self.jitter = jitter
        self.history = history
        self.nesterov = nesterov
        self.sgd_scale = sgd_scale
        self.truncate_momentum = truncate_momentum
        self.preconditioned = torch.empty(0, dtype=torch.float64)
        """v, the vector that the last step preconditioned."""
        self._momentum: Tensor | float = 0.0
        self._gradients: list[Tensor] = []  # newest first, as are the next two
        self._columns: list[Tensor] = []
        self._betas: list[tuple[float, float]] = []

    def step(self, gradient: Tensor, *, betas: tuple[float, float]) -> Tensor:
        """The step u for one more gradient; ``betas`` are those of this step."""
        g = gradient.double()
        beta1, _ = betas
        self._gradients.insert(0, g)
        self._betas.insert(0, betas)
        self._momentum = beta1 * self._momentum + g
        v = self._momentum
        if self.history == "gradient" and self.truncate_momentum:
            v = self._decayed(self._gradients, which=0).sum(1)
        if self.nesterov:
            v = g + beta1 * v
        self.preconditioned = v
        self._columns.insert(0, v if self.history == "momentum" else g)
        G = self._decayed(self._columns, which=1)
        return inverse_root(G, v, eps=self.eps, jitter=self.jitter) + self.sgd_scale * v

    def _decayed(self, vectors: list[Tensor], *, which: int) -> Tensor:
        """The last r vectors as columns, each times β₁ (which = 0) or β₂ (1) once per step of age."""
        columns = torch.zeros(vectors[0].numel(), self.window, dtype=torch.float64)
        weight = 1.0
        for age, vector in enumerate(vectors[: self.window]):
            columns[:, age] = weight * vector
            weight *= self._betas[age][which]  # the step after which this vector's successor came
        return columns


def polar_factor(matrix: Tensor) -> Tensor:
    """U Vᵀ of a matrix U Σ Vᵀ, by the SVD; singular values below rounding are dropped."""
    U, sigma, Vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    kept = sigma > max(matrix.shape) * _ROUNDING * sigma.max()
    factor: Tensor = U[:, kept] @ Vt[kept]
    return factor


class FinishReference:
    """What becomes of the steps u of one tensor: the literal form of every finish.

    Two orders of averaging and whitening exist. "Whiten, then average" (history="gradient"): u is the step of
    `GGTReference` with β₁ = 0, and ``averages`` is true. "Average, then whiten" (history="momentum"): u is the step of
    `GGTReference` with its momentum, and ``averages`` is false.

    Args:
        finish: "adam", "polar" or "polar_rows"; a tensor that is no matrix is finished by "adam".
        averages: whether m ← β₁ m + (1 - β₁) u takes the place of u.
        eps: ε of "adam".
        beta: the decay of the running squares; None: 0.999, for "polar_rows" 0.95.
        split: how many matrices stand in each matrix, one below the other.
        polar: the function that takes a matrix to its polar factor.

    Example:
        >>> FinishReference("adam", averages=False, eps=0.0).step(torch.tensor([3.0, -4.0]), beta1=0.9)
        tensor([ 1., -1.], dtype=torch.float64)
    """

    def __init__(
        self,
        finish: str,
        *,
        averages: bool,
        eps: float,
        beta: float | None = None,
        split: int = 1,
        polar: Callable[[Tensor], Tensor] = polar_factor,
    ) -> None:
        self.finish, self.averages, self.eps, self.beta = finish, averages, eps, beta
        self.split, self.polar = split, polar
        self._time = 0
        self._first: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0
        self._row_squares: dict[int, Tensor] = {}

    def step(self, u: Tensor, *, beta1: float, nesterov: bool = False) -> Tensor:
        """The finished step, for one more u."""
        u = u.double()
        self._time += 1
        m, weight = u, 1.0
        if self.averages:
            self._first = m = beta1 * self._first + (1 - beta1) * u
            weight = 1 - beta1**self._time  # the sum of the weights of all u in m
            if nesterov:
                m, weight = beta1 * m + (1 - beta1) * u, 1 - beta1 ** (self._time + 1)
        if self.finish != "adam" and u.dim() > 1:
            return self._by_matrices(m)
        beta = 0.999 if self.beta is None else self.beta
        self._squares = beta * self._squares + (1 - beta) * u.square()
        return (m / weight) / ((self._squares / (1 - beta**self._time)).sqrt() + self.eps)

    def _by_matrices(self, m: Tensor) -> Tensor:
        """Each matrix of a stack, of a convolution (out × rest), or of a matrix that is split, by itself."""
        stack = list(m) if m.dim() == 3 else [m.reshape(m.shape[0], -1)]
        blocks = [block for matrix in stack for block in matrix.chunk(self.split)]
        return torch.cat([self._of_matrix(i, block) for i, block in enumerate(blocks)]).reshape(m.shape)

    def _of_matrix(self, index: int, matrix: Tensor) -> Tensor:
        factor: Tensor = self.polar(matrix)
        if self.finish == "polar_rows":
            beta, length = 0.95 if self.beta is None else self.beta, factor.norm()
            mean_squares = factor.square().mean(1, keepdim=True)
            before = self._row_squares.get(index, torch.zeros_like(mean_squares))
            self._row_squares[index] = beta * before + (1 - beta) * mean_squares
            factor = factor / (self._row_squares[index].sqrt() + 1e-10)
            factor = factor * length / (factor.norm() + 1e-10)
        return factor * (0.2 * math.sqrt(max(matrix.shape)))


# ---- the relatives: V = G Gᵀ with G of shape (d, window), newest column first ----------------------------------------
#
# ``diagonal`` removes the off-diagonal entries of V: with a window as long as the run, what is left is torch.optim's.


def dense_adagrad(
    gradients: Iterable[Tensor], *, window: int, eps: float, jitter: float = 0.0, diagonal: bool = False
) -> list[Tensor]:
    """V ← V + g gᵀ, from zero again after every ``window`` steps; u = [V^½ + εI]⁻¹ g."""
    columns: list[Tensor] = []
    steps = []
    for gradient in gradients:
        columns = [gradient.double(), *(columns if len(columns) < window else [])]
        steps.append(_inverse_root(_padded(columns, window), columns[0], eps, jitter, diagonal))
    return steps


def dense_rmsprop(
    gradients: Iterable[Tensor],
    *,
    window: int,
    alpha: float,
    eps: float,
    momentum: float = 0.0,
    jitter: float = 0.0,
    diagonal: bool = False,
) -> list[Tensor]:
    """V ← α V + (1 - α) g gᵀ; u = [V^½ + εI]⁻¹ g; b ← μ b + u is the step."""
    columns: list[Tensor] = []
    steps = []
    b: Tensor | float = 0.0
    for gradient in gradients:
        g = gradient.double()
        columns = [(1 - alpha) ** 0.5 * g, *(alpha**0.5 * column for column in columns)][:window]
        b = momentum * b + _inverse_root(_padded(columns, window), g, eps, jitter, diagonal)
        steps.append(b)
    return steps


def dense_nadam(
    gradients: Iterable[Tensor],
    *,
    window: int,
    betas: tuple[float, float],
    eps: float,
    momentum_decay: float,
    jitter: float = 0.0,
    diagonal: bool = False,
) -> list[Tensor]:
    """V̂ and m over the window; u = [V̂^½ + εI]⁻¹ ((1 - μ_t)/(1 - Πμ_{≤t}) g + μ_{t+1}/(1 - Πμ_{≤t+1}) m)."""
    beta1, beta2 = betas
    kept: list[Tensor] = []
    steps, product = [], 1.0
    for t, gradient in enumerate(gradients, start=1):
        kept = [gradient.double(), *kept][:window]
        total = sum(beta2**age for age in range(len(kept)))
        columns = [(beta2**age / total) ** 0.5 * g for age, g in enumerate(kept)]
        m = sum((1 - beta1) * beta1**age * g for age, g in enumerate(kept))
        mu, ahead = (beta1 * (1 - 0.5 * 0.96 ** (time * momentum_decay)) for time in (t, t + 1))
        product *= mu
        y = (1 - mu) / (1 - product) * kept[0] + ahead / (1 - product * ahead) * m
        steps.append(_inverse_root(_padded(columns, window), y, eps, jitter, diagonal))
    return steps


def dense_adadelta(
    gradients: Iterable[Tensor], *, window: int, rho: float, eps: float, jitter: float = 0.0, diagonal: bool = False
) -> list[Tensor]:
    """V ← ρ V + (1 - ρ) g gᵀ; u = (S + εI)^½ (V + εI)^(-½) g; S ← ρ S + (1 - ρ) u uᵀ.

    The jitter δ = jitter·(tr/window + ε) of each matrix makes (V + εI) to (V + εI + δI), and √(x + ε) of an eigenvalue
    x of S to √ε + x/(√(x + ε + δ) + √ε).
    """
    G: list[Tensor] = []
    H: list[Tensor] = []
    steps = []
    for gradient in gradients:
        g = gradient.double()
        G = [(1 - rho) ** 0.5 * g, *(rho**0.5 * column for column in G)][:window]
        V, S = (_padded(columns, window, g.numel()) for columns in (G, H))
        V, S = V @ V.T, S @ S.T
        of_v, of_s = (eps + jitter * (float(matrix.trace()) / window + eps) for matrix in (V, S))
        p = _applied(lambda x: (x + of_v).rsqrt(), V, g, diagonal)  # noqa: B023 - called at once
        u = _applied(lambda x: eps**0.5 + x / ((x + of_s).sqrt() + eps**0.5), S, p, diagonal)  # noqa: B023
        H = [(1 - rho) ** 0.5 * u, *(rho**0.5 * column for column in H)][:window]
        steps.append(u)
    return steps


def _padded(columns: list[Tensor], window: int, size: int = 0) -> Tensor:
    """The columns side by side, and zeros where the window is not filled."""
    zeros = torch.zeros(columns[0].numel() if columns else size, dtype=torch.float64)
    return torch.stack([*columns, *[zeros] * (window - len(columns))], 1)


def _inverse_root(G: Tensor, v: Tensor, eps: float, jitter: float, diagonal: bool) -> Tensor:
    return v / (G.square().sum(1).sqrt() + eps) if diagonal else inverse_root(G, v, eps=eps, jitter=jitter)


def _applied(function: Callable[[Tensor], Tensor], matrix: Tensor, v: Tensor, diagonal: bool) -> Tensor:
    """function(matrix) v, by its eigenvalues."""
    if diagonal:
        return function(matrix.diagonal()) * v
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    found: Tensor = vectors @ (function(eigenvalues.clamp_min(0)) * (vectors.T @ v))
    return found
