"""The two passes of torch-ggt over its window, compiled for a CPU. `torch_ggt.backends.native` calls them."""

from pathlib import Path

__version__ = "0.2.0.dev0"
INTERFACE = 1
"""Rises when a function of the library takes other arguments; torch-ggt uses the library that it knows."""
LIBRARY = Path(__file__).with_name("passes.so")
