"""What runs under compute-sanitizer: every Triton kernel in every variant that a step can start, and whole steps.

``python tests/trust/sanitizer_work.py DEVICE PART PARTS WHAT`` runs one part of the cases. WHAT is "cases", "graphs"
(only the cases with a CUDA graph) or "planted:NAME" (one deliberate error). On a CPU it needs TRITON_INTERPRET=1.
Each case says when it begins and ends, because the sanitizer writes its findings between these lines::

    CASE name | DONE name seconds | FAILED name what | LAUNCHED {kernel: number of variants}
"""

import collections
import itertools
import json
import os
import sys
import time
import warnings

import torch
import triton
import triton.language as tl
from torch import nn

from ggt_lab.optimizers.paper_ggt import PaperGGT
from torch_ggt import GGT, NAdam, RMSprop, backends, whiten
from torch_ggt.backends import triton as triton_backend
from torch_ggt.backends.triton import coded, launch, noise, passes, ring, root, tensors
from torch_ggt.backends.triton.spans import Spans
from torch_ggt.formats import FORMATS

DEVICE = sys.argv[1] if __name__ == "__main__" else "cpu"
MODULES = (coded, noise, passes, ring, root, tensors)
INTERPRETED = DEVICE == "cpu"
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
CODED = [name for name, stored in FORMATS.items() if stored.coded and not stored.host]
#: Sizes, borders and strides: odd ones, an empty matrix, several pieces of one matrix, many matrices, all aligned.
GEOMETRIES = [
    (1, [0, 1], 1),
    (2, [0, 5, 5, 9], 9),
    (9, [0, 64, 700, 701, 1300], 1333),
    (8, [0, 64, 1024, 1088], 1088),
    (33, [0, 640], 704),
    (5, [0, 64, 9000], 9001),
    (3, [64 * i for i in range(41)], 2560),
]
BLOCKS = [(1, [0, 64]), (9, [0, 64, 64, 704, 1344]), (5, [0, 64, 9024])]
CASES = {}
GRAPHS = {}

launched = collections.Counter()


def case(*choices):
    """Register a function as a case for each combination of choices."""

    def register(work):
        for chosen in itertools.product(*choices):
            CASES[" ".join([work.__name__, *map(str, chosen)])] = lambda chosen=chosen: work(*chosen)
        return work

    return register


def remember_launches():
    """Have every module count what it starts: kernel, dtypes of its tensors, and constants."""

    def counting(kernel, programs, *arguments, **options):
        dtypes = [str(x.dtype)[6:] for x in arguments if isinstance(x, torch.Tensor)]
        name = f"{kernel.fn.__module__.rsplit('.', 1)[-1]}.{kernel.fn.__name__}"
        launched[f"{name} {' '.join(dtypes)} {options}"] += 1
        launch.launch(kernel, programs, *arguments, **options)

    for module in MODULES:
        module.launch = counting


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype)


# ---- single kernels --------------------------------------------------------------------------------------------------


@case(FLOATS, range(len(GEOMETRIES)))
def both_passes(dtype, which):
    """W v and Wᵀ c. v is float32 in a step, unless parameters or rows are float64; `expand` writes that dtype."""
    size, borders, stride = GEOMETRIES[which]
    rows = torch.zeros(size, stride, dtype=dtype, device=DEVICE)[:, : borders[-1]]
    rows.copy_(normal(*rows.shape))
    spans = Spans(borders, size, DEVICE)
    for wide in (torch.float32, torch.float64):
        if INTERPRETED and dtype == torch.bfloat16 and wide == torch.float64:
            continue  # the interpreter cannot convert these
        sums = passes.gram_row(rows, normal(borders[-1], dtype=wide), spans)
        out = torch.empty(borders[-1], dtype=wide, device=DEVICE)
        passes.expand(rows, normal(len(borders) - 1, size, dtype=torch.float64), spans, out)
        agree(sums[0, :1].isfinite().all(), "a sum is not finite")
        agree(out.isfinite().all(), "a column was not written")


