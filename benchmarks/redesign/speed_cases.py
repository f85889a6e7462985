"""What `speed` measures, on a CPU and on a GPU."""

import itertools
import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SpeedCase:
    """One optimizer, and the ways in which its steps are timed."""

    shapes: list
    """The shape of each parameter."""
    options: dict = field(default_factory=dict)
    """Options of GGT; the window's dtype is a name."""
    ways: tuple = ("clock",)
    """See `speed_worker.WAYS`."""
    adam: bool = False
    """Time torch's foreach Adam beside it."""

    def small(self):
        """The same case with so few elements and rows that a CPU makes its steps at once: for a trial run."""
        shapes = [[1 + size % 30 for size in shape] for shape in self.shapes]
        return SpeedCase(shapes, {**self.options, "window": 4}, self.ways, self.adam)


LAYERS = (28, 96, 60, 50, 20, 3)  # five layers: ten tensors with 12,737 elements
SMALL = [list(shape) for a, b in itertools.pairwise(LAYERS) for shape in ((b, a), (b,))]
assert sum(map(math.prod, SMALL)) == 12_737
HOST = "host time, 10 tensors, d = 12,737, r = 20"

CPU_CASES = {
    "d = 300,000, r = 100": SpeedCase([[300_000]], {"window": 100}),
    "d = 300,000, r = 20": SpeedCase([[300_000]], {"window": 20}),
    "d = 1,000,000, r = 100": SpeedCase([[1_000_000]], {"window": 100}),
    "d = 300,000, r = 100, bfloat16 rows": SpeedCase([[300_000]], {"window": 100, "window_dtype": "bfloat16"}),
    "10 tensors, d = 12,737, r = 20": SpeedCase(SMALL, {"window": 20}),
    "10 tensors, d = 12,737, r = 20, by parameter": SpeedCase(SMALL, {"window": 20, "scope": "parameter"}),
    "10 tensors, d = 300,000, r = 20, by parameter": SpeedCase([[30_000]] * 10, {"window": 20, "scope": "parameter"}),
    "d = 300,000, r = 20, gradient history": SpeedCase(
        [[300_000]], {"window": 20, "history": "gradient", "betas": [0.9, 0.99]}
    ),
    HOST: SpeedCase(SMALL, {"window": 20}, adam=True),
}


def vectors(d, number=20):
    """The shapes of ``number`` vectors of many sizes, also odd ones, with d elements: as in `ggt bench`."""
    shares = [0.2 + 1.6 * index / (number - 1) for index in range(number)]
    sizes = [int(share / sum(shares) * d) for share in shares]
    sizes[-1] += d - sum(sizes)
    return [[size] for size in sizes]


def lstm(vocabulary=50, embedding=128, width=500, layers=3):
    """The shapes of the paper's LSTM: 5,299,450 elements in 15 tensors."""
    inputs = [embedding] + [width] * (layers - 1)
    of_layers = [[[4 * width, size], [4 * width, width], [4 * width], [4 * width]] for size in inputs]
    return [[vocabulary, embedding], *itertools.chain(*of_layers), [vocabulary, width], [vocabulary]]


def transformer(vocabulary=50, length=256, width=384, layers=6):
    """The shapes of a GPT: 10,784,306 elements in 78 tensors."""
    norm = [[width], [width]]
    layer = [*norm, *norm]
    for rows, columns in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)):
        layer += [[rows, columns], [rows]]
    return [[vocabulary, width], [length, width], *layer * layers, *norm, [vocabulary, width], [vocabulary]]


assert (len(lstm()), sum(map(math.prod, lstm()))) == (15, 5_299_450)
assert (len(transformer()), sum(map(math.prod, transformer()))) == (78, 10_784_306)

HALF, GPT = {"window_dtype": "bfloat16"}, {"window": 50, "scope": "parameter", "capturable": True}
DEVICE_WAYS = ("eager", "captured")

GPU_CASES = {
    "LSTM, 15 tensors, r = 20": SpeedCase(lstm(), {"window": 20}, ("host", "eager")),
    "LSTM, 15 tensors, r = 20, cuda_graph": SpeedCase(lstm(), {"window": 20, "cuda_graph": True}, ("host", "eager")),
    "d = 5.3 M, r = 200, bfloat16": SpeedCase(
        vectors(5_300_000), {"window": 200, "capturable": True, **HALF}, DEVICE_WAYS
    ),
    "d = 5.3 M, r = 200, float32": SpeedCase(vectors(5_300_000), {"window": 200, "capturable": True}, DEVICE_WAYS),
    "d = 5.3 M, r = 20, float32": SpeedCase(vectors(5_300_000), {"window": 20, "capturable": True}, DEVICE_WAYS),
    "d = 100 M, r = 50, bfloat16": SpeedCase(
        vectors(100_000_000), {"window": 50, "capturable": True, **HALF}, DEVICE_WAYS
    ),
    "GPT, 78 tensors, by parameter, r = 50, bfloat16": SpeedCase(transformer(), {**GPT, **HALF}, DEVICE_WAYS),
    "GPT, 78 tensors, by parameter, r = 50, float32": SpeedCase(transformer(), GPT, DEVICE_WAYS),
    "d = 0.1 M, r = 20, float32": SpeedCase(
        vectors(100_000), {"window": 20, "capturable": True}, ("host", *DEVICE_WAYS)
    ),
    "d = 0.1 M, r = 20, float32, cuda_graph": SpeedCase(
        vectors(100_000), {"window": 20, "cuda_graph": True}, ("host", "eager")
    ),
}
