"""A whole step as one CUDA graph, which the optimizer captures by itself: on the host, a step is then one call.

An eager step has a dozen launches, and some hundred microseconds of Python around them. With a small model, or on a
slow host, a step takes as long as this work. All state of a step is on the device, and no kernel depends on what the
host sees. So one list of launches makes every step. Two things change between steps, and both are kept up to date on
the device: the table of the gradients' addresses, and the learning rates. Any other change (an option, the dtype of
gradients, a window loaded from a checkpoint) is noticed. A few equal steps later, a new graph is captured.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from torch_ggt.finish import Custom
from torch_ggt.options import OPTIONS, plain
from torch_ggt.parameters import Group, warn
from torch_ggt.sinks import Gradients

__all__ = ["StepGraph"]

_WARM = 3  # how many equal steps come before the capture: libraries and caches are ready then
_BAKED = tuple(name for name in OPTIONS if name not in ("lr", "capturable"))  # the options in a graph's launches


class StepGraph:
    """The graph of an optimizer's step, if there is one. ``wanted`` says whether to make a graph at all."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._made_for: Hashable = None
        self._alike = 0  # how many equal steps came before this one
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rates: list[Tensor | None] = []  # one for each param group; None if its lr is a tensor
        self._rates_now: list[float] = []

    def replay(
        self, groups: list[Group], blocks: Sequence[Any], idle: Sequence[Any], make_step: Callable[[], None]
    ) -> bool:
        """Make the step if it equals the steps before it and can be a graph. Return whether the step was made.

        ``idle`` are the attached blocks that make no step; they also count a skipped step. ``make_step`` is captured:
        it must make the whole step, and start from the gradients.
        """
        if not self.wanted or torch.compiler.is_compiling() or not torch.cuda.is_available():
            return False
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "torch_ggt: cuda_graph=True makes a graph of each step, and a graph cannot be part of another graph. "
                "To capture a step yourself, use capturable=True, without cuda_graph"
            )
        made_for = _signature(groups, blocks, idle)
        if made_for is None or made_for != self._made_for:
            self._made_for, self._alike, self._graph = made_for, 0, None
        if made_for is None:
            return False
        if self._graph is None:
            if self._alike < _WARM:
                return self._warm_up(groups, blocks, make_step)
            self._graph = self._captured(groups, blocks[0].row.device, make_step)
            if self._graph is None:
                self._give_up(blocks)
                return False
        for index, (group, rate) in enumerate(zip(groups, self._rates, strict=True)):
            if rate is not None and group["lr"] != self._rates_now[index]:
                self._rates_now[index] = group["lr"]
                rate.fill_(float(group["lr"]))
        self._graph.replay()
        for block in blocks:
            increment_version([block.sink.changed(p) for p in block.parameters])  # autograd has not seen the change
        return True

    def _warm_up(self, groups: list[Group], blocks: Sequence[Any], make_step: Callable[[], None]) -> bool:
        """Count an equal step. Make the last step before the capture as it will be captured. Return whether it did."""
        if self._alike < _WARM - 1:
            self._alike += 1
            return False
        self._rates_now = [group["lr"] for group in groups]
        options: Any = {"dtype": torch.float32, "device": blocks[0].row.device}
        self._rates = [
            None if isinstance(lr, Tensor) else torch.full((), float(lr), **options) for lr in self._rates_now
        ]
        with self._rates_in(groups):  # so that all kernels are built
            make_step()
        self._alike += 1
        return True

    def _give_up(self, blocks: Sequence[Any]) -> None:
        """Make plain steps from now on, and keep nothing."""
        self.wanted, self._made_for, self._rates = False, None, []
        for table in (table for block in blocks for table in block.addresses.values()):
            table.fixed = False  # a user's graph may read a table, so its addresses must stay

    @contextmanager
    def _rates_in(self, groups: list[Group]) -> Iterator[None]:
        """Replace learning rates that are numbers by tensors, which a graph can follow."""
        given = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = group["lr"] if rate is None else rate
            yield
        finally:
            for group, lr in zip(groups, given, strict=True):
                group["lr"] = lr

    def _captured(
        self, groups: list[Group], device: torch.device, make_step: Callable[[], None]
    ) -> torch.cuda.CUDAGraph | None:
        """The graph. If the capture fails, warn and return None; nothing has changed then."""
        graph = torch.cuda.CUDAGraph()
        here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        # torch.cuda.graph would wait for the device. Other threads may go on during this capture.
        with self._rates_in(groups), torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                make_step()
            except Exception as error:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # for example, that the graph is empty
                        graph.capture_end()
                except Exception:  # torch cannot be trusted after this
                    raise RuntimeError(
                        "torch_ggt: the step could not be captured as a CUDA graph, and torch could not end the "
                        "capture. Start anew, without cuda_graph=True."
                    ) from error
                warn(
                    f"torch_ggt: the step could not be captured as a CUDA graph ({type(error).__name__}: {error}); "
                    "going on without one"
                )
                return None
            graph.capture_end()
        here.wait_stream(aside)
        return graph


def _signature(groups: list[Group], blocks: Sequence[Any], idle: Sequence[Any]) -> Hashable:
    """Everything that a graph of this step depends on; None if the step cannot be a graph."""
    devices = {block.row.device for block in (*blocks, *idle)}
    if not blocks or len(devices) > 1:
        return None
    options = []
    for group in groups:
        lr = group["lr"]
        if group["nonfinite"] == "raise" or group["solver"] == "eigh" or group["jitter"] == 0:
            return None  # the host would have to look at a number, or to wait for cuSOLVER's eigh
        if isinstance(lr, Tensor) and lr.device not in devices:
            return None  # every step would have to copy it
        options.append(tuple(plain(group[key]) for key in _BAKED))
        options.append((id(lr), lr.data_ptr(), lr.dtype) if isinstance(lr, Tensor) else ())
    parts = [_tables(block) for block in blocks]
    return None if None in parts else (tuple(options), tuple(parts), tuple(block.window for block in idle))


def _tables(block: Any) -> tuple[Any, ...] | None:  # noqa: ANN401 - a Block, which stands above
    """Bring the tables of addresses up to date for a graph that reads them; None if there can be no graph.

    The result is what this graph depends on besides options and the contents of its tensors.
    """
    make_table = getattr(block.backend, "table", None)
    alike = len({group["maximize"] for group, _, _ in block.runs}) == 1
    if make_table is None or not block.columns.alone or not alike:
        return None
    if any(isinstance(finish, Custom) for _, finish, _ in block.finishing):
        return None  # what a user's function does at each step may need the host
    if block.lends_row or (isinstance(block.sink, Gradients) and not block.descends):
        return None  # the row is elsewhere in each step, or torch writes into gradients that are elsewhere
    parts: list[Any] = [block.window]  # the window and not its id, which a later window may get
    for kind, tensors in dict((("gradients", block.gradients()), block.targets())).items():
        if kind in block.addresses:
            block.addresses[kind].fixed = True
        table = make_table(block, kind, tensors)
        if table is None:
            return None
        table.fixed = True
        parts += [table, table.aligned, table.dtype]
        if kind == "values" and not block.descends:
            parts.append(tuple(table.known))  # torch writes into the parameters, and knows no table
    return tuple(parts)
