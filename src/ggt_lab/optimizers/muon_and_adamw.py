"""Muon for whole models: matrices by `torch.optim.Muon`, everything else by AdamW, under one learning rate."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["MuonAndAdamW"]


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

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> optimizer = MuonAndAdamW(layer.parameters(), lr=0.1)
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [1, 1]
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.01) -> None:
        given: list[Any] = list(params)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        every = [p for group in groups for p in group["params"]]
        matrices, vectors = [p for p in every if p.dim() >= 2], [p for p in every if p.dim() < 2]
        parts = [part for part in (matrices, vectors) if part]
        super().__init__([{"params": part} for part in parts], {"lr": lr, "weight_decay": weight_decay})
        # Muon gets views of two dimensions: it writes into the parameters.
        self._views = {matrix: nn.Parameter(_as_matrix(matrix.detach())) for matrix in matrices}
        self._inner: list[torch.optim.Optimizer] = []
        if matrices:
            views = list(self._views.values())
            self._inner.append(
                torch.optim.Muon(views, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            )
        if vectors:
            self._inner.append(torch.optim.AdamW(vectors, lr=lr, weight_decay=weight_decay))

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

    def state_dict(self) -> dict[str, Any]:
        """The states of Muon and AdamW."""
        return {"parts": [inner.state_dict() for inner in self._inner]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for group, inner, state in zip(self.param_groups, self._inner, state_dict["parts"], strict=True):
            inner.load_state_dict(state)
            for name in ("lr", "weight_decay"):
                group[name] = inner.param_groups[0][name]


def _as_matrix(tensor: Tensor) -> Tensor:
    """A view of shape (out, everything else); an error if the tensor has no such view."""
    return tensor.view(tensor.shape[0], -1)
