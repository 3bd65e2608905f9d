"""Presentation of training: table, answer, curves, and their files."""
