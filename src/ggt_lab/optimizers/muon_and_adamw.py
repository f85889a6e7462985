"""Muon or NorMuon for whole models: it has the matrices, and AdamW has all else, under one learning rate."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ggt_lab.optimizers.normuon import NorMuon

__all__ = ["MuonAndAdamW", "NorMuonAndAdamW"]


class MuonAndAdamW(torch.optim.Optimizer):
    """`torch.optim.Muon` for matrices, AdamW for vectors.

    torch's Muon takes matrices only. Here the weights of a convolution count as a matrix (out, in·height·width), as in
    the code of Muon's authors. The authors leave embeddings and the last layer to AdamW; an optimizer cannot tell
    which parameters those are, so that here Muon gets them. Muon's steps are scaled to the length of AdamW's steps
    (``adjust_lr_fn="match_rms_adamw"``), so that one learning rate serves both.

    Args:
        params: parameters, or groups of parameters.
        lr: the learning rate of Muon and AdamW.
        weight_decay: the decoupled weight decay of Muon and AdamW.
        momentum: the momentum of Muon. AdamW keeps its own defaults.
        ns_steps: the steps of Muon's Newton–Schulz iteration.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> optimizer = MuonAndAdamW(layer.parameters(), lr=0.1)
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [1, 1]
    """

    of_matrices: ClassVar[type[torch.optim.Muon]] = torch.optim.Muon

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        ns_steps: int = 5,
    ) -> None:
        given: list[Any] = list(params)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        every = [p for group in groups for p in group["params"]]
        matrices, vectors = [p for p in every if p.dim() >= 2], [p for p in every if p.dim() < 2]
        parts = [part for part in (matrices, vectors) if part]
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "ns_steps": ns_steps}
        super().__init__([{"params": part} for part in parts], defaults)
        # Muon gets views of two dimensions: it writes into the parameters.
        self._views = {matrix: nn.Parameter(_as_matrix(matrix.detach())) for matrix in matrices}
        self._inner: list[torch.optim.Optimizer] = []
        if matrices:
            views = list(self._views.values())
            self._inner.append(
                self.of_matrices(views, lr, weight_decay, momentum, ns_steps=ns_steps, adjust_lr_fn="match_rms_adamw")
            )
        if vectors:
            self._inner.append(torch.optim.AdamW(vectors, lr=lr, weight_decay=weight_decay))
        self.register_state_dict_post_hook(_add_parts)
        self.register_load_state_dict_pre_hook(_load_parts)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - whatever it returns
        """One step of Muon, and one of AdamW."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for matrix, view in self._views.items():
            view.data = _as_matrix(matrix.detach())  # again: the model may have been moved since
            view.grad = None if matrix.grad is None else matrix.grad.flatten(1)
        for group, inner in zip(self.param_groups, self._inner, strict=True):
            for each in inner.param_groups:
                each["lr"], each["weight_decay"] = group["lr"], group["weight_decay"]
            inner.step()
        return loss


class NorMuonAndAdamW(MuonAndAdamW):
    """`NorMuon` for matrices, AdamW for vectors; in everything else as `MuonAndAdamW`."""

    of_matrices = NorMuon


# The states of Muon and AdamW are saved beside an empty state of our own. Hooks do it, and not methods, because other
# hooks (those of `torch_ggt.whiten`) save and load more.


def _add_parts(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(optimizer, MuonAndAdamW)
    return {**state_dict, "parts": [inner.state_dict() for inner in optimizer._inner]}


def _load_parts(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    assert isinstance(optimizer, MuonAndAdamW)
    for inner, state in zip(optimizer._inner, state_dict["parts"], strict=True):
        inner.load_state_dict(state)


def _as_matrix(tensor: Tensor) -> Tensor:
    """A view of shape (out, everything else); an error if the tensor has no such view."""
    return tensor.view(tensor.shape[0], -1)
