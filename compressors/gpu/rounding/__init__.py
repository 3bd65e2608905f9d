"""Rounding to levels on a GPU."""
