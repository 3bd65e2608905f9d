"""Casts of float32 to shorter formats."""
