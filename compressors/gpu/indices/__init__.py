"""Codes of positions, on a GPU."""
