"""Codes of one bit per element."""
