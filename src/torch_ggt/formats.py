"""How a row of the window is stored: as numbers of a dtype, or as small integers with a scale for a block of columns.

A format says how a row is encoded, how columns are read back, how many bytes an element takes, and which tensors of
the state hold it. Everything above works with the rows *as stored*: their Gram matrix is a Gram matrix whatever the
rounding, so it is never indefinite.

`PlainFormat` stores rows in a tensor of one dtype. `BlockFormat` stores integers i of -q … q. A number is read as s·i^p
with the sign of i, and one scale s = max|v|/q^p for each block of 64 columns; i is the nearest to the root of v/s.
Powers leave small numbers beside large ones their digits. With 8 bits (q = 127, p = 2) the smallest number is 16,129
times smaller than the largest, and the error is hardly more than the error of 255 equal steps. With 4 bits (q = 7,
p = 3) it is 343 times smaller. No integer can saturate, because |v|/s ≤ q^p. Three properties hold:

- Blocks do not cross parameters, because the columns of a parameter start at a multiple of 64 (`layout.ALIGNMENT`).
- s keeps 10 bits, so that s·i^p is exact in float32.
- For that reason a row that is read back and encoded again gives the same integers and the same scales.

>>> row = torch.linspace(-1, 1, 64)
>>> codes, scales = FORMATS["int8"].encode(row)
>>> codes[:3].tolist(), (FORMATS["int8"].decode(codes, scales) - row).abs().max() <= 1 / 127
([-127, -125, -123], tensor(True))
"""

import copy
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ggt.layout import ALIGNMENT, Layout

__all__ = ["BLOCK", "FORMATS", "BlockFormat", "Coded", "Format", "PlainFormat", "format_of", "row_format", "scale_key"]

BLOCK = ALIGNMENT
"""Columns that share a scale."""
_WIDE = (torch.float64, torch.complex128)
_PIECE = 2**16  # elements of a row that are encoded at a time: they stay in the cache of a CPU
_GPU_PIECE = 2**24
_SMALLEST = torch.finfo(torch.float32).tiny  # a scale below it has too few bits: such a block is stored as zeros


def scale_key(window: str) -> str:
    """Under which key the scales of a window are saved; the integers have the key of the window itself."""
    return f"{window}_scale"


