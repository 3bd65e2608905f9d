"""Advice as a dozen lines of text, as JSON, and as a map."""
