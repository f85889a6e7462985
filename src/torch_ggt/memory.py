"""The memory of an optimizer: how many bytes it needs, and which window would fit."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_ggt.distributed.pieces import best_cut, is_dtensor, piece_of_dtensor, whole
from torch_ggt.finish import resolve
from torch_ggt.formats import FORMATS, Format, format_of, row_format
from torch_ggt.layout import ALIGNMENT
from torch_ggt.options import OPTIONS, check, check_agreement
from torch_ggt.parameters import Group
from torch_ggt.rules import RULES
from torch_ggt.scopes import matrices
from torch_ggt.sinks import Gradients
from torch_ggt.window import Window

__all__ = ["Memory", "allocate_window", "check_host_rows", "lends_row", "memory_of", "readable", "window_bytes"]


class Memory(NamedTuple):
    """The bytes of an optimizer on one rank, after its first step.

    Attributes:
        parameters: the number of trainable elements of the whole model.
        window: the rows.
        row: the vector that enters the window, and then the step.
        buffers: momentum, and what a finish remembers.
        small: the Gram matrices, the age weights and the counters.
        lent: a ``row`` that is there only while a step is under way.
        host: how many bytes of ``window`` are in host memory, wherever the parameters are.
    """

    parameters: int
    window: int
    row: int
    buffers: int
    small: int
    lent: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """All bytes that stay between steps."""
        return self.window + self.row + self.buffers + self.small

    @property
    def peak(self) -> int:
        """All bytes while a step is under way. Some MB of scratch, and the arithmetic of a finish, are not counted."""
        return self.total + self.lent

    @property
    def per_parameter(self) -> float:
        """All bytes, divided by the number of trainable elements of the whole model."""
        return self.total / self.parameters

    def __str__(self) -> str:
        """A table: bytes, and bytes for each parameter."""
        parts = [(name, getattr(self, name)) for name in ("window", "row", "buffers", "small", "total")]
        parts += [("peak", self.peak)] if self.lent else []
        parts += [("in host", self.host)] if self.host else []
        lines = [f"{name:<8}{readable(count):>9}{count / self.parameters:>10.2f}" for name, count in parts]
        return "\n".join([f"{self.parameters:,} parameters; bytes in all, and for each:", *lines])


def lends_row(stored: Format, sink: Any) -> bool:  # noqa: ANN401 - a sink
    """Whether the flat row is freed after each step: where rows take few bytes, in front of another optimizer.

    To ask for its memory in each step takes time. So it stays where a window of plain numbers is much larger anyway.
    """
    return (stored.coded or stored.host) and isinstance(sink, Gradients)


def memory_of(
    model: Any,  # noqa: ANN401 - see GGT.memory
    *,
    ranks: int = 1,
    sink: Any = None,  # noqa: ANN401 - where the steps go; None: into the parameters
    **options: Any,  # noqa: ANN401 - of the table of options
) -> Memory:
    """The arithmetic of `GGT.memory`: the flat tensors that `state.block` will make for these options."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"memory: ranks must be an int ≥ 1, got ranks={ranks!r}")
    groups = _groups_of(model, options)
    blocks: dict[Any, list[list[tuple[Group, Tensor]]]] = {}
    for matrix in matrices(groups):
        stored = row_format(matrix[0][0]["window_dtype"], [p for _, p in matrix])
        blocks.setdefault((id(matrix[0][0]), matrix[0][1].device, stored), []).append(matrix)
    window = row = buffers = small = lent = host = 0
    for (_, _, stored), block in blocks.items():
        group, members = block[0][0][0], [member for matrix in block for member in matrix]
        rule, size = RULES[group["history"]], group["window"]
        columns, wide = sum(_columns(p, ranks) for _, p in members), stored.wide.itemsize
        windows = 1 + len(rule.windows)
        window += windows * stored.bytes(size, columns)
        host += windows * stored.bytes(size, columns) if stored.host else 0
        if lends_row(stored, sink):
            lent += columns * wide
        else:
            row += columns * wide
        for member in members:
            names, shapes = _finish_state(*member)
            buffers += (len(rule.buffers) + len(names)) * _columns(member[1], ranks) * wide
            small += sum((4 if key == "step" else wide) * torch.Size(shape).numel() for key, shape in shapes.items())
        small += 8 * len(block) * (windows * (size * size + 2 * size + 2) + 1)  # K, two weights, two counters; skipped
    return Memory(
        sum(whole(p).numel for group in groups for p in group["params"]), window, row, buffers, small, lent, host
    )


def _finish_state(group: Group, parameter: Tensor) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """What a finish remembers for a parameter: names of tensors of its shape, and the shapes of small ones by key."""
    finish, shape = resolve(group["finish"]), whole(parameter).shape
    if finish is None:
        return (), {}
    return finish.of(shape).buffers_of(group), finish.of(shape).small(shape)


