"""Selections of elements: the largest, those above a threshold, those drawn at random."""
