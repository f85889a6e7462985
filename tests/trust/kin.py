"""Generated adversaries for the relatives of GGT and for `whiten`, beside an oracle of 50 digits.

As `adversaries`, which is about GGT and its options. The formulas are those of docs/relatives.md and of torch.optim,
written down once more in mpmath; rows are given as they are stored. The properties are

- a step of finite gradients ends with finite parameters, or it is skipped and counted;
- a gradient that is not finite changes nothing, and is counted; in front of another optimizer it stays as it is;
- the newest row is what the rule says, to rounding;
- the step equals the oracle's step, to the tolerance of `adversaries`, which `Known` follows through momentum;
- a gradient that was whitened has the length that is promised.
"""

import itertools
import math
import warnings
from dataclasses import dataclass

import mpmath as mp
import torch
from adversaries import ROUNDING, SHAPES, SMALLEST, STREAMS, WORTH_COMPARING, Event
from oracle import LONGEST, combined, digits_for, dot, exact, gram, inverse_root, norm
from torch import nn

from torch_ggt import Adadelta, AdaGrad, NAdam, RMSprop, whiten

MEMBERS = ("RMSprop", "RMSprop with momentum", "NAdam", "AdaGrad", "Adadelta", "whiten(SGD)")
SOLVERS = {"eigh": 0.0, "auto": 0.0, "cholesky": 1.0}


@dataclass
class Case:
    member: str
    own: dict
    options: dict
    shapes: list
    dtype: torch.dtype
    kind: str
    events: list

    def __str__(self):
        events = [(e.gradients, e.poison) for e in self.events]
        return f"{self.member} {self.kind} {self.dtype} {self.shapes}\n  {self.own} {self.options}\n  {events}"


def own_options(member, rng):
    """The options that only this member has."""
    if member.startswith("RMSprop"):
        momentum = rng.choice([0.3, 0.9, 0.99]) if "momentum" in member else 0.0
        return {"alpha": rng.choice([0.05, 0.5, 0.9, 0.99, 0.999]), "momentum": momentum}
    if member == "NAdam":
        beta2 = rng.choice([1.0, 0.999, 0.9, 0.3])
        beta1 = min(rng.choice([0.0, 0.5, 0.9]), 0.99 * math.sqrt(beta2))
        return {"betas": (beta1, beta2), "momentum_decay": rng.choice([0.0, 4e-3, 0.3])}
    if member == "Adadelta":
        return {"rho": rng.choice([0.05, 0.5, 0.9, 0.99])}
    if member == "AdaGrad":
        return {}
    return {"decay": rng.choice([1.0, 0.9, 0.3]), "shrinkage": rng.choice([0.0, 0.25]), "keep_norm": rng.random() < 0.5}


def generate(rng, most_steps=8):
    """A case from a `random.Random`."""
    member, shapes = rng.choice(MEMBERS), rng.choice(SHAPES)
    sizes = [math.prod(shape) for shape in shapes]
    jitter = rng.choice([1e-6, 1e-6, 1e-8, 1e-3, 0.0])
    options = {
        "eps": rng.choice([1e-8, 1e-3, 1.0] if member == "Adadelta" else [0.0, 1e-8, 1e-3, 1.0]),
        "window": rng.randint(1, 6),
        "window_dtype": rng.choice([None, torch.float32, torch.float64, torch.bfloat16]),
        "scope": rng.choice(["model", "parameter"]),
        "jitter": jitter,
        "solver": "eigh" if jitter == 0 else rng.choice(["eigh", "cholesky", "auto"]),
    }
    kind, steps = rng.choice(list(STREAMS)), rng.randint(1, most_steps)
    events, hostile = [], rng.random() < 0.4
    for row in STREAMS[kind](rng, steps, sum(sizes)):
        flat = iter(row)
        event = Event([[next(flat) for _ in range(size)] for size in sizes], {})
        if hostile and rng.random() < 0.2:
            event.gradients[rng.randrange(len(sizes))] = None
        if hostile and rng.random() < 0.15:
            event.poison = rng.choice([math.nan, math.inf])
        events.append(event)
    dtype = rng.choice([torch.float32, torch.float64])
    return Case(member, own_options(member, rng), options, shapes, dtype, kind, events)


