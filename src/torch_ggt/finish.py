"""What becomes of each tensor's step before it is applied: averaged over time, then finished by its shape.

A finish belongs to a param group. ``average`` may keep buffers (Adam's two moments, say); ``shape`` is a pure function
of the averaged step. The name "none" stands for no finish: the step is applied as it is, on a GPU in the very pass that
makes it. To add a finish, write a class like `Finish` and give it a name in `FINISHES`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["FINISHES", "Finish"]


class Finish:
    """The base of all finishes.

    ``buffers`` names the tensors that `average` remembers, one for each parameter and of its shape; they are saved.
    """

    buffers: tuple[str, ...] = ()

    def average(
        self,
        steps: Sequence[Tensor],
        buffers: Mapping[str, Sequence[Tensor]],
        options: Mapping[str, Any],
        taken: Tensor,
    ) -> Sequence[Tensor]:
        """The steps u of the tensors of one param group, averaged over time.

        Args:
            steps: one tensor for each parameter, of its shape; they may be changed in place.
            buffers: by name, one tensor for each parameter; change them in place, where ``taken``.
            options: the param group.
            taken: bool, (): whether the step is taken.
        """
        return steps

    def shape(self, steps: Sequence[Tensor], options: Mapping[str, Any]) -> Sequence[Tensor]:
        """The averaged steps, each finished by its shape; a pure function."""
        return steps


FINISHES: dict[str, Finish | None] = {"none": None}
"""The finishes by the name that the option ``finish`` gives them."""
