"""Gradients that nobody recorded, drawn from fitted distributions."""
