"""Generated adversaries: an optimizer, its options, and a sequence of gradients and edits that nobody would choose.

`generate` makes a case from random numbers, and `violations` lets it run beside the oracle. The properties are

- a step of finite gradients ends with finite parameters, or it is skipped and counted;
- a gradient that is not finite changes nothing, and is counted;
- an option that becomes nonsense raises, and changes nothing;
- the newest row is what the rule says, to rounding; all other rows are what they were;
- the step equals the oracle's step, to `tolerance`;
- the step is not longer than its promise.
"""

import itertools
import math
import warnings
from dataclasses import dataclass

import mpmath as mp
import torch
from oracle import RIDGE, Matrix, digits_for, exact, norm, polar_factor, standstill
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT

ROUNDING = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
SMALLEST = {torch.float64: 5e-324, torch.float32: 1e-45, torch.bfloat16: 1e-40}
WORTH_COMPARING = 0.1  # a step that float64 cannot know better than to this share of its length is not compared
LONGER = 1e-3
SOLVER = {"eigh": 0.0, "auto": 0.0, "cholesky": 1.0}

SHAPES = ([(2,)], [(3,)], [(2, 2)], [(5,)], [(2, 3), (2,)], [(3, 2), (1,), (2,)], [(12,)], [(3, 3), (3,)], [(1,), (1,)])
STREAMS = {}


def stream(make):
    """A kind of gradients: function(rng, steps, d) → list of lists of floats."""
    STREAMS[make.__name__] = make
    return make


def gauss(rng, d):
    return [min(max(rng.gauss(0, 1), -9.0), 9.0) for _ in range(d)]  # hypothesis likes to make it infinite


@stream
def plain(rng, steps, d):
    return [gauss(rng, d) for _ in range(steps)]


@stream
def constant(rng, steps, d):
    return [gauss(rng, d)] * steps


@stream
def collinear(rng, steps, d):
    base, size = gauss(rng, d), 10 ** rng.uniform(-9, -1)
    return [[x + size * y for x, y in zip(base, gauss(rng, d), strict=True)] for _ in range(steps)]


@stream
def conditioned(rng, steps, d):
    """Coordinates of sizes from 1 to 1e-8, turned by reflections."""
    mirror = gauss(rng, d)
    square = sum(x * x for x in mirror) or 1.0
    worst = rng.uniform(1, 8)
    found = []
    for _ in range(steps):
        x = [v * 10 ** (-worst * i / max(1, d - 1)) for i, v in enumerate(gauss(rng, d))]
        along = 2 * sum(a * b for a, b in zip(x, mirror, strict=True)) / square
        found.append([a - along * b for a, b in zip(x, mirror, strict=True)])
    return found


@stream
def graded(rng, steps, d):
    """Rows whose lengths fall or grow by orders of magnitude."""
    rate = rng.uniform(-4, 4)
    return [[x * 10 ** (rate * t) for x in gauss(rng, d)] for t in range(steps)]


@stream
def spiked(rng, steps, d):
    found, size = plain(rng, steps, d), 10 ** rng.choice([rng.uniform(-30, 30), rng.uniform(0, 10)])
    place = rng.randrange(steps)
    found[place] = [x * size for x in found[place]]
    return found


@stream
def zeros(rng, steps, d):
    return [[0.0] * d if rng.random() < 0.6 else gauss(rng, d) for _ in range(steps)]


@stream
def denormal(rng, steps, d):
    return [[x * 1e-40 for x in gauss(rng, d)] for _ in range(steps)]


@stream
def tiny(rng, steps, d):
    return [[x * 1e-30 for x in gauss(rng, d)] for _ in range(steps)]


@stream
def huge(rng, steps, d):
    size = rng.choice([1e18, 1e30, 1e37, 1e38])
    return [[max(-3.3, min(3.3, x)) * size for x in gauss(rng, d)] for _ in range(steps)]


@stream
def lonely(rng, steps, d):
    """One coordinate at a time."""
    found = [[0.0] * d for _ in range(steps)]
    for row in found:
        row[rng.randrange(d)] = gauss(rng, 1)[0]
    return found


