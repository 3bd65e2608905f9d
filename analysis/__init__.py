"""Presentation of results: reports, tables, figures, timelines, advice, and validation."""
