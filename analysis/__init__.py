"""Presentation of results: tables, plots, timelines and the answer in a sentence."""
