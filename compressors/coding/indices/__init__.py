"""Codes for the positions of selected elements."""