@case((1, 2, 7, 20, 33, 64, 200), (1, 5), (0, 1))
def admit(size, batch, accepts):
    """A ring that wraps around; some matrices refuse."""
    steps = size + 2 if size < 40 else 4
    gram, (decay, momentum) = new(batch, size, size), (new(batch, size) for _ in range(2))
    position, count = (torch.zeros(batch, dtype=torch.int64, device=DEVICE) for _ in range(2))
    if size >= 40:  # begin shortly before the end
        position += size - 2
        count += size
    for step in range(steps):
        accept = torch.ones(batch if accepts else (), dtype=torch.bool, device=DEVICE)
        if step == 1 and accepts:
            accept[0] = False
        sums = normal(batch, size + 1, dtype=torch.float64).abs()
        ring.admit(sums, accept, (gram, decay, momentum, position, count), (0.9, 0.999))
    agree((position < size).all() and (gram == gram.mT).all(), "the ring is not what it should be")


def new(*shape):
    return torch.zeros(*shape, dtype=torch.float64, device=DEVICE)


@case(FLOATS, range(len(GEOMETRIES)), ("alone", "carry", "carry the row"))
def write(dtype, which, carried):
    size, borders, stride = GEOMETRIES[which]
    rows = torch.zeros(size, stride, dtype=dtype, device=DEVICE)[:, : borders[-1]]
    row = normal(borders[-1], dtype=torch.promote_types(dtype, torch.float32))
    target, source = torch.zeros_like(row), torch.ones_like(row)
    carry = {"alone": None, "carry": (target, source), "carry the row": (target, row)}[carried]
    slots = torch.tensor([(i % (size + 1)) - 1 for i in range(len(borders) - 1)], device=DEVICE)  # -1: not taken
    ring.write(rows, row, slots, Spans(borders, size, DEVICE), carry)


@case((1, 5, 16, 18, 33, 64, 200), (1, 12, 40), (0.0, 1e-8, 1e4))
def solve(size, batch, eps):
    if (size > (20 if batch == 1 else 5) or batch > 12) and (INTERPRETED or (batch > 1 and size != 5)):
        return  # 40 matrices of five rows have more problems than a launch has programs; more would say nothing new
    G = normal(batch, size + 3, size, dtype=torch.float64)
    decay, rhs = torch.ones(batch, size, dtype=torch.float64, device=DEVICE), normal(batch, size, dtype=torch.float64)
    tolerance = 1e-2 if INTERPRETED else 1e-8
    found = root.coefficients(G.mT @ G, decay, rhs, eps=eps, jitter=1e-6, tolerance=tolerance)
    agree(found.isfinite().all(), "a coefficient is not finite")


@case((1, 5, 16, 18, 33, 64, 200), (1, 12))
def noise_share(size, batch):
    if size > 20 and INTERPRETED:
        return
    G = normal(batch, size + 3, size, dtype=torch.float64)
    found = noise.noise_share(G.mT @ G)
    agree(((found >= 0) & (found <= 1)).all(), "the share of the noise is not between 0 and 1")


@case(CODED, range(len(BLOCKS)))
def integers(name, which):
    """All kernels for rows of integers."""
    size, borders = BLOCKS[which]
    rows, spans = FORMATS[name].allocate(size, borders[-1], DEVICE), Spans(borders, size, DEVICE)
    batch = len(borders) - 1
    for step in range(size + 1):
        row = normal(borders[-1])
        slots = torch.tensor([(step + i) % (size + 1) - 1 for i in range(batch)], device=DEVICE)
        target, source = torch.zeros_like(row), torch.ones_like(row)
        coded.write(rows, row, slots, spans, [None, (target, source), (target, row)][step % 3])
    coded.encode(row, rows.format)
    coded.gram_row(rows, row, spans)
    kept = normal(batch, dtype=torch.float64)
    for dtype, share in itertools.product((torch.float32, torch.float64), (None, kept, 0 * kept)):
        out = torch.zeros(borders[-1], dtype=dtype, device=DEVICE)
        coded.expand(rows, normal(batch, size, dtype=torch.float64), spans, out, kept=share)


TENSORS = (torch.float32, torch.bfloat16, torch.float16)
NUMELS = [5, 0, 64, 165, 4100]


