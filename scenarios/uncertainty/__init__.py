"""Uncertainty of a scenario's figures, and of its results."""