# ---- what is known of a vector ---------------------------------------------------------------------------------------


@dataclass
class Known:
    """A vector in extended precision, and the length that the library's vector may be off by."""

    vector: list
    error: float

    def plus(self, other, factor):
        vector = [x + factor * y for x, y in zip(self.vector, other.vector, strict=True)]
        return Known(vector, self.error + abs(float(factor)) * other.error)


def nothing(size):
    return Known([mp.mpf(0)] * size, 0.0)


class Ring:
    """Rows as they are stored, the youngest last, and their decay weights."""

    def __init__(self, size):
        self.size, self.rows, self.decay, self.pushed = size, [], [], 0

    def push(self, row, beta):
        self.decay = [*(d * beta for d in self.decay), mp.mpf(1)][-self.size :]
        self.rows = [*self.rows, row][-self.size :]
        self.pushed += 1

    def columns(self, weights=None):
        return [[d * x for x in row] for d, row in zip(weights or self.decay, self.rows, strict=True)]


def root_step(columns, a, *, size, eps, jitter, shift=0, q=0, rows, solver):
    """c and how well it is known, for c = [((1-q)M + q tr(M) I + shift + δ)^½ + ε]⁻¹ a and Known u = G c."""
    moment = gram(columns)
    trace = mp.fsum(moment[i, i] for i in range(len(a)))
    missing = size - len(a)  # rows of zeros, which the identity reaches, too
    moment = (1 - q) * moment + (q * trace + shift) * mp.eye(len(a))
    trace = mp.fsum(moment[i, i] for i in range(len(a))) + missing * (q * trace + shift)
    c, floor = inverse_root(moment, a, eps, jitter * trace / size)
    u = combined(columns, c)
    relative = float(floor / trace) if trace > 0 else math.inf
    spread = 64 * size * 2.0**-52 / max(relative, 1e-300) if relative > 0 else math.inf
    wide = rows == torch.float64
    nodes = SOLVERS[solver] * (1e-9 if wide else 1e-7)
    mass = float(mp.sqrt(mp.fsum((x * norm(w)) ** 2 for x, w in zip(c, columns, strict=True))))
    in_float32 = rows == torch.float32 and jitter >= 1e-6
    added = mass * size * (2.0**-23 if in_float32 else 2.0**-52)
    return c, Known(u, (spread + nodes) * float(norm(a)) + added + float(norm(u)) * (2.0**-52 if wide else 2.0**-23))


# ---- a run beside the oracle -----------------------------------------------------------------------------------------


