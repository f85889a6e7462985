"""What autocast rounds must not vanish: gradients of a large batch, far from the loss."""

import pytest
import torch

from ggt_lab.data import synthetic_text
from ggt_lab.problems import problem_class

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", ["ptb-chars", "ptb-words"])
def test_gradients_of_recurrent_layers_do_not_vanish(name):
    """Autocast computes them in float16, and without a scale the first layer's gradients at the start are zeros."""
    noiseless = {key: 0.0 for key in vars(problem_class(name)) if key.startswith(("dropout", "weight_drop"))}
    size = {key: getattr(problem_class(name), key) for key in ("embedding", "width", "length")}
    rounded, exact = (
        type(
            f"Autocast{autocast}",
            (problem_class(f"{name}-tiny"),),
            {**noiseless, **size, "batch": 256, "_read": lambda _: synthetic_text(50, 30_000), "autocast": autocast},
        )(0, torch.device("cuda", 0))
        for autocast in (True, False)
    )
    for problem in (rounded, exact):
        problem.take_gradients()
    for (parameter, ours), theirs in zip(rounded.model.named_parameters(), exact.parameters(), strict=True):
        difference = (ours.grad - theirs.grad).norm() / theirs.grad.norm()
        assert difference < 0.1, (parameter, difference.item())
