"""Rows in host memory, for windows larger than a GPU: both passes read them piece by piece.

The rows stay in host memory, which is pinned for a GPU. A pass cuts the columns into pieces. On a GPU a side stream
copies a piece into one of two staging buffers, while the backend of the device works on the other one. The Gram matrix
and all small state are on the device. When a pass has ended, the first two pieces of the next one are copied at once:
this goes on while the model computes its gradients. On a CPU a piece is a view, and nothing is copied.

The host writes the row, so it must know whether the step is taken, and waits for that.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_ggt.backends.plain import HostBackend, Scratch, TorchBackend
from torch_ggt.formats import BLOCK, Coded, Format

__all__ = ["HostRows", "HostRowsBackend", "Span", "spans"]

STAGE = 64 * 2**20
"""Bytes of one of the two staging buffers, at most."""


class Span(NamedTuple):
    """Neighbouring columns, and the borders of the matrices in them.

    Attributes:
        left, right: the columns.
        first: the matrix that the columns begin in.
        borders: of the matrices, counted from ``left``; None if there is one matrix in all.
    """

    left: int
    right: int
    first: int
    borders: tuple[int, ...] | None


def spans(columns: int, borders: Sequence[int] | None, width: int) -> list[Span]:
    """Cut columns into spans of at most ``width``. A span has whole matrices, or a part of one.

    >>> spans(320, [0, 64, 128, 320], 128)[1:]
    [Span(left=128, right=256, first=2, borders=(0, 128)), Span(left=256, right=320, first=2, borders=(0, 64))]
    """
    if borders is None:
        return [Span(left, min(left + width, columns), 0, None) for left in range(0, columns, width)]
    found: list[Span] = []
    first = 0
    while first < len(borders) - 1:
        left, last = borders[first], first + 1
        while last < len(borders) - 1 and borders[last + 1] - left <= width:
            last += 1
        inside = tuple(border - left for border in borders[first : last + 1])
        if inside[-1] <= width:
            found.append(Span(left, left + inside[-1], first, inside))
        else:  # one matrix that is wider than a span
            for start in range(left, borders[last], width):
                stop = min(start + width, borders[last])
                found.append(Span(start, stop, first, (0, stop - start)))
        first = last
    return found


class HostRows:
    """Rows (r, d) in host memory that are read on a device.

    Args:
        store: the rows: a tensor, or integers with scales.
        stored: their format.
        device: where they are read.
        stage: copy pieces into staging buffers. None: where the device is not the host.
    """

    def __init__(self, store: Any, stored: Format, device: torch.device, stage: bool | None = None) -> None:  # noqa: ANN401
        self.store, self.format, self.device = store, stored, device
        self.shape, self.dtype = store.shape, store.dtype
        self.staged = device.type != "cpu" if stage is None else stage
        self.width = max(BLOCK, int(STAGE / max(1, self.shape[0] * stored.element_bytes)) // BLOCK * BLOCK)
        self._buffers: list[Any] = []
        self._ahead: list[tuple[Any, ...]] = [(), ()]
        """What each buffer was filled with before it was asked for."""
        self._side: Any = None
        self._filled: list[Any] = [None, None]
        self._read: list[Any] = [None, None]

    @staticmethod
    def allocate(stored: Format, size: int, columns: int, device: torch.device) -> "HostRows":
        """``size`` rows of zeros; pinned, if they go to a GPU."""
        form = stored.allocate(size, columns, "meta")
        pin = device.type == "cuda"
        parts = [torch.zeros(part.shape, dtype=part.dtype, device="cpu", pin_memory=pin) for part in _parts(form)]
        store = Coded(parts[0], parts[1], form.format) if isinstance(form, Coded) else parts[0]
        return HostRows(store, stored, device)

    def __getitem__(self, where: Any) -> "HostRows":  # noqa: ANN401 - slices
        """Some of the rows, or some of the columns: a view."""
        return HostRows(self.store[where], self.format, self.device, self.staged)

    def numbers(self) -> Tensor:
        """The rows as numbers, on the device."""
        return (self.store if isinstance(self.store, Tensor) else self.store.numbers()).to(self.device)

    def double(self) -> Tensor:
        """The rows as numbers in float64, on the device."""
        return self.numbers().double()

    def stored(self, row: Tensor) -> Tensor:
        """The numbers that would be read if ``row`` (n,) were stored."""
        return row.to(self.dtype) if isinstance(self.store, Tensor) else self.store.stored(row)

    def write(self, slot: int, row: Tensor) -> None:
        """Store ``row`` (d,), which is on the device, in a slot."""
        if isinstance(self.store, Tensor):
            self.store[slot].copy_(row)
        else:
            self.store.write(slot, row)

    def zero_(self) -> "HostRows":
        """Make all numbers zero."""
        self.store.zero_()
        return self

    # ---- pieces on the device --------------------------------------------------------------------------------------

    def pieces(self, borders: Sequence[int] | None) -> Iterator[tuple[Span, Any]]:
        """Each span of columns and its rows on the device. The next piece is copied while one is worked on."""
        found = spans(self.shape[1], borders, self.width)
        for number, span in enumerate(found):
            if not self.staged:
                yield span, self.store[:, span.left : span.right]
                continue
            for ahead in found[number : number + 2]:
                self._fill(ahead, (number + (ahead is not span)) % 2)
            which = number % 2
            if self._side is not None:
                torch.cuda.current_stream(self.device).wait_event(self._filled[which])
            yield span, self._buffers[which][:, : span.right - span.left]
            self._ahead[which] = ()
            if self._side is not None:
                self._read[which] = torch.cuda.current_stream(self.device).record_event()

    def prefetch(self, borders: Sequence[int] | None) -> None:
        """Begin to copy the first two pieces, for a pass that comes later."""
        if self.staged:
            for number, span in enumerate(spans(self.shape[1], borders, self.width)[:2]):
                self._fill(span, number)

    def _fill(self, span: Span, which: int) -> None:
        """Copy the rows of a span into a buffer, unless they are there and have not changed since."""
        now = (span, *(part._version for part in _parts(self.store)))
        if self._ahead[which] == now:
            return
        if not self._buffers:
            self._make_buffers()
        target = self._buffers[which][:, : span.right - span.left]
        with contextlib.nullcontext() if self._side is None else torch.cuda.stream(self._side):
            if self._side is not None and self._read[which] is not None:
                self._side.wait_event(self._read[which])
            for to, source in zip(_parts(target), _parts(self.store[:, span.left : span.right]), strict=True):
                for row in range(self.shape[0]):  # a row is contiguous: the host need not copy it first
                    to[row].copy_(source[row], non_blocking=True)
            if self._side is not None:
                self._filled[which] = self._side.record_event()
        self._ahead[which] = now

    def _make_buffers(self) -> None:
        width = min(self.width, self.shape[1])
        self._buffers = [self.format.allocate(self.shape[0], width, self.device) for _ in range(2)]
        if self.device.type == "cuda":
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._side.wait_stream(torch.cuda.current_stream(self.device))
            for part in (part for buffer in self._buffers for part in _parts(buffer)):
                part.record_stream(self._side)  # not to be given to others while a copy is under way


def _parts(rows: Any) -> tuple[Tensor, ...]:  # noqa: ANN401 - Tensor or Coded
    return (rows,) if isinstance(rows, Tensor) else (rows.codes, rows.scales)


class HostRowsBackend(HostBackend):
    """The verbs for rows in host memory. The backend of the device does the arithmetic; the host writes the row."""

    def __init__(self, inner: TorchBackend) -> None:
        self.inner = inner
        self.gather = inner.gather  # type: ignore[method-assign]
        self.coefficients = inner.coefficients  # type: ignore[method-assign]

    def measure(
        self,
        rows: "HostRows | Tensor | Coded",
        row: Tensor,
        borders: Sequence[int] | None = None,
        scratch: Scratch | None = None,
    ) -> Tensor:
        """As `plain.gram_row`."""
        if not isinstance(rows, HostRows):
            return self.inner.measure(rows, row, borders, scratch)
        shape = (1 if borders is None else len(borders) - 1, rows.shape[0] + 1)
        sums = torch.zeros(shape, dtype=torch.float64, device=row.device)
        for span, piece in rows.pieces(borders):
            own = self.inner.measure(piece, rows.stored(row[span.left : span.right]), span.borders)
            sums[span.first : span.first + (1 if span.borders is None else len(own))] += own
        return sums[0] if borders is None else sums

    def expand(  # type: ignore[override]
        self, rows: HostRows, coefficients: Tensor, gram: Tensor, out: Tensor, borders: Sequence[int] | None = None, *,
        wide: bool = False, kept: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """As `plain.expand`. The next step begins with the first columns: they are copied again now."""
        for span, piece in rows.pieces(borders):
            matrices = ... if span.borders is None else slice(span.first, span.first + len(span.borders) - 1)
            part = out[span.left : span.right]
            share = None if kept is None else kept[matrices]
            self.inner.expand(piece, coefficients[matrices], gram[matrices], part, span.borders, wide=wide, kept=share)
        rows.prefetch(borders)
        return out
