"""The paper's GGT of a source tree, old or new: the options that an old tree lacks had these values there."""

import inspect

import torch_ggt

_PAPER = {"history": "momentum", "finish": "none", "shrinkage": 0.0, "weight_decay": 0.0}


def paper_ggt(parameters, **options):
    """A GGT whose step is the paper's, with these options."""
    known = inspect.signature(torch_ggt.GGT).parameters
    return torch_ggt.GGT(parameters, **{name: value for name, value in _PAPER.items() if name in known} | options)
