"""Gradients on disk."""
