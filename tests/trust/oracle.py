"""The step of GGT in extended precision, from its formula alone. It shares no code with the library.

    u = [(G Gᵀ + δI)^½ + εI]⁻¹ G a,   δ = jitter·tr(GᵀG)/r

The columns of G are the last r rows, each times its decay weight. The rows are given as they are stored. All else is
mpmath, with 50 digits, and with more digits where the rows of a window differ by many orders of magnitude.
"""

from dataclasses import dataclass, field

import mpmath as mp

DIGITS = 50
RIDGE = mp.mpf("1e-10")  # added to the correlations of the rows: the definition of the share of noise
LONGEST = mp.mpf("1e18")  # of a step that promises no length


def exact(values):
    """Floats as numbers of mpmath; nothing is rounded."""
    return [mp.mpf(value) for value in values]


def dot(one, other):
    return mp.fsum(x * y for x, y in zip(one, other, strict=True))


def norm(vector):
    return mp.sqrt(dot(vector, vector))


def combined(vectors, coefficients):
    """Σ c_i v_i."""
    return [mp.fsum(c * x for c, x in zip(coefficients, column, strict=True)) for column in zip(*vectors, strict=True)]


def gram(vectors):
    found = mp.matrix(len(vectors), len(vectors))
    for i, one in enumerate(vectors):
        for j in range(i + 1):
            found[i, j] = found[j, i] = dot(one, vectors[j])
    return found


def digits_for(rows):
    """50, and twice the orders of magnitude between the largest and the smallest number of the rows."""
    sizes = [abs(x) for row in rows for x in row if x != 0]
    return DIGITS if not sizes else DIGITS + 2 * int(mp.log10(max(sizes) / min(sizes)) + 1)


@dataclass
class Step:
    """A step, and what is known about how well it can be computed.

    Attributes:
        u: before the factor s and before lr.
        scale: s of adjust_lr_fn.
        promise: ‖a‖, which bounds ‖u‖; None where no length is promised.
        floor: the smallest eigenvalue that matters of M + δI, in units of its trace. Numbers of float64 find it with a
            relative error of about 2⁻⁵²/floor.
        mass: (Σ c_i² ‖w_i‖²)^½, which is the size of what is added up to make u.
        vector: ‖G a‖.
    """

    u: list
    scale: mp.mpf
    promise: mp.mpf | None
    floor: mp.mpf
    mass: mp.mpf
    vector: mp.mpf


def standstill(size):
    """The step of a window that holds no row."""
    one = mp.mpf(1)
    return Step([mp.mpf(0)] * size, scale=one, promise=one, floor=one, mass=mp.mpf(0), vector=mp.mpf(0))