def _groups_of(model: Any, options: Group) -> list[Group]:  # noqa: ANN401 - see GGT.memory
    """Param groups with all options, checked as an optimizer checks them."""
    if isinstance(model, int | float) and not isinstance(model, bool):
        if not model >= 1 or model % 1:
            raise ValueError(f"memory: a number of parameters must be a whole number from 1 on, got {model!r}")
        model = [torch.empty(1, int(model), device="meta", requires_grad=True)]  # as a matrix, for its finish
    elif isinstance(model, nn.Module):
        model = model.parameters()
    elif isinstance(model, Tensor | str | bytes) or not isinstance(model, Iterable):
        raise TypeError(
            f"memory: give a model, its parameters, param groups, or a number of parameters, got {type(model).__name__}"
        )
    given = list(model)
    strange = next((one for one in given if not isinstance(one, Tensor | dict | tuple)), None)
    if strange is not None:
        raise TypeError(f"memory: parameters must be tensors, or param groups, got {type(strange).__name__}")
    defaults = {name: option.default for name, option in OPTIONS.items()} | options
    groups = []
    for group in given if given and isinstance(given[0], dict) else [{"params": given}]:
        found = [p[1] if isinstance(p, tuple) else p for p in group["params"]]
        plain = {key: value for key, value in group.items() if key != "param_names"}
        groups.append({**defaults, **plain, "params": [p for p in found if p.requires_grad]})
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ValueError("memory: there are no trainable parameters")
    for group in groups:
        check(group)
    check_agreement(groups)
    return groups


def _columns(parameter: Tensor, ranks: int) -> int:
    """The columns of a parameter on one rank: on this one for a DTensor, else on the first, which has most."""
    if is_dtensor(parameter):
        sizes = list(piece_of_dtensor(parameter).sizes)
    else:
        sizes = list(whole(parameter).shape)
        dim = best_cut(tuple(sizes), ranks)
        if dim is not None:
            sizes[dim] = -(-sizes[dim] // ranks)
    return -(-torch.Size(sizes).numel() // ALIGNMENT) * ALIGNMENT


def check_host_rows(group: Group, *, graph: bool, split: bool) -> None:
    """Raise ValueError if a param group asks for rows in host memory where the host may not write them.

    Args:
        group: the param group.
        graph: whether the optimizer makes a CUDA graph of its step.
        split: whether it has a process group, over which windows are split.
    """
    stored = row_format(group["window_dtype"], group["params"])
    reasons = {
        "cuda_graph=True: a graph cannot wait for the host": graph,
        "capturable=True: a graph cannot wait for the host": group["capturable"],
        "a window that is split over ranks": split or any(map(is_dtensor, group["params"])),
    }
    for reason, holds in reasons.items():
        if stored.host and holds:
            raise ValueError(
                f"torch_ggt: window_dtype={stored.name!r} does not go with {reason}. The host writes each row into "
                "host memory, when it knows that the step is taken. Use "
                f"window_dtype={stored.name.removesuffix('@host')!r} there, or fewer bytes with 'int8' or 'int4'."
            )


def window_bytes(size: int, columns: int, dtype: torch.dtype | str) -> int:
    """The number of bytes of the rows of a window, of a dtype or of the name of a format."""
    return format_of(dtype).bytes(size, columns)


def allocate_window(
    size: int, columns: int, dtype: torch.dtype | str, device: torch.device, borders: Sequence[int] | None = None
) -> Window:
    """Make a window. If memory is short, the error says how many bytes it needs and which r or format would fit."""
    stored = format_of(dtype)
    wanted = stored.bytes(size, columns)
    place = torch.device("cpu") if stored.host else device
    needs = (
        f"torch_ggt: no memory for the window {'in host memory' if stored.host else f'on {device}'}. It needs "
        f"{wanted} bytes ({readable(wanted)}): window={size} rows × {columns} elements × {stored.element_bytes:g} "
        f"bytes of {stored}."
    )
    if stored.host and wanted > (_free_bytes(place) or wanted):  # a host promises more than it has
        raise torch.OutOfMemoryError(f"{needs} {_advice(columns, stored, device)}")
    try:
        return Window(size, columns, borders=borders, dtype=dtype, device=device)
    except RuntimeError as error:  # a CPU allocation that fails is a plain RuntimeError
        free = _free_bytes(place)
        if not isinstance(error, torch.OutOfMemoryError) and (free is None or wanted <= free):
            raise
        raise torch.OutOfMemoryError(f"{needs} {_advice(columns, stored, device)}") from error


def _advice(columns: int, stored: Format, device: torch.device) -> str:
    """What would fit where the rows should go, and in the other memory if the device is not the host."""
    host = torch.device("cpu")
    free = _free_bytes(host if stored.host else device)
    if free is None:
        return "Use a smaller window, or window_dtype=torch.bfloat16, 'int8' or 'int4'."
    fits = _fits(columns, stored, free, "@host" if stored.host else "")
    words = f"{readable(free)} are free{f': {fits} would fit.' if fits else ', too little for one row:'}"
    other = None if device == host else _free_bytes(device if stored.host else host)
    there = _fits(columns, stored, other or 0, "" if stored.host else "@host")
    if there:
        return f"{words} {'On the device' if stored.host else 'In host memory'} {there} would fit."
    return words if fits else f"{words} use a scope of fewer parameters or SGD."


def _fits(columns: int, stored: Format, free: int, suffix: str) -> str:
    """Which windows fit, in this format and in smaller ones; "" if none does."""
    names = [stored.name.removesuffix("@host")]
    names += [name for name, found in FORMATS.items() if found.element_bytes < min(4, stored.element_bytes)]
    found = [(name, int(0.9 * free / max(1, columns * FORMATS[name].element_bytes))) for name in names]
    return " or ".join(f"window={rows} in {format_of(name + suffix)}" for name, rows in found if rows >= 1)


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def readable(count: float) -> str:
    """A number of bytes with its unit, as text."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
