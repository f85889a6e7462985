"""Figures: they read results and never train."""
