"""Optimizers by name, and the optimizers that exist only in the lab."""