@dataclass
class Matrix:
    """The window of one full matrix: rows with their weights, the youngest last."""

    size: int
    rows: list = field(default_factory=list)
    decay: list = field(default_factory=list)
    momentum: list = field(default_factory=list)

    def push(self, row, betas):
        self.decay = [beta * betas[1] for beta in self.decay] + [mp.mpf(1)]
        self.momentum = [beta * betas[0] for beta in self.momentum] + [mp.mpf(1)]
        self.rows = [*self.rows, row]
        for kept in (self.rows, self.decay, self.momentum):
            del kept[: -self.size]

    def target(self, history, nesterov, beta1, finishes):
        """The coefficients a of the vector that is preconditioned."""
        newest = [mp.mpf(0)] * (len(self.rows) - 1) + [mp.mpf(1)]
        if history != "gradient" or finishes:
            return newest
        sums = [m / d for m, d in zip(self.momentum, self.decay, strict=True)]
        return [n + beta1 * s for n, s in zip(newest, sums, strict=True)] if nesterov else sums

    def noise_share(self):
        """The mean share of a row that the other rows do not explain: 1/(C⁻¹)_ii for the correlations C."""
        rows = [[x / norm(row) for x in row] for row in self.rows if norm(row) > 0]
        if not rows:
            return mp.mpf(0)
        inverse = (gram(rows) + RIDGE * mp.eye(len(rows))) ** -1
        mean = mp.fsum(1 / inverse[i, i] for i in range(len(rows))) / len(rows)
        return min(max(mean, mp.mpf(0)), mp.mpf(1))

    def step(self, options, elements, finishes):
        with mp.workdps(digits_for(self.rows)):
            return self._step(options, elements, finishes)

    def _step(self, options, elements, finishes):
        columns = [[d * x for x in row] for d, row in zip(self.decay, self.rows, strict=True)]  # of G
        a = self.target(options["history"], options["nesterov"], mp.mpf(options["betas"][0]), finishes)
        q = options["shrinkage"]
        q = self.noise_share() if q == "auto" else mp.mpf(q)
        moment = gram(columns)
        trace = mp.fsum(moment[i, i] for i in range(len(a)))
        missing = self.size - len(a)  # rows of zeros, which the identity reaches, too
        moment = (1 - q) * moment + q * trace * mp.eye(len(a))
        trace = mp.fsum(moment[i, i] for i in range(len(a))) + missing * q * trace
        c, floor = inverse_root(moment, a, mp.mpf(options["eps"]), mp.mpf(options["jitter"]) * trace / self.size)
        c = [x + mp.mpf(options["sgd_scale"]) * y for x, y in zip(c, a, strict=True)]
        u, v = combined(columns, c), combined(columns, a)
        scale = self.scale(options["adjust_lr_fn"], elements, finishes, norm(v), norm(u))
        free = options["sgd_scale"] != 0 or options["adjust_lr_fn"] == "keep_norm"
        if free and norm(u) * scale > LONGEST:
            scale = LONGEST / norm(u)
        return Step(
            u=u,
            scale=scale,
            promise=None if options["sgd_scale"] != 0 else norm(a),
            floor=mp.inf if trace == 0 else floor / trace,
            mass=mp.sqrt(mp.fsum((x * norm(w)) ** 2 for x, w in zip(c, columns, strict=True))),
            vector=norm(v),
        )

    def scale(self, adjust, elements, finishes, raw, whitened):
        if adjust == "mean" or (adjust == "match_rms_adamw" and finishes):
            return norm(self.decay)
        if adjust == "match_rms_adamw":
            return mp.mpf("0.2") * mp.sqrt(elements)
        if adjust == "keep_norm":
            return raw / whitened if whitened > 0 else mp.mpf(0)
        return mp.mpf(1)


def inverse_root(moment, a, eps, delta):
    """[(M + δI)^½ + εI]⁻¹ a on the range of M, and the smallest eigenvalue of M + δI there."""
    values, vectors = mp.eigsy(moment)
    largest = max([abs(value) for value in values] + [mp.mpf(0)])
    result, floor = [mp.mpf(0)] * len(a), mp.inf
    for index, value in enumerate(values):
        shifted = delta + (value if value > largest * mp.mpf(10) ** (15 - mp.mp.dps) else 0)
        if shifted == 0:
            continue  # G times this vector is zero
        direction = [vectors[i, index] for i in range(len(a))]
        gain = dot(direction, a) / (mp.sqrt(shifted) + eps)
        result = [x + gain * y for x, y in zip(result, direction, strict=True)]
        floor = min(floor, shifted)
    return result, floor


def polar_factor(rows):
    """(U Vᵀ as rows of mpf, the smallest and the largest singular value) of a matrix U Σ Vᵀ; None for a zero."""
    wide = len(rows) <= len(rows[0])
    given = rows if wide else [list(column) for column in zip(*rows, strict=True)]
    values, vectors = mp.eigsy(gram(given))
    values = [max(value, mp.mpf(0)) for value in values]
    if min(values) == 0:
        return None, mp.mpf(0), mp.sqrt(max(values))
    count = len(given)
    root = mp.matrix(count, count)  # (X Xᵀ)^-½
    for i in range(count):
        for j in range(count):
            root[i, j] = mp.fsum(vectors[i, k] * vectors[j, k] / mp.sqrt(values[k]) for k in range(count))
    factor = [combined(given, [root[i, j] for j in range(count)]) for i in range(count)]
    factor = factor if wide else [list(column) for column in zip(*factor, strict=True)]
    return factor, mp.sqrt(min(values)), mp.sqrt(max(values))
