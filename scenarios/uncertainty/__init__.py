"""Uncertainty of a scenario's figures and results."""
