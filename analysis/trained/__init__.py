"""Presentation of training results: table, answer, curves, and their files."""