def table_of(dtype, aligned, columns):
    """Tensors in a row and their addresses; ``columns`` has the first column of each, and the end."""
    held = [normal(n + 1, dtype=dtype)[0 if aligned else 1 :][:n] for n in NUMELS]
    table = tensors.Addresses(NUMELS, torch.device(DEVICE))
    assert table.hold(held)
    if not aligned:
        columns = [0, *itertools.accumulate(NUMELS)]
    return held, table, Spans(columns, 7, DEVICE), columns[-1]


ALIGNED_COLUMNS = [0, *itertools.accumulate(-(-n // 64) * 64 for n in NUMELS)]


@case(TENSORS, (True, False), ("none", "momentum", "ahead"), (False, True))
def gather(dtype, aligned, momentum, negate):
    _, table, spans, columns = table_of(dtype, aligned, ALIGNED_COLUMNS)
    row = torch.empty(columns, device=DEVICE)
    buffer = torch.zeros(columns, device=DEVICE) if momentum != "none" else None
    updated = torch.empty_like(row) if momentum == "ahead" else None
    tensors.gather(table, spans, row, momentum=buffer, beta=0.9, updated=updated, negate=negate)
    agree(row.isfinite().all(), "a column was not written")


@case(TENSORS, (True, False), ("float32", "bfloat16", *CODED), ("one matrix", "many"), ("number", "tensor", "replace"))
def update(dtype, aligned, stored, matrices, lr):
    """Parameters, and gradients with "replace". The columns of integers are whole blocks, wherever the tensors are."""
    held, table, spans, columns = table_of(dtype, aligned, ALIGNED_COLUMNS)
    many, kept = matrices == "many", None
    if stored in CODED:
        spans, columns = Spans(ALIGNED_COLUMNS, 7, DEVICE), ALIGNED_COLUMNS[-1]
        rows = FORMATS[stored].allocate(7, columns, DEVICE)
        for slot in range(7):
            rows.write(slot, normal(columns))
        kept = normal(len(NUMELS) if many else 1, dtype=torch.float64), normal(columns)
    else:
        rows = normal(7, columns, dtype=FORMATS[stored].dtype)
    matrix_of = torch.arange(len(NUMELS), dtype=torch.int32, device=DEVICE) if many else None
    c = normal(len(NUMELS) if many else 1, 7, dtype=torch.float64)
    rate = torch.tensor(1e-3, device=DEVICE) if lr == "tensor" else 1e-3
    options = {"matrix_of": matrix_of, "lr": rate, "weight_decay": 0.1, "replace": lr == "replace", "kept": kept}
    for chosen, taken in (((0, len(NUMELS)), True), ((2, 4), True), ((0, len(NUMELS)), False)):
        tensors.update(rows, c, table, spans, chosen, taken=torch.tensor(taken, device=DEVICE), **options)
    agree(all(p.isfinite().all() for p in held), "a parameter is not finite")


# ---- whole steps -----------------------------------------------------------------------------------------------------

SHAPES = [(), (7,), (33, 5), (3, 4, 5, 2), (0, 3), (130,), (16, 16)]
OPTIONS = [
    {},
    {"window_dtype": "bfloat16", "weight_decay": 0.1},
    {"window_dtype": "float64"},
    {"window_dtype": "int8"},
    {"window_dtype": "int4", "scope": "parameter"},
    {"window_dtype": "int8", "nesterov": True, "history": "gradient"},
    {"history": "gradient", "nesterov": True},
    {"nesterov": True, "betas": (0.9, 0.99)},
    {"scope": "parameter", "weight_decay": 0.1},
    {"scope": "parameter", "history": "gradient", "window_dtype": "bfloat16"},
    {"jitter": 1e-3, "eps": 1e-2, "sgd_scale": 0.1, "maximize": True},
    {"shrinkage": "auto", "adjust_lr_fn": "keep_norm"},
    {"jitter": 0.0, "solver": "eigh"},
    {"window": 10 if INTERPRETED else 70, "window_dtype": "bfloat16"},
    {"window_dtype": "float32@host"},
    {"window_dtype": "int8@host"},
]
FINISHES = ("adam", "polar", "polar_rows", "polar_exact")


def train(make, *, steps=13, dtype=torch.float32, shapes=SHAPES, tensor_lr=False, graph=False, poison=True):
    """Steps of an optimizer: a gradient that is missing, one that is not finite, new addresses at each step."""
    parameters = [nn.Parameter(torch.ones(shape, device=DEVICE, dtype=dtype)) for shape in shapes]
    optimizer = make(parameters)
    if tensor_lr:
        optimizer.param_groups[0]["lr"] = torch.tensor(1e-3, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(4 if INTERPRETED else steps):
            for index, p in enumerate(parameters):
                p.grad = normal(*p.shape, dtype=dtype)
                if not graph and index == step == 2:
                    p.grad = None
                elif poison and index == 1 and step == 1:
                    p.grad.fill_(torch.nan)
            optimizer.step()
    if graph and not INTERPRETED:
        agree(optimizer._graph._graph is not None, "there was no graph")
    agree(all(p.isfinite().all() for p in parameters), "a parameter is not finite")


def defaults():
    """Coarse nodes for the interpreter."""
    return {"window": 3, "jitter": 0.1, "solver": "cholesky"} if INTERPRETED else {"window": 11, "solver": "cholesky"}


@case(range(len(OPTIONS)))
def step(which):
    train(lambda parameters: PaperGGT(parameters, **{**defaults(), **OPTIONS[which]}))


@case(FINISHES, ("model", "parameter"))
def finished(finish, scope):
    shrinkage = 0.0 if scope == "model" else "auto"
    train(lambda parameters: GGT(parameters, finish=finish, scope=scope, shrinkage=shrinkage, **defaults()))


@case((torch.bfloat16, torch.float64, torch.float16))
def parameters_of(dtype):
    train(lambda parameters: PaperGGT(parameters, **defaults()), dtype=dtype)


@case()
def tensor_rate():
    train(lambda parameters: PaperGGT(parameters, **defaults()), tensor_lr=True)


@case((torch.optim.SGD, torch.optim.AdamW), ("float32", "int8"))
def whitened(inner, stored):
    def make(parameters):
        return whiten(inner(parameters, lr=1e-3), window=3 if INTERPRETED else 11, window_dtype=stored)

    train(make, shapes=SHAPES[1:4], poison=False)  # a gradient that is not finite goes on to the inner optimizer


@case((RMSprop, NAdam))
def relative(member):
    train(lambda parameters: member(parameters, window=3 if INTERPRETED else 11))


def graphed(which):
    train(lambda parameters: PaperGGT(parameters, cuda_graph=True, **{**defaults(), **OPTIONS[which]}), graph=True)


for number in (0, 1, 7, 8, 9, 10, 13):
    GRAPHS[f"graphed {number}"] = lambda number=number: graphed(number)


# ---- deliberate errors -----------------------------------------------------------------------------------------------


@triton.jit
def _planted_beyond(source, target, size, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < size, other=0.0), mask=i <= size)  # one too far


@triton.jit
def _planted_copy(source, target, size, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < size), mask=i < size)


def plant(name):
    """ "beyond" writes behind the end of a tensor, and "unwritten" reads what nobody wrote."""
    if name == "beyond":
        _planted_beyond[(1,)](torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE), 64, BLOCK=128)
    else:
        _planted_copy[(1,)](torch.empty(64, device=DEVICE), torch.zeros(64, device=DEVICE), 64, BLOCK=128)


# ---- running ---------------------------------------------------------------------------------------------------------


def agree(holds, what):
    """An output that is wrong is worth as much as an error that the sanitizer finds."""
    if not bool(holds):
        raise AssertionError(what)


def run(cases):
    for name, work in cases.items():
        print(f"CASE {name}", flush=True)
        began = time.perf_counter()
        try:
            work()
            if DEVICE != "cpu":
                torch.cuda.synchronize()
            print(f"DONE {name} {time.perf_counter() - began:.3f}", flush=True)
        except Exception as error:
            print(f"FAILED {name} {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        print(f"LAUNCHED {json.dumps(launched)}", flush=True)
        launched.clear()


def main(part, parts, what):
    torch.manual_seed(0)
    if what.startswith("planted:"):
        plant(what.removeprefix("planted:"))
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        return
    remember_launches()
    backends.choose = lambda _: triton_backend.TritonBackend()
    with torch.no_grad():
        uncached = "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ  # then there is no memory for a graph
        cases = GRAPHS if what == "graphs" else CASES | ({} if uncached else GRAPHS)
        run(dict(list(cases.items())[part::parts]))


if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