def _blocks(tensor: Tensor, length: int) -> Tensor:
    """A view (..., n / length, length) of a tensor (..., n)."""
    return tensor.view(*tensor.shape[:-1], tensor.shape[-1] // length, length)


def _scales(largest: Tensor) -> Tensor:
    """max|v|/q^p rounded to 10 bits; 0 if that is too small. NaN and inf become NaN.

    A GPU's NaN is 0x7FFFFFFF: rounded like the bits of a number, it would become -0.
    """
    rounded = largest.view(torch.int32).add(0x2000).bitwise_and_(-0x4000).view(torch.float32)
    rounded = torch.where(largest < torch.inf, rounded, torch.nan)
    return torch.where(rounded < _SMALLEST, 0.0, rounded)


class Format:
    """How rows are stored.

    Attributes:
        name: what ``window_dtype`` calls it.
        option: the value of ``window_dtype`` in its plain form.
        dtype: of the tensor that holds the rows.
        wide: the dtype of the row that enters the window, and of the step.
        element_bytes: bytes of one element of a row, its share of a scale included.
        coded: whether the rows are integers with scales (`Coded`), and not a tensor of numbers.
        host: whether the rows stay in host memory, wherever the parameters are (`backends.host_rows`).
    """

    name: str
    option: torch.dtype | str
    dtype: torch.dtype
    wide: torch.dtype
    element_bytes: float
    coded = host = False

    def __repr__(self) -> str:
        return str(self.option)

    def allocate(self, size: int, columns: int, device: torch.device | str) -> Any:  # noqa: ANN401 - Tensor or Coded
        """``size`` rows of zeros."""
        raise NotImplementedError

    def bytes(self, size: int, columns: int) -> int:
        """The bytes of ``size`` rows of ``columns`` elements."""
        return round(size * columns * self.element_bytes)

    def views(self, rows: Any, layout: Layout, window: str) -> dict[str, list[Tensor]]:  # noqa: ANN401 - Tensor or Coded
        """By the key under which it is saved, what each parameter has of the rows."""
        return {window: layout.views(rows)}

    def state(self, window: str, size: int, shape: Sequence[int]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """By key, the shape and dtype of what a parameter of ``shape`` has of ``size`` rows."""
        return {window: ((size, *shape), self.dtype)}


class PlainFormat(Format):
    """Numbers of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.name, self.option = str(dtype).removeprefix("torch."), dtype
        self.dtype, self.wide = dtype, torch.promote_types(dtype, torch.float32)
        self.element_bytes = dtype.itemsize

    def allocate(self, size: int, columns: int, device: torch.device | str) -> Tensor:
        """A tensor (size, columns)."""
        return torch.zeros(size, columns, dtype=self.dtype, device=device)


class BlockFormat(Format):
    """Integers i of -largest … largest for s·i^power, with a float32 scale s for each block of 64 columns.

    Args:
        name: of the format.
        largest: q.
        power: p, 2 or 3.
        packed: two integers share a byte: the first half of a block is in the low halves, the second in the high ones.
    """

    wide, coded = torch.float32, True

    def __init__(self, name: str, largest: int, power: int, *, packed: bool) -> None:
        self.name = self.option = name
        self.largest, self.power, self.packed = largest, power, packed
        self.dtype = torch.uint8 if packed else torch.int8
        self.per_byte = 2 if packed else 1
        self.element_bytes = 1 / self.per_byte + torch.float32.itemsize / BLOCK

    def allocate(self, size: int, columns: int, device: torch.device | str) -> "Coded":
        """Integers (size, columns), or half as many bytes if two share one; and scales (size, columns / 64)."""
        if columns % BLOCK:
            raise ValueError(
                f"torch_ggt: rows in {self.name} have a scale for each {BLOCK} columns, and {columns} columns cannot "
                f"be divided so; use {-(-columns // BLOCK) * BLOCK} columns, of which the last are zero "
                f"({self.bytes(size, -(-columns // BLOCK) * BLOCK)} bytes), or window_dtype=torch.bfloat16 "
                f"({2 * size * columns} bytes)"
            )
        codes = torch.zeros(size, columns // self.per_byte, dtype=self.dtype, device=device)
        return Coded(codes, torch.zeros(size, columns // BLOCK, dtype=torch.float32, device=device), self)

    def encode(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """(integers, scales) of rows (..., n), n a multiple of 64. A block that is not finite has such a scale."""
        blocks = _blocks(row.to(torch.float32), BLOCK)
        scales = _scales(blocks.abs().amax(-1).div_(self.largest**self.power))
        units = blocks / torch.where(scales > 0, scales, torch.inf)[..., None]
        whole = units.abs().pow_(1 / self.power).round_().copysign_(units)
        if not self.packed:
            return whole.to(torch.int8).flatten(-2), scales
        low, high = (whole + 8).to(torch.uint8).chunk(2, -1)
        return low.bitwise_or(high << 4).flatten(-2), scales

    def decode(self, codes: Tensor, scales: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows (..., n) as numbers s·i^p, exact in float32; into ``out``, if that is given."""
        if out is None:
            out = codes.new_empty((*codes.shape[:-1], codes.shape[-1] * self.per_byte), dtype=torch.float32)
        if self.packed:
            both = _blocks(codes, BLOCK // 2)
            integers = torch.cat((both & 15, both >> 4), -1).to(torch.int16).sub_(8)
        else:
            integers = _blocks(codes, BLOCK).to(torch.int16)
        integers.mul_(integers.abs() if self.power == 2 else integers.square())  # 16 bits hold 127² and 7³
        _blocks(out, BLOCK).copy_(integers).mul_(scales[..., None])
        return out

    def views(self, rows: "Coded", layout: Layout, window: str) -> dict[str, list[Tensor]]:
        """The integers (r, *shape), or (r, bytes) if two share a byte; and the scales (r, blocks)."""
        spans = [(left, -(-numel // BLOCK)) for left, numel in zip(layout.borders, layout.numels, strict=False)]
        scales = [rows.scales.narrow(1, left // BLOCK, blocks) for left, blocks in spans]
        codes = layout.views(rows.codes) if not self.packed else [
            rows.codes.narrow(1, left // 2, blocks * BLOCK // 2) for left, blocks in spans
        ]  # fmt: skip
        return {window: codes, scale_key(window): scales}

    def state(self, window: str, size: int, shape: Sequence[int]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """As `views`."""
        blocks = -(-torch.Size(shape).numel() // BLOCK)
        codes = (size, blocks * BLOCK // 2) if self.packed else (size, *shape)
        return {window: (codes, self.dtype), scale_key(window): ((size, blocks), torch.float32)}

    def numbers(self, codes: Tensor, scales: Tensor, shape: Sequence[int]) -> Tensor:
        """What a parameter of ``shape`` has in the state, as numbers (r, *shape)."""
        numel = torch.Size(shape).numel()
        flat = codes.reshape(codes.shape[0], -1)
        if not self.packed:
            flat = torch.nn.functional.pad(flat, (0, scales.shape[1] * BLOCK - numel))
        return self.decode(flat, scales)[:, :numel].reshape(codes.shape[0], *shape)

    def integers(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(integers, scales) as `state` says, of rows (r, *shape) of a parameter."""
        flat = numbers.reshape(numbers.shape[0], -1)
        codes, scales = self.encode(torch.nn.functional.pad(flat, (0, -flat.shape[1] % BLOCK)))
        return (codes if self.packed else codes[:, : flat.shape[1]].reshape(numbers.shape)), scales


class Coded:
    """The rows of a `BlockFormat`, shape (r, d). It has what the passes need of a tensor.

    Attributes:
        codes: the integers, (r, d) or (r, d / 2).
        scales: float32, (r, d / 64).
        format: how they are read.
    """

    dtype = torch.float32
    """Of the numbers that are read."""

    def __init__(self, codes: Tensor, scales: Tensor, format: BlockFormat) -> None:
        self.codes, self.scales, self.format = codes, scales, format
        self.shape = torch.Size((codes.shape[0], codes.shape[1] * format.per_byte))
        self.device = codes.device

    def numel(self) -> int:
        """r·d."""
        return self.shape.numel()

    def narrow(self, dim: int, start: int, length: int) -> "Coded":
        """A view of some rows (dim 0), or of some columns (dim 1) that are whole blocks."""
        if dim == 0:
            return Coded(self.codes.narrow(0, start, length), self.scales.narrow(0, start, length), self.format)
        if start % BLOCK or length % BLOCK:
            raise ValueError(f"columns {start} to {start + length} are not whole blocks of {BLOCK}")
        per_byte = self.format.per_byte
        codes = self.codes.narrow(1, start // per_byte, length // per_byte)
        return Coded(codes, self.scales.narrow(1, start // BLOCK, length // BLOCK), self.format)

    def __getitem__(self, where: slice | tuple[slice, slice]) -> "Coded":
        """``rows[top:bottom]``, or ``rows[top:bottom, left:right]``."""
        view = self
        for dim, part in enumerate(where if isinstance(where, tuple) else (where,)):
            start, stop, _ = part.indices(self.shape[dim])
            view = view.narrow(dim, start, stop - start)
        return view

    def read(self, out: Tensor) -> Tensor:
        """The rows as numbers, into ``out`` (r, d)."""
        return self.format.decode(self.codes, self.scales, out)

    def double(self) -> Tensor:
        """The rows as numbers in float64."""
        return self.read(torch.empty(self.shape, dtype=torch.float64, device=self.device))

    def numbers(self) -> Tensor:
        """The rows as numbers in float32."""
        return self.format.decode(self.codes, self.scales)

    def stored(self, row: Tensor) -> Tensor:
        """The numbers that would be read if ``row`` (d,) were stored: float32."""
        return self.format.decode(*self.format.encode(row))

    def write(self, slot: int, row: Tensor) -> None:
        """Store ``row`` (d,) in a slot; to encode it takes room for a piece of it only."""
        per_byte, width = self.format.per_byte, _PIECE if row.device.type == "cpu" else _GPU_PIECE
        for left in range(0, row.shape[0], width):
            codes, scales = self.format.encode(row[left : left + width])
            self.codes[slot].narrow(0, left // per_byte, codes.shape[0]).copy_(codes)
            self.scales[slot].narrow(0, left // BLOCK, scales.shape[0]).copy_(scales)

    def zero_(self) -> "Coded":
        """Make all numbers zero."""
        self.codes.zero_()
        self.scales.zero_()
        return self


FORMATS: dict[str, Format] = {
    **{f.name: f for f in map(PlainFormat, (torch.float32, torch.bfloat16, torch.float64))},
    "int8": BlockFormat("int8", 127, 2, packed=False),
    "int4": BlockFormat("int4", 7, 3, packed=True),
}
"""The formats by name. A dtype stands for the format of its name."""


@functools.cache
def _on_host(stored: Format) -> Format:
    """The same format in host memory."""
    twin = copy.copy(stored)
    twin.name = twin.option = f"{stored.name}@host"
    twin.host = True
    return twin


def format_of(value: Any) -> Format:  # noqa: ANN401 - anything a user passes
    """The format of a name or a dtype; raises KeyError for others. "@host" after a name: in host memory.

    >>> format_of("torch.bfloat16"), format_of("int8@host").host
    (torch.bfloat16, True)
    """
    if isinstance(value, torch.dtype) or (isinstance(value, str) and value.startswith("torch.")):
        value = str(value).removeprefix("torch.")
    if isinstance(value, str) and value.endswith("@host"):
        return _on_host(FORMATS[value.removesuffix("@host")])
    return FORMATS[value]


def row_format(given: torch.dtype | str | None, parameters: Iterable[Tensor]) -> Format:
    """The format of the rows: ``given``, or for None float64 if a parameter is so wide, else float32."""
    if given is None:
        given = torch.float64 if any(p.dtype in _WIDE for p in parameters) else torch.float32
    return format_of(given)
