"""Casts of float32 to shorter numbers."""
