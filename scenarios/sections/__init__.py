"""Sections of a scenario file, one file each, and their values."""