@stream
def alternating(rng, steps, d):
    base = gauss(rng, d)
    return [[x * (-1) ** t for x in base] for t in range(steps)]


# ---- a case ----------------------------------------------------------------------------------------------------------

EDITS = {
    "lr": (0.0, 1e-3, 0.1, 1.0),
    "betas": ((0.0, 1.0), (0.5, 0.9), (0.9, 0.999), (0.3, 0.5)),
    "eps": (0.0, 1e-8, 1e-2),
    "jitter": (1e-8, 1e-6, 1e-3),
    "shrinkage": (0.0, 0.3, "auto"),
    "adjust_lr_fn": ("original", "mean", "match_rms_adamw", "keep_norm"),
    "solver": ("eigh", "cholesky", "auto"),
    "weight_decay": (0.0, 0.1),
}
NONSENSE = {
    "lr": (math.nan, math.inf, -1.0, "fast"),
    "betas": ((math.nan, 1.0), (1.0, 1.0), (0.5, 0.0), 3),
    "eps": (math.nan, -1e-8, None),
    "jitter": (math.nan, 1e-12, 2.0, -1.0),
    "shrinkage": (-0.1, math.nan, "much"),
    "adjust_lr_fn": ("longer", 3),
    "solver": ("svd", None),
    "weight_decay": (math.inf, -1.0),
    "window": (0, 3.5, 99),
}


@dataclass
class Event:
    """One step: its gradients (None: missing), edits of options, and the number that is put into a gradient."""

    gradients: list
    edits: dict
    nonsense: tuple | None = None
    poison: float | None = None


@dataclass
class Case:
    options: dict
    shapes: list
    dtype: torch.dtype
    kind: str
    values: list
    events: list

    def __str__(self):
        events = [(e.gradients, e.edits, e.nonsense, e.poison) for e in self.events]
        return f"{self.kind} {self.dtype} {self.shapes}\n  {self.options}\n  {events}"


def generate_options(rng):
    history = rng.choice(["momentum", "momentum", "gradient", "newest"])
    beta2 = rng.choice([1.0, 1.0, 0.999, 0.9, 0.5, 0.05])
    beta1 = rng.choice([0.0, 0.5, 0.9, 0.99])
    finish = rng.choice(["none"] * 5 + ["adam", "polar", "polar_exact", "polar_rows"])
    jitter = rng.choice([1e-6, 1e-6, 1e-6, 0.0, 1e-10, 1e-8, 1e-3, 1.0])
    return {
        "lr": rng.choice([1e-3, 0.1, 1.0, 10.0]),
        "betas": (min(beta1, beta2) if history == "gradient" else beta1, beta2),
        "eps": rng.choice([0.0, 0.0, 1e-8, 1e-8, 1e-3, 1.0, 1e3]),
        "weight_decay": rng.choice([0.0, 0.0, 0.01]),
        "window": rng.randint(1, 6),
        "window_dtype": rng.choice([None, torch.float32, torch.float64, torch.bfloat16]),
        "history": history,
        "scope": rng.choice(["model", "model", "group", "parameter"]),
        "finish": finish,
        "sgd_scale": rng.choice([0.0, 0.0, 0.0, 0.0, 0.1]),
        "jitter": jitter,
        "shrinkage": rng.choice([0.0, 0.0, 0.0, 0.25, 1.0, "auto"]),
        "nesterov": rng.random() < 0.2,
        "adjust_lr_fn": rng.choice(["original", "original", "match_rms_adamw", "mean", "keep_norm"]),
        "solver": "eigh" if jitter == 0 else rng.choice(["eigh", "cholesky", "auto"]),
        "maximize": rng.random() < 0.1,
    }


