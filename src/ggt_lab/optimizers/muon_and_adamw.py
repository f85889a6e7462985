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
    the code of Muon's authors. The authors leave embeddings and the last layer to AdamW. An optimizer cannot tell which
    parameters those are: the groups that `torch_ggt.param_groups` makes say it with their ``role``, and of other
    parameters Muon gets all that are no vectors. Muon's steps are scaled to the length of AdamW's steps
    (``adjust_lr_fn="match_rms_adamw"``), so that one learning rate serves both.

    Args:
        params: parameters, or groups of parameters. A group may have a learning rate and a weight decay of its own.
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
        matrices, rest = zip(*map(_matrices_and_rest, groups), strict=True)
        # Muon's groups come first, in the order of the inner optimizers.
        parts = [part for part in (*matrices, *rest) if part["params"]]
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "ns_steps": ns_steps}
        super().__init__(parts, defaults)
        # Muon gets views of two dimensions: it writes into the parameters.
        self._views = {p: nn.Parameter(_as_matrix(p.detach())) for part in matrices for p in part["params"]}
        of_muon = [{"params": [self._views[p] for p in part["params"]]} for part in matrices if part["params"]]
        of_adamw = [{"params": part["params"]} for part in rest if part["params"]]
        self._inner: list[torch.optim.Optimizer] = []
        if of_muon:
            self._inner.append(
                self.of_matrices(of_muon, lr, weight_decay, momentum, ns_steps=ns_steps, adjust_lr_fn="match_rms_adamw")
            )
        if of_adamw:
            self._inner.append(torch.optim.AdamW(of_adamw, lr=lr, weight_decay=weight_decay))
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
        inner_groups = [each for inner in self._inner for each in inner.param_groups]
        for group, each in zip(self.param_groups, inner_groups, strict=True):
            each["lr"], each["weight_decay"] = group["lr"], group["weight_decay"]
        for inner in self._inner:
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


def _matrices_and_rest(group: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Muon gets of a group, and what AdamW gets; one of the two may have no parameters."""
    options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    parameters = list(group["params"])
    role = group.get("role")
    matrices = [p for p in parameters if (p.dim() >= 2 if role is None else role != "rest")]
    chosen = set(matrices)
    return {**options, "params": matrices}, {**options, "params": [p for p in parameters if p not in chosen]}


def _as_matrix(tensor: Tensor) -> Tensor:
    """A view of shape (out, everything else); an error if the tensor has no such view."""
    return tensor.view(tensor.shape[0], -1)
