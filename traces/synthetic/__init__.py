"""Synthetic gradients, drawn from fitted distributions."""
