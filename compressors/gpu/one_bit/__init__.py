"""Codes of one bit per element on a GPU."""
