"""Advice in a dozen lines, as JSON, and as a map."""