def generate(rng, most_steps=8):
    """A case from a `random.Random`."""
    options, shapes = generate_options(rng), rng.choice(SHAPES)
    sizes = [math.prod(shape) for shape in shapes]
    kind, steps = rng.choice(list(STREAMS)), rng.randint(1, most_steps)
    rows = STREAMS[kind](rng, steps, sum(sizes))
    hostile = rng.random() < 0.5
    events = []
    for row in rows:
        flat = iter(row)
        gradients = [[next(flat) for _ in range(size)] for size in sizes]
        event = Event(gradients, {})
        if hostile and rng.random() < 0.25:
            event.gradients[rng.randrange(len(sizes))] = None
        if hostile and rng.random() < 0.15:
            event.poison = rng.choice([math.nan, math.inf, -math.inf])
        if hostile and rng.random() < 0.15:
            name = rng.choice(list(NONSENSE))
            event.nonsense = name, rng.choice(NONSENSE[name])
        if hostile and rng.random() < 0.2:
            name = rng.choice(list(EDITS))
            event.edits = {name: rng.choice(EDITS[name])}
        events.append(event)
    values = [0.0] * sum(sizes) if rng.random() < 0.7 else gauss(rng, sum(sizes))
    return Case(options, shapes, rng.choice([torch.float32, torch.float64]), kind, values, events)


# ---- a run beside the oracle -----------------------------------------------------------------------------------------


def tolerance(step, rows, options):
    """How far a step may be from the oracle's, in units of its promise: one line for each cause.

    ==================  ===============================================================================================
    the r × r function  float64 knows M to r·2⁻⁵² of its trace, and the smallest eigenvalue that matters is ``floor``
    Cholesky's nodes    1e-7, and 1e-9 for float64 rows
    the share of noise  with shrinkage="auto"; float64 knows it to r·2⁻⁵² over the ridge of 1e-10
    adding up           numbers of size ``mass``: in float32 for float32 rows with the default jitter or more, else in
                        float64
    the step            is rounded once, to float32 or float64
    ==================  ===============================================================================================
    """
    size = options["window"]
    wide = rows == torch.float64
    in_float32 = rows == torch.float32 and options["jitter"] >= 1e-6
    promise = float(step.promise or 1.0)
    spread = 64 * size * 2.0**-52 / max(float(step.floor), 1e-300)
    nodes = SOLVER[options["solver"]] * (1e-9 if wide else 1e-7) * (1 if float(step.floor) > 0 else 0)
    added = float(step.mass) * size * (2.0**-23 if in_float32 else 2.0**-52)
    once = float(norm(step.u)) * (2.0**-52 if wide else 2.0**-23)
    share = size * 2.0**-52 / float(RIDGE) if options["shrinkage"] == "auto" else 0.0
    return (spread + nodes + share) * promise + added + once


class NotKnownError(Exception):
    """The oracle cannot say what is right from here on; the steps so far were."""


