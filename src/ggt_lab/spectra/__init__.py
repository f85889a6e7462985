"""Spectra of gradient windows, recorded during training runs."""
