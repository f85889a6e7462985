"""GGT and `whiten` in the training loops of other packages: docs/integrations.md.

`torch_ggt` does not import this room. `figures`, `write` and `Whitened` need torch alone. A module that is named after
a package needs that package: ``torch_ggt.integrations.lightning``, ``torch_ggt.integrations.transformers``.
"""

from torch_ggt.integrations.figures import consolidate, figures, window_owner, write
from torch_ggt.integrations.whitened import Whitened

__all__ = ["Whitened", "consolidate", "figures", "window_owner", "write"]
