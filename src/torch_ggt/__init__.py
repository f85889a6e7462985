"""torch-ggt: exact full-matrix adaptive optimization for PyTorch.

>>> from torch_ggt import GGT
>>> optimizer = GGT(torch.nn.Linear(2, 1).parameters(), lr=1e-3)
"""

from torch_ggt.ggt import GGT
from torch_ggt.groups import param_groups
from torch_ggt.relatives import Adadelta, AdaGrad, NAdam, RMSprop
from torch_ggt.solver import apply_inverse_root, coefficients
from torch_ggt.spectrum import Diagnosis, SpectrumRecorder
from torch_ggt.whiten import Whitening, whiten
from torch_ggt.window import Window

__all__ = [
    "GGT",
    "AdaGrad",
    "Adadelta",
    "Diagnosis",
    "NAdam",
    "RMSprop",
    "SpectrumRecorder",
    "Whitening",
    "Window",
    "apply_inverse_root",
    "coefficients",
    "param_groups",
    "whiten",
]

__version__ = "0.2.0.dev0"
