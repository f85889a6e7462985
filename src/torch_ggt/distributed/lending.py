"""Tensors that are lent to a collective: a rank goes on when they are back.

With gloo, a thread of the process group runs a collective. It drops the tensors a moment after it has said that the
collective is done. The count of Python's references to a tensor includes one for all references of C++ together, and
whoever drops the last of these takes Python's lock to lower the count, even if Python holds the tensor still. A thread
that asks for the lock while Python shuts down aborts the process. The thread may live until then, because
``destroy_process_group()`` does not end it while anything holds the group. So it is not enough to keep the tensors: we
wait until the thread has dropped them.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

__all__ = ["Loan", "start_all_gather"]

_PATIENCE = 1.0  # seconds. A thread needs some microseconds; this is for a tool that keeps what collectives get.

_SLEEPLESS = 5e-4  # seconds


class Loan:
    """A collective that was started with ``tensors`` and ``options``. They are used again after `settle`."""

    def __init__(self, collective: Callable[..., Any], *tensors: Tensor, **options: Any) -> None:  # noqa: ANN401
        self._lent = [tensor.detach() for tensor in tensors]  # nobody else has these, so their counts say who does
        self._counts_before = self._counts()
        self._work = collective(*self._lent, **options)

    def settle(self) -> None:
        """Wait until the collective is done, and on a CPU until its thread has dropped the tensors."""
        if self._work is not None:
            self._work.wait()
            self._work = None  # it holds the tensors, too
        if not self._lent[0].is_cpu:
            return
        start = time.monotonic()
        while self._counts() != self._counts_before and (waited := time.monotonic() - start) < _PATIENCE:
            # This gives away Python's lock, which the thread needs. Real sleeps from the start made a small step twice
            # as long; later they give away the core, too.
            time.sleep(0 if waited < _SLEEPLESS else 1e-4)

    def _counts(self) -> list[int]:
        return [sys.getrefcount(tensor) for tensor in self._lent]


def start_all_gather(sent: Tensor, group: Any) -> tuple[Tensor, Loan]:  # noqa: ANN401 - a ProcessGroup
    """The vectors that all ranks send, one after the other in one vector. They are there when the loan is settled."""
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
    received = sent.new_empty(dist.get_world_size(group) * sent.numel())
    return received, Loan(all_gather, received, sent, group=group, async_op=True)
