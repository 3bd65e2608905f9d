"""Collectives along trees, in pieces that follow each other."""