class Beside:
    """An optimizer and its oracle, step by step."""

    def __init__(self, case):
        self.case, self.options = case, dict(case.options)
        self.parameters = [nn.Parameter(torch.zeros(shape, dtype=case.dtype)) for shape in case.shapes]
        everyone = range(len(self.parameters))
        groups = [[0], [*everyone][1:]] if self.options["scope"] == "group" and len(everyone) > 1 else [[*everyone]]
        self.members = [[place] for place in everyone] if self.options["scope"] == "parameter" else groups
        self.blocks = groups
        self.optimizer = GGT([{"params": [self.parameters[i] for i in places]} for places in groups], **self.options)
        wide = case.dtype == torch.float64
        self.rows = self.options["window_dtype"] or (torch.float64 if wide else torch.float32)
        self.sums = torch.promote_types(self.rows, torch.float32)  # in which rows are summed before they are stored
        self.matrices = [Matrix(self.options["window"]) for _ in self.members]
        self.momentum = [[mp.mpf(0)] * p.numel() for p in self.parameters]
        self.sizes = [0.0 for _ in self.parameters]  # Σ β₁^age ‖g‖
        self.moments, self.averages = {}, {}
        self.seen, self.skipped, self.found, self.notes = set(), 0, [], []

    def say(self, *words):
        self.found.append(" ".join(str(word) for word in words))

    # ---- one step ----------------------------------------------------------------------------------------------------

    def run(self):
        for number, event in enumerate(self.case.events):
            self.number = number
            self.put(event)
            if event.nonsense is not None:
                self.refuse(*event.nonsense)
            self.edit(event.edits)
            before = self.picture()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.optimizer.step()
            self.judge(before)
            if self.found:
                break
        return self.found

    def put(self, event):
        values = iter(self.case.values)
        bad = event.poison
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, event.gradients, strict=True):
                own = [next(values) for _ in range(parameter.numel())]
                parameter.copy_(torch.tensor(own, dtype=torch.float64).view(parameter.shape))
                parameter.grad = None
                if gradient is not None:
                    found = torch.tensor(gradient, dtype=torch.float64).to(parameter.dtype).view(parameter.shape)
                    if bad is not None:
                        found.view(-1)[-1], bad = bad, None
                    parameter.grad = found

    def edit(self, edits):
        for name, value in edits.items():
            if (name, value) == ("solver", "cholesky") and self.options["jitter"] == 0:
                continue
            self.options[name] = value
            for group in self.optimizer.param_groups:
                group[name] = value

    def refuse(self, name, value):
        """An option that is nonsense must raise before anything is changed."""
        if all(p.grad is None for p in self.parameters) or (value == 99 and not self.optimizer.state):
            return
        before = self.picture()
        for group in self.optimizer.param_groups:
            group[name] = value
        try:
            self.optimizer.step()
            self.say(f"{name}={value!r} was taken")
        except (ValueError, TypeError):
            pass
        for group in self.optimizer.param_groups:
            group[name] = self.options[name]
        self.unchanged(before, f"after {name}={value!r} was refused")

    def picture(self):
        """All that a step could change, as copies."""
        state = {
            (place, key): value.clone()
            for place, p in enumerate(self.parameters)
            for key, value in self.optimizer.state.get(p, {}).items()
        }
        return [p.detach().clone() for p in self.parameters], state

    def unchanged(self, before, when):
        values, state = self.picture()
        if not all(torch.equal(one, other) for one, other in zip(before[0], values, strict=True)):
            self.say("parameters have changed", when)
        for key, value in state.items():
            old = before[1].get(key, torch.zeros_like(value))
            if key[1] != "skipped" and not torch.equal(old, value):
                self.say(f"state {key} has changed", when)

    def judge(self, before):
        present = {place for place, p in enumerate(self.parameters) if p.grad is not None}
        if not present:
            self.unchanged(before, "without a gradient")
            return
        self.seen |= present
        gradients = {place: self.parameters[place].grad.flatten().double().tolist() for place in present}
        finite = all(math.isfinite(x) for gradient in gradients.values() for x in gradient)
        counted, self.skipped = self.optimizer.skipped - self.skipped, self.optimizer.skipped
        if not finite and counted != 1:
            self.say("a gradient that is not finite was not counted")
        if finite and counted and not self.may_overflow(gradients):
            self.say("a step with finite gradients was skipped")
        if not finite or counted:
            self.unchanged(before, "in a step that was not taken")
            return
        values, state = self.picture()
        if not all(value.isfinite().all() for value in [*values, *state.values()]):
            self.say("a number is not finite after a step with finite gradients")
            return
        self.follow(before, gradients)

    def may_overflow(self, gradients):
        """Whether the row is near the end of its dtype."""
        beta1 = self.options["betas"][0]
        largest = max(
            (1 + beta1) * (max(map(abs, g), default=0.0) + beta1 * float(max(map(abs, self.momentum[i]))))
            for i, g in gradients.items()
        )
        return largest > 0.99 * torch.finfo(self.sums).max or largest > 1e150

    # ---- the oracle --------------------------------------------------------------------------------------------------

    def follow(self, before, gradients):
        rows = self.expected_rows(gradients)
        steps = []
        for matrix, members in zip(self.matrices, self.members, strict=True):
            present = gradients.keys() & set(members)
            steps.append(self.step_of(matrix, members, rows) if present else None)
        if self.options["finish"] != "none" and self.options["scope"] == "parameter":
            self.wait(steps, gradients)
        for members, step in zip(self.members, steps, strict=True):
            if step is not None and not self.found:
                self.compare(before, members, step, gradients)

    def wait(self, steps, gradients):
        """A finish counts a step in which a matrix holds no row, if another matrix of its param group holds one."""
        if any(matrix.rows for matrix in self.matrices):
            for place, members in enumerate(self.members):
                if steps[place] is None and gradients.keys() & set(members):
                    steps[place] = standstill(sum(self.parameters[i].numel() for i in members))

    def expected_rows(self, gradients):
        """What enters the window: exact, for each parameter."""
        sign = -1 if self.options["maximize"] else 1
        beta1, rows = mp.mpf(self.options["betas"][0]), {}
        for place, p in enumerate(self.parameters):
            if place not in gradients:
                rows[place] = [mp.mpf(0)] * p.numel()
                continue
            g = [sign * x for x in exact(gradients[place])]
            rows[place] = g
            if self.options["history"] == "momentum":
                self.sizes[place] = float(beta1) * self.sizes[place] + float(norm(g))
                self.momentum[place] = [x + beta1 * v for x, v in zip(g, self.momentum[place], strict=True)]
                rows[place] = self.momentum[place]
                if self.options["nesterov"]:
                    rows[place] = [x + beta1 * v for x, v in zip(g, self.momentum[place], strict=True)]
            else:
                self.sizes[place] = float(norm(g))
        return rows

    def step_of(self, matrix, members, rows):
        """The oracle's step of one matrix; zeros if the row does not enter the window."""
        entry = next(
            self.optimizer.state[self.parameters[i]]
            for i in members
            if "position" in self.optimizer.state[self.parameters[i]]
        )
        smallest = SMALLEST[self.rows]
        largest = max(abs(x) for i in members for x in rows[i])
        enters = largest > smallest / 2 if not matrix.rows or self.options["history"] == "newest" else True
        count = int(entry["count"])
        if smallest / 4 < largest < 2 * smallest and (not matrix.rows or self.options["history"] == "newest"):
            if count == matrix.size:
                raise NotKnownError  # it is zero after rounding, or it is not, and a full window does not tell
            enters = count > len(matrix.rows)
        if enters:
            stored = self.stored_row(members, rows, (int(entry["position"]) - 1) % matrix.size)
            matrix.push(stored, exact(self.options["betas"]))
        if count != len(matrix.rows):
            self.say(f"{count} rows are in the window, and not {len(matrix.rows)}")
            return None
        finishes = self.options["finish"] != "none"
        elements = sum(self.parameters[i].numel() for i in members if i in self.seen)
        if not matrix.rows:
            return None
        step = matrix.step(self.options, elements, finishes)
        if not enters:
            step.u = [mp.mpf(0)] * len(step.u)
        return step

    def stored_row(self, members, rows, slot):
        """The newest row as it is stored, after a look whether it is what the rule says."""
        found = []
        for place in members:
            p = self.parameters[place]
            entry = self.optimizer.state.get(p, {})
            if "window" not in entry:  # it has had no gradient yet
                found += [mp.mpf(0)] * p.numel()
                continue
            stored = exact(entry["window"][slot].flatten().double().tolist())
            scale = 8 * self.sizes[place] * ROUNDING[self.sums] + 100 * SMALLEST[self.sums]
            for one, other in zip(stored, rows[place], strict=True):
                if abs(one - other) > scale + abs(other) * ROUNDING[self.rows] + SMALLEST[self.rows]:
                    self.say(f"the newest row has {float(one)!r}, and the rule says {float(other)!r}")
                    return found
            found += stored
        return found

    def compare(self, before, members, step, gradients):
        """Parameters after the step, against the oracle's; and the length of the step, against its promise."""
        ends = list(itertools.accumulate([self.parameters[i].numel() for i in members], initial=0))
        moved, wanted, grain = [], [], 0.0
        for place, left, right in zip(members, ends, ends[1:], strict=False):
            if place not in gradients:
                if not torch.equal(self.parameters[place].detach(), before[0][place]):
                    self.say("a parameter without a gradient has moved")
                continue
            own = self.moved(before, place)
            if self.options["finish"] == "none":
                moved += own
                wanted += [self.options["lr"] * step.scale * x for x in step.u[left:right]]
                grain += 4 * float(before[0][place].double().norm()) * ROUNDING[self.case.dtype]
            else:
                self.compare_finish(place, own, step.u[left:right], step)
        if self.options["finish"] == "none" and not self.found:
            self.compare_step(step, moved, wanted, grain)

    def moved(self, before, place):
        """How far a parameter has gone, beside its decay."""
        old, new = (exact(p.detach().flatten().double().tolist()) for p in (before[0][place], self.parameters[place]))
        keep = 1 - mp.mpf(self.options["lr"]) * mp.mpf(self.options["weight_decay"])
        return [keep * x - y for x, y in zip(old, new, strict=True)]

    def compare_step(self, step, moved, wanted, grain):
        lr, scale, length = self.options["lr"], float(step.scale), float(norm(step.u))
        underflow = 8 * SMALLEST[self.case.dtype] + 8 * lr * max(1.0, scale) * SMALLEST[self.sums]
        allowed, keep_norm = tolerance(step, self.rows, self.options), self.options["adjust_lr_fn"] == "keep_norm"
        if keep_norm:  # the length is known, and the direction is as good as u is
            allowed *= 2
        rounding = 4 * ROUNDING[self.case.dtype] * length
        off = float(norm([x - y for x, y in zip(moved, wanted, strict=True)])) - grain - underflow
        unit = lr * scale * float(step.promise or 1.0)
        known = allowed < WORTH_COMPARING * (length if keep_norm else float(step.promise or length))
        kind = f"{str(self.rows)[6:]}, jitter {'0' if self.options['jitter'] == 0 else '> 0'}"
        if known and unit > 0 and step.promise is not None and not keep_norm:
            self.notes.append((f"error / promise, {kind}", off / unit))
        if known and off > lr * scale * (allowed + rounding):
            promise = float(step.promise or 1.0)
            self.say(
                f"the step is off by {off / unit:.2e} of its promise, {(allowed + rounding) / promise:.2e} is right"
            )
        if step.promise is not None:
            bound = lr * (min(float(step.vector), 1e18) if keep_norm else scale * float(step.promise))
            long = float(norm(moved)) - grain - underflow
            if bound > 0:
                self.notes.append((f"length / promise, {kind}", long / bound))
            if long > bound * (1 + LONGER):
                self.say(f"the step has length {long:.9e}, and {bound:.9e} is promised")

    def compare_finish(self, place, moved, u, step):
        """The step of one parameter after its finish."""
        self.place = place
        shape, finish, lr = self.case.shapes[place], self.options["finish"], self.options["lr"]
        grain = 8 * ROUNDING[self.case.dtype] * (1 + sum(abs(x) for x in self.case.values)) + lr * 1e-6
        error = float(step.scale) * (tolerance(step, self.rows, self.options) + 1e-6 * float(norm(u)))
        u = [step.scale * x for x in u]
        if finish == "adam" or len(shape) < 2:
            found = self.moments.setdefault(place, Moments(len(u)))
            for x, (wanted, allowed) in zip(moved, found.step(u, error, self.options), strict=True):
                if allowed is not None and abs(x - lr * wanted) > lr * allowed + grain:
                    self.say(f"Adam's quotient is {float(x / lr)}, and {float(wanted)} is right to {allowed:.1e}")
            return
        m, error = self.averages.setdefault(place, Average(len(u))).step(u, error, self.options)
        longest = 0.2 * math.sqrt(max(shape)) * math.sqrt(min(shape)) * 1.03
        if float(norm(moved)) > lr * longest + grain:
            self.say(f"the step of a polar factor has length {float(norm(moved)) / lr}, and at most {longest} is right")
        elif finish != "polar_rows":
            self.compare_polar([x / (lr * 0.2 * math.sqrt(max(shape))) for x in moved] if lr else [], m, error, grain)

    def compare_polar(self, found, m, error, grain):
        """A polar factor against the one in extended precision, where the step is known well enough to have one.

        ``found`` is flat, and so is m, of which float64 can know each length to ``error``. If E is added to a matrix,
        its polar factor moves by at most 3 ‖E‖/σ, where σ is the smallest singular value.
        """
        shape, lr = self.case.shapes[self.place], self.options["lr"]
        rows = [m[i * shape[1] : (i + 1) * shape[1]] for i in range(shape[0])]
        with mp.workdps(digits_for(rows)):
            factor, smallest, largest = polar_factor(rows)
        if not found or factor is None or smallest < largest / 100:
            return  # smaller singular values are not promised to become one
        allowed = 3 * error / float(smallest) + 1e-6 + grain / (lr * 0.2)
        if allowed > WORTH_COMPARING:
            return
        off = float(norm([x - y for x, y in zip(found, itertools.chain(*factor), strict=True)])) / math.sqrt(min(shape))
        promised = 0.01 if self.options["finish"] == "polar" else 0.0
        self.notes.append((f"error of {self.options['finish']}", off))
        if off > allowed + promised:
            self.say(f"the polar factor is off by {off:.2e} for each singular value, {allowed + promised:.2e} is right")


