"""The lab: problems, races between optimizers, and their results. `torch_ggt` never imports it."""
