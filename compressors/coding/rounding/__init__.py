"""Rounding to levels, and levels as bytes."""