class Average:
    """The first moment of a finish, and how well it can be known."""

    def __init__(self, size):
        self.first, self.error = [mp.mpf(0)] * size, 0.0

    def step(self, u, error, options):
        """(m, its error) after a step u that is known to an error."""
        if options["history"] != "gradient":
            return u, error
        beta1 = mp.mpf(options["betas"][0])
        self.first = [beta1 * x + (1 - beta1) * y for x, y in zip(self.first, u, strict=True)]
        self.error = float(beta1) * self.error + (1 - float(beta1)) * error
        if not options["nesterov"]:
            return self.first, self.error
        return [beta1 * x + (1 - beta1) * y for x, y in zip(self.first, u, strict=True)], self.error + error


class Moments:
    """Adam's quotient of each element: exact, and how well it can be known from a step that is known to an error."""

    def __init__(self, size):
        self.first, self.second = [mp.mpf(0)] * size, [mp.mpf(0)] * size
        self.errors = [[mp.mpf(0), mp.mpf(0)] for _ in range(size)]  # of the first moment, and of the second
        self.number = 0

    def step(self, u, error, options):
        """(m̂/(√v̂ + ε), its error or None where it is not known) for each element."""
        averages, ahead = options["history"] == "gradient", int(options["nesterov"])
        beta1, beta, eps = mp.mpf(options["betas"][0]), mp.mpf("0.999"), mp.mpf(options["eps"])
        self.number += 1
        found = []
        for i, x in enumerate(u):
            self.first[i] = beta1 * self.first[i] + (1 - beta1) * x if averages else x
            self.second[i] = beta * self.second[i] + (1 - beta) * x * x
            of_first, of_second = self.errors[i]
            of_first = beta1 * of_first + (1 - beta1) * error if averages else mp.mpf(error)
            of_second = beta * of_second + (1 - beta) * (2 * abs(x) * error + error**2) + mp.mpf("1e-44")  # underflow
            self.errors[i] = [of_first, of_second]
            m = beta1 * self.first[i] + (1 - beta1) * x if averages and ahead else self.first[i]
            m /= 1 - beta1 ** (self.number + ahead) if averages else 1
            of_first /= 1 - beta1 ** (self.number + ahead) if averages else 1
            correction = 1 - beta**self.number
            root = mp.sqrt(self.second[i] / correction) + eps
            if root == 0 or of_second > self.second[i] / 100:  # the sign of a zero, or nearly
                found.append((mp.mpf(0), None))
                continue
            relative = of_second / self.second[i]
            found.append((m / root, float(2 * of_first / root + abs(m / root) * relative + mp.mpf("1e-6"))))
        return found


def violations(case):
    """What is wrong with the steps of a case, in words, and the numbers that were seen; no words if all is well."""
    with mp.workdps(50):
        run = Beside(case)
        try:
            return run.run(), run.notes
        except NotKnownError:
            return [], run.notes
        except Exception as error:
            return [f"{type(error).__name__}: {error}"], run.notes
