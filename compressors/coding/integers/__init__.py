"""Integers as bytes: fields of equal width, digits, Elias codes."""
