"""Stages of a run, and the contents of its result."""
