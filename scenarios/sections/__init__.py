"""Sections of a scenario file, one file each, and the values that they become."""
