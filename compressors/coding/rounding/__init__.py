"""Rounding to levels, and the coding of levels as bytes."""
