"""Selections of elements: the kernels of `coding/selecting`."""
