"""Codes for positions on a GPU."""
