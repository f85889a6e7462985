"""Record the spectrum of recent gradients while any optimizer trains, and say if a full matrix is worth its cost.

>>> model = torch.nn.Linear(3, 1)
>>> optimizer = torch.optim.Adam(model.parameters())
>>> with SpectrumRecorder(optimizer, window=5) as recorder:
...     for _ in range(8):
...         optimizer.zero_grad()
...         model(torch.randn(4, 3)).square().mean().backward()
...         optimizer.step()
>>> [len(record.singular_values) for record in recorder.records]
[1, 2, 3, 4, 5, 5, 5, 5]
>>> recorder.cost
'a window of its own: 5 × 4 float32 = 80 B (and a row), and one pass over it per step'

``recorder.diagnose().summary`` gives the diagnosis in words. The recorder reads the window of a GGT and of a whitened
optimizer. For any other optimizer, it keeps its own window of gradients. Training does not change by a single bit.
"""

from torch_ggt.spectrum.comparison import StepComparison, compare_steps
from torch_ggt.spectrum.diagnosis import Diagnosis, diagnose
from torch_ggt.spectrum.recorder import SpectrumRecord, SpectrumRecorder

__all__ = ["Diagnosis", "SpectrumRecord", "SpectrumRecorder", "StepComparison", "compare_steps", "diagnose"]
