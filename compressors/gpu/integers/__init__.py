"""Integers as bytes on a GPU."""
