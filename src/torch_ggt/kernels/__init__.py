"""Kernels that beat plain torch by measurement. Torch's version, in `torch_ggt.products`, is their specification."""