class Beside:
    """An optimizer and its oracle, step by step. Parameters start at zero in each step, so that no digit is lost."""

    def __init__(self, case):
        self.case, self.o = case, case.options
        self.parameters = [nn.Parameter(torch.zeros(shape, dtype=case.dtype)) for shape in case.shapes]
        makers = {"NAdam": NAdam, "AdaGrad": AdaGrad, "Adadelta": Adadelta}
        if case.member == "whiten(SGD)":
            self.outer = whiten(torch.optim.SGD(self.parameters, lr=1.0), **self.o, **case.own)
            self.optimizer = self.outer.whitening
        else:
            member = makers.get(case.member, RMSprop)
            self.outer = self.optimizer = member(self.parameters, lr=1.0, **self.o, **case.own)
        everyone = [*range(len(self.parameters))]
        self.members = [[i] for i in everyone] if self.o["scope"] == "parameter" else [everyone]
        wide = case.dtype == torch.float64
        self.rows = self.o["window_dtype"] or (torch.float64 if wide else torch.float32)
        self.sums = torch.promote_types(self.rows, torch.float32)
        self.rings = [Ring(self.o["window"]) for _ in self.members]
        self.updates = [Ring(self.o["window"]) for _ in self.members]
        self.buffers = [nothing(p.numel()) for p in self.parameters]
        self.turns = [(0, mp.mpf(1), []) for _ in self.members]  # NAdam: steps, Π μ, weights of momentum
        self.skipped, self.found, self.notes, self.lost = 0, [], [], False

    def say(self, *words):
        self.found.append(" ".join(map(str, words)))

    def run(self):
        for event in self.case.events:
            self.put(event)
            before = [None if p.grad is None else p.grad.clone() for p in self.parameters]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.outer.step()
            if any(grad is not None for grad in before):
                self.judge(before)
            if self.found or self.lost:
                break
        return self.found

    def put(self, event):
        bad = event.poison
        with torch.no_grad():
            for p, gradient in zip(self.parameters, event.gradients, strict=True):
                p.zero_()
                p.grad = None
                if gradient is not None:
                    p.grad = torch.tensor(gradient, dtype=torch.float64).to(p.dtype).view(p.shape)
                    if bad is not None:
                        p.grad.view(-1)[-1], bad = bad, None

    def judge(self, before):
        finite = all(bool(grad.isfinite().all()) for grad in before if grad is not None)
        counted, self.skipped = self.optimizer.skipped - self.skipped, self.optimizer.skipped
        whitens = self.case.member == "whiten(SGD)"
        if not finite:
            stayed = [
                grad is None or torch.equal(grad.nan_to_num(), p.grad.nan_to_num())
                for grad, p in zip(before, self.parameters, strict=True)
            ]
            moved = not whitens and any(bool(p.detach().any()) for p in self.parameters)
            if counted != 1 or moved or not all(stayed):
                self.say(f"a gradient that is not finite was counted {counted} times; moved: {moved}, stayed: {stayed}")
            return
        if counted:
            largest = max(float(grad.abs().max()) for grad in before if grad is not None)
            if largest < 1e-3 * min(torch.finfo(self.sums).max, 1e150):
                self.say("a step with finite gradients was skipped")
            self.lost = True  # the steps so far were right
            return
        if not all(bool(p.detach().isfinite().all()) for p in self.parameters):
            self.say("a parameter is not finite after a step with finite gradients")
            return
        for number, members in enumerate(self.members):
            if any(before[i] is not None for i in members) and not self.found:
                self.compare(number, members, before)

    # ---- the oracle --------------------------------------------------------------------------------------------------

    def compare(self, number, members, before):
        gradient = [
            [mp.mpf(0)] * self.parameters[i].numel()
            if before[i] is None
            else exact(before[i].flatten().double().tolist())
            for i in members
        ]
        known = self.step_of(number, members, gradient, [before[i] is not None for i in members])
        if known is None or self.found or self.lost:
            return
        moved, wanted, left = [], [], 0
        for i in members:
            right = left + self.parameters[i].numel()
            if before[i] is not None:
                moved += [-x for x in exact(self.parameters[i].detach().flatten().double().tolist())]
                wanted += known.vector[left:right]
            elif bool(self.parameters[i].detach().any()):
                self.say("a parameter without a gradient has moved")
            left = right
        length = float(norm(wanted))
        off = float(norm([x - y for x, y in zip(moved, wanted, strict=True)]))
        allowed = known.error + 8 * ROUNDING[self.case.dtype] * length
        allowed += 16 * len(moved) * (SMALLEST[self.case.dtype] + SMALLEST[self.sums])
        if not math.isfinite(allowed) or allowed > WORTH_COMPARING * max(length, known.error):
            return
        if length > 0:
            self.notes.append((f"error / length, {self.case.member}", off / length))
        if off > allowed:
            self.say(f"{self.case.member}: the step is off by {off:.3e} of {length:.3e}, {allowed:.1e} is right")

    def stored(self, members, rows, slot, window="window"):
        """The newest row as it is stored, after a look whether it is what the rule says."""
        found = []
        for i, row in zip(members, rows, strict=True):
            entry = self.optimizer.state.get(self.parameters[i], {})
            if window not in entry:
                found += [mp.mpf(0)] * self.parameters[i].numel()
                continue
            held = exact(entry[window][slot].flatten().double().tolist())
            if window == "window":
                for one, other in zip(held, row, strict=True):
                    scale = abs(other) * (ROUNDING[self.rows] + 8 * ROUNDING[self.sums])
                    if abs(one - other) > scale + SMALLEST[self.rows] + 100 * SMALLEST[self.sums]:
                        self.say(f"the newest row has {float(one)!r}, and the rule says {float(other)!r}")
                        return found
            found += held
        return found

    def owner(self, members):
        return next(s for i in members if "position" in (s := self.optimizer.state.get(self.parameters[i], {})))

    def step_of(self, number, members, gradient, present):
        """The oracle's step of one matrix as Known; None where nothing can be compared."""
        own, ring = self.case.own, self.rings[number]
        root = {"alpha": own.get("alpha"), "rho": own.get("rho")}
        mean = next((mp.mpf(value) for value in root.values() if value is not None), None)
        factor = mp.sqrt(1 - mean) if mean is not None else mp.mpf(1)
        rows = [[factor * x for x in part] for part in gradient]
        entry = self.owner(members)
        largest = max(abs(x) for part in rows for x in part)
        count = int(entry["count"])
        newest_only = self.case.member == "whiten(SGD)"
        if SMALLEST[self.rows] / 8 < largest < 4 * SMALLEST[self.rows] and (newest_only or not ring.rows):
            self.lost = True  # it is zero after rounding, or it is not
            return None
        enters = largest > SMALLEST[self.rows] / 2 or (bool(ring.rows) and not newest_only)
        if enters:
            row = self.stored(members, rows, (int(entry["position"]) - 1) % ring.size)
            if self.found:
                return None
            ring.push(row, self.aging(mean))
        if count != len(ring.rows):
            self.say(f"{count} rows are in the window, and not {len(ring.rows)}")
            return None
        if not ring.rows:
            return nothing(sum(map(len, gradient)))
        if newest_only and not enters:
            return nothing(sum(map(len, gradient)))
        with mp.workdps(digits_for([*ring.rows, *self.updates[number].rows])):
            step = getattr(self, {"whiten(SGD)": "whitened", "NAdam": "nadam", "AdaGrad": "adagrad",
                                  "Adadelta": "adadelta"}.get(self.case.member, "rmsprop"))  # fmt: skip
            return step(number, members, present, factor)

    def aging(self, mean):
        if mean is not None:
            return mp.sqrt(mean)
        if self.case.member == "NAdam":
            return mp.sqrt(mp.mpf(self.case.own["betas"][1]))
        return mp.mpf(self.case.own.get("decay", 1))

    def solve(self, columns, a, **how):
        given = {"size": self.o["window"], "eps": mp.mpf(self.o["eps"]), "jitter": mp.mpf(self.o["jitter"])}
        return root_step(columns, a, rows=self.rows, solver=self.o["solver"], **{**given, **how})

    @staticmethod
    def newest(ring, value=1):
        return [mp.mpf(0)] * (len(ring.rows) - 1) + [mp.mpf(value)]

    def rmsprop(self, number, members, present, factor):
        """b ← μ b + [V^½ + ε]⁻¹ g; the buffer of a parameter without a gradient stays."""
        ring, left = self.rings[number], 0
        _, u = self.solve(ring.columns(), self.newest(ring, 1 / factor))
        if self.case.own["momentum"] == 0:
            return u
        whole = []
        for i, here in zip(members, present, strict=True):
            size = self.parameters[i].numel()
            part = Known(u.vector[left : left + size], u.error)
            if here:
                self.buffers[i] = part.plus(self.buffers[i], mp.mpf(self.case.own["momentum"]))
                self.buffers[i].error += 2 * ROUNDING[self.sums] * float(norm(self.buffers[i].vector))  # it is stored
            whole += self.buffers[i].vector
            left += size
        return Known(whole, sum(self.buffers[i].error for i in members))

    def adagrad(self, number, members, present, factor):
        """V is the sum of all g gᵀ since the ring began at its first slot."""
        ring = self.rings[number]
        since = (ring.pushed - 1) % ring.size + 1
        weights = [mp.mpf(age >= len(ring.rows) - since) for age in range(len(ring.rows))]
        return self.solve(ring.columns(weights), self.newest(ring))[1]

    def nadam(self, number, members, present, factor):
        """[V̂^½ + ε]⁻¹ of (1-μ_t)/(1-Π μ) g + μ_{t+1}/(1-Π μ·μ_{t+1}) m."""
        ring, (beta1, _) = self.rings[number], map(mp.mpf, self.case.own["betas"])
        turn, product, weights = self.turns[number]
        turn, decay = turn + 1, mp.mpf(self.case.own["momentum_decay"])
        mu, ahead = (beta1 * (1 - mp.mpf("0.5") * mp.mpf("0.96") ** (t * decay)) for t in (turn, turn + 1))
        product *= mu
        weights = [*(beta1 * w for w in weights), 1 - beta1][-ring.size :]
        self.turns[number] = turn, product, weights
        total = norm(ring.decay)
        of_g, of_m = (1 - mu) / (1 - product), ahead / (1 - product * ahead)
        wanted = [of_m * w for w in weights]
        wanted[-1] += of_g
        a = [w * total / d for w, d in zip(wanted, ring.decay, strict=True)]
        return self.solve(ring.columns([d / total for d in ring.decay]), a)[1]

    def adadelta(self, number, members, present, factor):
        """(S + ε)^½ (V + ε)^-½ g with f(S) p = √ε p + H [(HᵀH + ε)^½ + √ε]⁻¹ Hᵀ p; both roots have the jitter, too."""
        ring, updates, eps = self.rings[number], self.updates[number], mp.mpf(self.o["eps"])
        zero = mp.mpf(0)
        _, p = self.solve(ring.columns(), self.newest(ring, 1 / factor), eps=zero, shift=eps)
        p = self.here(p, members, present)  # a parameter without a gradient has no part in (V + ε)^-½ g
        u = Known([mp.sqrt(eps) * x for x in p.vector], float(mp.sqrt(eps)) * p.error)
        if updates.rows:
            H = updates.columns()
            projected = [dot(h, p.vector) for h in H]
            _, more = self.solve(H, projected, eps=mp.sqrt(eps), shift=eps)
            u = u.plus(more, 1)
            rounded = 2.0**-17 if self.rows == torch.bfloat16 else 0.0  # see `Window.products`
            of_p = p.error + float(norm(p.vector)) * rounded
            u.error += of_p * float(norm([norm(h) for h in H]))  # ‖H [(HᵀH + ε)^½ + √ε]⁻¹ Hᵀ‖ ≤ ‖H‖
        u.error += 4 * ROUNDING[self.sums] * float(norm(u.vector))  # both terms are rounded, and their sum
        u = self.here(u, members, present)  # and it makes no step
        entry = self.owner(members)
        slot = (int(entry["updates_position"]) - 1) % updates.size
        if int(entry["updates_count"]) > min(len(updates.rows), updates.size - 1) or norm(u.vector) > 0:
            updates.push(self.stored(members, [[]] * len(members), slot, "updates"), mp.sqrt(1 - factor**2))
        return u

    def here(self, known, members, present):
        """Zeros for the parameters that have no gradient."""
        ends = itertools.accumulate((self.parameters[i].numel() for i in members), initial=0)
        parts = [known.vector[a:b] for a, b in itertools.pairwise(ends)]
        kept = [part if there else [mp.mpf(0)] * len(part) for part, there in zip(parts, present, strict=True)]
        return Known([*itertools.chain(*kept)], known.error)

    def whitened(self, number, members, present, factor):
        """s [...]⁻¹ g with s for the length of g, or for a mean over the rows."""
        ring, q = self.rings[number], mp.mpf(self.case.own["shrinkage"])
        _, u = self.solve(ring.columns(), self.newest(ring), q=q)
        length, raw = norm(u.vector), norm(ring.rows[-1])
        s = norm(ring.decay) if not self.case.own["keep_norm"] else raw / length if length > 0 else mp.mpf(0)
        if self.case.own["keep_norm"] and s * length > LONGEST:
            s = LONGEST / length
        return Known([s * x for x in u.vector], 2 * float(s) * u.error)


def violations(case):
    """What is wrong with the steps of a case, in words, and the numbers that were seen; no words if all is well."""
    with mp.workdps(50):
        run = Beside(case)
        try:
            return run.run(), run.notes
        except Exception as error:
            return [f"{type(error).__name__}: {error}"], run.notes
