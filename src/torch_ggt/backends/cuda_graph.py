"""A whole step as one CUDA graph, which the optimizer captures by itself: on the host, a step is then one call.

An eager step is a dozen launches, and some hundred microseconds of Python around them: with a small model, or on a slow
host, that is what a step costs. All state of a step is on the device, and no kernel depends on what the host sees, so
the same launches make every step; what changes between steps is where gradients are (a table of addresses on the
device, kept up to date) and the learning rates (numbers on the device). Whatever else changes, an option, the dtype of
gradients, a window loaded from a checkpoint, is noticed, and a few like steps later there is a graph for that.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from torch_ggt.options import OPTIONS, plain
from torch_ggt.parameters import Group

__all__ = ["StepGraph"]

_WARM = 3  # like steps before a graph is captured: libraries and caches are ready then
_BAKED = tuple(name for name in OPTIONS if name not in ("lr", "capturable"))  # what the launches of a graph depend on


class StepGraph:
    """The graph of an optimizer's step, if there is one.

    Args:
        wanted: whether to make one at all.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._made_for: Hashable = None
        self._alike = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rates: list[Tensor | None] = []  # one per param group; None: its lr is a tensor already
        self._rates_now: list[float] = []

    def replay(
        self, groups: list[Group], blocks: Sequence[Any], idle: Sequence[Any], make_step: Callable[[], None]
    ) -> bool:
        """Make the step, if it is like those before it and can be a graph; False: it is still to be made.

        Args:
            groups: the param groups.
            blocks: those that make a step, attached.
            idle: the other attached ones, in which a skipped step is counted, too.
            make_step: what a graph is captured of; it must be all of the step, and start from the gradients.

        Raises:
            RuntimeError: somebody else is capturing, or a capture could not be ended.
        """
        if not self.wanted or torch.compiler.is_compiling() or not torch.cuda.is_available():
            return False
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "GGT: cuda_graph=True makes a graph of each step by itself, which cannot be part of another; use "
                "capturable=True, without cuda_graph, to capture a step yourself"
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
            increment_version([parameter for _, parameter in block.allotted])  # autograd has not seen them change
        return True

    def _warm_up(self, groups: list[Group], blocks: Sequence[Any], make_step: Callable[[], None]) -> bool:
        """Count a like step, and make the last one before the capture as it will be captured; whether it did."""
        last = self._alike == _WARM - 1
        if last:  # so that all kernels are built
            self._make_rates(groups, blocks[0].row.device)
            with self._rates_in(groups):
                make_step()
        self._alike += 1
        return last

    def _give_up(self, blocks: Sequence[Any]) -> None:
        """Make plain steps from now on, and keep nothing."""
        self.wanted, self._made_for, self._rates = False, None, []
        for block in blocks:
            for table in block.addresses.values():  # a graph of the user may read them, and the addresses must stay
                table.fixed = False

    def _make_rates(self, groups: list[Group], device: torch.device) -> None:
        self._rates_now = [group["lr"] for group in groups]
        self._rates = [
            None if isinstance(lr, Tensor) else torch.full((), float(lr), dtype=torch.float32, device=device)
            for lr in self._rates_now
        ]

    @contextmanager
    def _rates_in(self, groups: list[Group]) -> Iterator[None]:
        """Learning rates that a graph can follow, in place of numbers."""
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
        """The graph, or None, with a warning: nothing was done then but to try."""
        graph = torch.cuda.CUDAGraph()
        here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        # Not torch.cuda.graph: that waits for the device. Other threads may go on meanwhile.
        with self._rates_in(groups), torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                make_step()
            except Exception as error:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # that the graph is empty, say
                        graph.capture_end()
                except Exception:  # torch is not to be trusted after this
                    raise RuntimeError(
                        "GGT: the step could not be captured as a CUDA graph, and torch could not end the capture. "
                        "Start anew, without cuda_graph=True."
                    ) from error
                warnings.warn(
                    f"GGT: the step could not be captured as a CUDA graph ({type(error).__name__}: {error}); going on "
                    "without one",
                    stacklevel=7,
                )
                return None
            graph.capture_end()
        here.wait_stream(aside)
        return graph


def _signature(groups: list[Group], blocks: Sequence[Any], idle: Sequence[Any]) -> Hashable:
    """What a graph of this step is good for; None: it cannot be one."""
    devices = {block.row.device for block in (*blocks, *idle)}
    if not blocks or len(devices) > 1:
        return None
    options = []
    for group in groups:
        lr = group["lr"]
        if group["nonfinite"] == "raise" or group["solver"] == "eigh" or group["jitter"] == 0:
            return None  # the host would have to look, or cuSOLVER's eigh would wait
        options.append(tuple(plain(group[key]) for key in _BAKED))
        if isinstance(lr, Tensor):
            if lr.device not in devices:
                return None  # it would have to be copied in every step
            options.append((id(lr), lr.data_ptr(), lr.dtype))
        else:
            options.append(())
    parts = [_tables(block) for block in blocks]
    return None if None in parts else (tuple(options), tuple(parts), tuple(block.window for block in idle))


def _tables(block: Any) -> tuple[Any, ...] | None:  # noqa: ANN401 - a Block, which stands above
    """Bring the tables of addresses up to date for a graph that reads them.

    Returns:
        what such a graph depends on beside options and the contents of its tensors; None: there can be none.
    """
    make_table = getattr(block.backend, "table", None)
    alike = len({group["maximize"] for group, _, _ in block.runs}) == 1
    if make_table is None or block.finishes or not block.columns.alone or not alike:
        return None
    parts: list[Any] = [block.window]  # itself, not its id, which another may get when it is gone
    for kind, tensors in (
        ("gradients", block.gradients()),
        ("values", block.parameters if block.all_here else block.values()),
    ):
        table = block.addresses.get(kind)
        if table is not None:
            table.fixed = True
        if make_table(block, kind, tensors) is None:
            return None
        table = block.addresses[kind]
        table.fixed = True
        parts += [table, table.aligned, tensors[0].dtype]
    return tuple(parts)
