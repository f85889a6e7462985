"""The sets of options that `bits` compares: together they meet every option of GGT, and what happens to optimizers."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class OptionSet:
    """One set of options, and what happens during its run."""

    options: dict = field(default_factory=dict)
    """Arguments of GGT."""
    dtypes: tuple = (torch.float32,)
    """The parameters have these dtypes in turn; with ``loss`` all have the first."""
    loss: bool = False
    """Gradients come from the loss of a network with three layers; otherwise a generator prescribes them."""
    two_groups: bool = False
    """The second half of the parameters has another learning rate and weight decay."""
    missing: bool = False
    """Some parameters have no gradient at some steps, and one has none until step 30."""
    nonfinite: bool = False
    """One gradient holds a NaN or an infinity at some steps, which GGT skips."""
    one_cycle: bool = False
    """OneCycleLR changes the learning rate and the first of the betas at every step."""
    saved: bool = False
    """After half of the steps the state goes through torch.save into a new optimizer."""
    changed: bool = False
    """The steps of these options were changed on purpose since the redesign; docs/trust.md says why."""


GRADIENT = {"history": "gradient"}
BY_PARAMETER = {"scope": "parameter"}

OPTION_SETS = {
    "defaults": OptionSet(),
    "defaults, a loss": OptionSet(loss=True),
    "gradient history": OptionSet({**GRADIENT, "betas": (0.9, 0.99)}, loss=True),
    "gradient history, equal betas": OptionSet({**GRADIENT, "betas": (0.9, 0.9), "eps": 1e-2}),
    "gradient history, nesterov, by parameter": OptionSet(
        {**GRADIENT, **BY_PARAMETER, "betas": (0.9, 0.99), "nesterov": True, "window": 7}
    ),
    "by group, two groups": OptionSet({"scope": "group", "betas": (0.9, 0.95)}, loss=True, two_groups=True),
    "by parameter, weight decay": OptionSet({**BY_PARAMETER, "weight_decay": 0.1}, loss=True),
    "two groups, maximize": OptionSet({"maximize": True, "scope": "model"}, two_groups=True),
    "bfloat16 rows, original step": OptionSet({"window_dtype": torch.bfloat16, "adjust_lr_fn": "original", "lr": 0.1}),
    "float64 rows": OptionSet({"window_dtype": torch.float64, "eps": 1e-2}, loss=True),
    "nesterov, float32 rows, eps 0": OptionSet({"nesterov": True, "eps": 0.0, "window_dtype": torch.float32}),
    "cholesky": OptionSet({"solver": "cholesky", "jitter": 1e-6}, loss=True),
    "cholesky, bfloat16 rows, by parameter, jitter 1e-3": OptionSet(
        {**BY_PARAMETER, "solver": "cholesky", "jitter": 1e-3, "window_dtype": torch.bfloat16}
    ),
    "eigh, jitter 0, sgd_scale": OptionSet(
        {"solver": "eigh", "jitter": 0.0, "sgd_scale": 0.1, "adjust_lr_fn": "match_rms_adamw"}, changed=True
    ),
    "tensor lr, OneCycleLR": OptionSet({"lr": torch.tensor(0.01)}, loss=True, one_cycle=True),
    "gradient history, by parameter, OneCycleLR": OptionSet(
        {**GRADIENT, **BY_PARAMETER, "betas": (0.9, 0.99)}, two_groups=True, one_cycle=True
    ),
    "float64 and bfloat16 parameters": OptionSet(dtypes=(torch.float64, torch.bfloat16)),
    "complex64, float32 and bfloat16 parameters, by group": OptionSet(
        {"scope": "group"}, dtypes=(torch.complex64, torch.float32, torch.bfloat16), two_groups=True
    ),
    "missing and nonfinite gradients": OptionSet({"betas": (0.8, 0.99)}, missing=True, nonfinite=True),
    "missing gradients, by parameter, bfloat16 rows, saved": OptionSet(
        {**BY_PARAMETER, "window_dtype": torch.bfloat16, "weight_decay": 0.01}, missing=True, nonfinite=True, saved=True
    ),
}
