"""Record the spectrum of recent gradients while any optimizer trains, and say whether a full matrix is worth it.

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

``recorder.diagnose().summary`` says it in words. A GGT has a window already, of momentum by default, and that one is
read; any other optimizer gets one of its gradients beside it. Training itself is the same to the last bit.

Rooms: `recorder` (hooks and records), `watched` (whose window), `comparison` (steps of one moment), `eigenvalues`, and
`diagnosis` (numbers and words).
"""

from torch_ggt.spectrum.comparison import StepComparison, compare_steps
from torch_ggt.spectrum.diagnosis import Diagnosis, diagnose
from torch_ggt.spectrum.recorder import SpectrumRecord, SpectrumRecorder

__all__ = ["Diagnosis", "SpectrumRecord", "SpectrumRecorder", "StepComparison", "compare_steps", "diagnose"]
